//! The measuring code of the experiments, one file for each kind of measurement.

pub mod balance;
pub mod capture;
pub mod ddos;
pub mod demands;
pub mod disk;
pub mod generators;
pub mod pdump;
pub mod programs;
pub mod rfc2544;
pub mod store;
