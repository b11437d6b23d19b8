//! The agent of a host: which captures are desired, what the host's policy allows of them, and the state machine that says
//! what to start and stop. Nothing here starts a process, reads a clock or talks to a network: `trawl agent` does, and the
//! simulation of a thousand hosts does without.

pub mod desired;
pub mod machine;
pub mod policy;
pub mod report;

pub use desired::{Capture, Desired, Selector};
pub use machine::{Action, End, Event, Machine, Memory, Now};
pub use policy::{Policy, Refusal};
pub use report::{CaptureReport, Counts, HostReport, Phase};
