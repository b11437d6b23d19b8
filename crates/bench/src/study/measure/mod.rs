//! The measuring code of the experiments, one file for each kind of measurement.

pub mod capture;
pub mod programs;
