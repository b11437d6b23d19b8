//! What measuring code drives: traffic at a lab's end, captures at the other, and the processes in between.

pub mod capture;
pub mod hosts;
pub mod made_up;
pub mod napi;
pub mod process;
pub mod traffic;
pub mod xsk;
