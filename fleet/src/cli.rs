//! The commands: arguments and output.

pub mod agent;
pub mod bus;
pub mod fleet;
mod health;
mod hosts;
mod incident;
mod keep;
pub mod query;
pub mod serve;
pub mod store;
pub mod trace;
pub mod upload;
