//! Which libpcap compiles filters, on every command that takes one.

use std::path::PathBuf;

use trawl_io::libpcap::choose_for_filters;

#[derive(Debug, clap::Args)]
pub struct LibpcapArg {
    /// The libpcap that compiles the filter, loaded only if there is one [default: the system's]
    #[arg(long, value_name = "PATH")]
    pub libpcap: Option<PathBuf>,
}

impl LibpcapArg {
    /// Filters are compiled by it from now on.
    pub fn choose(&self) {
        if let Some(path) = &self.libpcap {
            choose_for_filters(path);
        }
    }
}
