//! Runs XDP programs on recorded packets and compares them: with another program, or with the verdicts in the files.
//!
//! Both programs are loaded with their own maps, without an interface. Calls of clocks and of random numbers become
//! loads of values that the trial sets before each packet, so that a run can be repeated; a byte for each basic block
//! and for each critical edge shows what a packet reached.

mod arrival;
mod clock;
mod compare;
mod coverage;
mod digest;
pub mod examples;
pub mod expect;
mod fuzz;
pub mod junit;
pub mod lcov;
mod limits;
mod maps;
mod minimise;
mod mutate;
#[cfg(test)]
mod neutral;
mod packet;
pub mod page;
pub mod report;
#[cfg(test)]
mod sample;
mod samples;
mod side;
mod state;
mod subject;
pub mod text;
mod timing;
mod trial;
mod wording;

pub use arrival::ArrivalInterface;
pub use packet::{Circumstance, Intake, Recorded, Unfit};
pub use state::{FirstContents, Origin};
pub use subject::Subject;
pub use trial::{Allowed, Plan, Trial};
