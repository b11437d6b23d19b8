//! Labs, and the findings of `trawl doctor` in them.

mod doctor;
mod pair;
