//! Privileges: the ones a process gives up, and the helper that keeps them.

pub mod helper;
pub mod privilege;
