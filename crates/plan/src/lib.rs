//! The plan of a capture, as plain data: a front end makes it, and it can be stored, shown and sent to another host.

mod capture;
pub mod filter;
pub mod options;
pub mod outputs;
pub mod pod;
pub mod sources;

pub use capture::CapturePlan;
pub use options::TapChoice;
