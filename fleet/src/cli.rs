//! The commands: arguments and output.

pub mod agent;
pub mod bus;
pub mod fleet;
mod health;
mod hosts;
mod incident;
pub mod query;
pub mod serve;
pub mod store;
pub mod trace;
pub mod upload;
