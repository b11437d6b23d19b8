//! What fixes an error of this crate, as data.

use trawl_kernel::error::Remedy;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// The example in the documentation.
    FormOfDesired,
    FormOfPolicy,
    FormOfSelector,
}

impl Remedy for Fix {}
