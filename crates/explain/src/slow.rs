//! Why connections are slow.

pub mod file;
pub mod live;
