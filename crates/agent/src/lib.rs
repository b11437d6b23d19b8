//! The agent of a host: the desired captures, the host's policy, and the state machine that starts and stops captures. This crate
//! starts no process, reads no clock and uses no network; `trawl agent` does, and so the simulation can run a thousand hosts.

pub mod desired;
pub mod machine;
pub mod policy;
pub mod report;

pub use desired::{Capture, Desired, Selector};
pub use machine::{Action, End, Event, Machine, Memory, Now};
pub use policy::{Policy, Refusal};
pub use report::{CaptureReport, Counts, HostReport, Phase};
