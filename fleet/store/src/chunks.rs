//! Chunks of a store: uploading, reading, checking and removing them.

pub mod fetch;
pub mod on_hosts;
pub mod prune;
pub mod upload;
pub mod verify;
