//! The generator: what is sent, how fast, and by which engine; and the receiver that checks it.
//!
//! A [`Source`] makes frames, an [`Engine`] hands them to the device, a [`Pacer`](pace::Pacer) says how many are due,
//! and [`run::run`] brings them together: one thread a CPU, each with a source and an engine of its own.
//!
//! Source and engine meet in [`Engine::send`]. The engine offers the room where a frame is to lie (a slot of a ring
//! that the kernel reads, where there is one), and the source writes the next frame there: [`Source::next`]. A frame
//! that was taken from a source is the engine's: it offers it to the device until the device takes it, and counts it
//! then. A source that can be made in the kernel says so with [`Source::pattern`]; the live engine takes nothing else.

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
pub mod units;

pub use engine::{Engine, Sent};
pub use source::{Next, Source};
