//! Runs XDP programs on recorded packets and compares them: with another program, or with the verdicts in the files.

pub mod report;
