//! Series of an experiment by their names.

use trawl_sys::{Error, Result};

/// Finds a series in a table of names.
pub fn named<T: Copy>(series: &str, known: &[(&str, T)]) -> Result<T> {
    let found = known.iter().find(|(name, _)| *name == series);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        unknown(series, &names.join("; "))
    })
}

/// Refuses the name of a series.
pub fn unknown(series: &str, known: &str) -> Error {
    Error::usage(format!("series {series:?}"), format!("known are {known}"))
}
