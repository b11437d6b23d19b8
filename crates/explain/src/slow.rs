//! Why connections are slow.

mod causes;
pub mod file;
pub mod live;
