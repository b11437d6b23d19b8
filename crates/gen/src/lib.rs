//! The generator: frames, rates and engines; and the receiver that checks the frames.
//!
//! A [`Source`] makes frames, an [`Engine`] hands them to the device, a [`Pacer`](pace::Pacer) computes the number of
//! frames due, and [`run::run`] combines them: one thread for each CPU, each with its own source and engine.
//!
//! Source and engine meet in [`Engine::send`]. The engine offers the memory for a frame (a slot of a ring that the
//! kernel reads, if it has one), and the source writes the next frame there: [`Source::next`]. The frame then belongs
//! to the engine, which offers it to the device until the device accepts it, and counts it then. A source that can be
//! made in the kernel has a [`Source::pattern`]; the live engine accepts nothing else.

pub mod connections;
pub mod engine;
pub mod pace;
pub mod pattern;
pub mod receive;
pub mod replay;
pub mod rfc2544;
pub mod run;
pub mod source;
pub mod stamp;
pub mod target;
pub mod template;
pub mod traffic;

pub use engine::{Engine, Sent};
pub use source::{Next, Source};
