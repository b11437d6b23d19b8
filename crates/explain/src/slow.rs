//! Why connections are slow.

pub mod file;
