//! The agent of a host: the desired captures, the host's policy, and the state machine that starts and stops captures.
//! These start no process, read no clock and use no network, which `running` and `source` do; so the simulation can run
//! a thousand hosts.

mod desired;
mod freeze;
mod log;
mod machine;
mod policy;
mod report;
mod running;
#[cfg(test)]
mod simulation;
mod source;
mod states;

pub use desired::{Capture, Desired, Incident, Labels};
pub use freeze::{Freezer, remove_unfinished};
pub use log::{Command, Order, Record};
pub use machine::{Action, End, Event, Machine, Memory, Now};
pub use policy::{Policy, Refusal, Role};
pub use report::{CaptureReport, Counts, HostEvent, HostReport, IncidentPhase, IncidentReport, Phase, Rights};
pub use running::{Place, Push, Refused, Running};
pub use source::{News, Source};
pub use states::{End as CaptureEnd, Request, State};
pub use trawl_sys::names::Selector;
