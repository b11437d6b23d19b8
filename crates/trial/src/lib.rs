//! Runs XDP programs on recorded packets and compares them: with another program, or with the verdicts in the files.

pub mod junit;
pub mod lcov;
pub mod page;
pub mod report;
#[cfg(test)]
mod sample;
pub mod text;
mod wording;
