//! Why connections are slow.

mod causes;
pub mod chosen;
pub mod file;
pub mod live;
pub mod record;
pub mod repetitions;
mod segments;
mod socket;
mod sockets;
pub mod worst;
