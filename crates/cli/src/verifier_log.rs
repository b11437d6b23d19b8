//! `--verifier-log`: the verifier's whole log, of which messages show one line.

use std::path::{Path, PathBuf};

use trawl_bpf::verifier_log;
use trawl_sys::{Error, Result};

use crate::outfile;

#[derive(Debug, clap::Args)]
pub struct VerifierLog {
    /// Write the verifier's whole log of each program that is loaded, accepted or refused, to this file
    #[arg(long, value_name = "FILE")]
    verifier_log: Option<PathBuf>,
}

impl VerifierLog {
    /// To be called before anything is loaded.
    pub fn begin(&self) -> Result<()> {
        self.verifier_log.as_deref().map_or(Ok(()), begin)
    }

    pub fn path(&self) -> Option<PathBuf> {
        self.verifier_log.clone()
    }
}

/// Keeps the log of what is loaded from now on.
pub fn begin(path: &Path) -> Result<()> {
    let (file, _) = outfile::open(path, None)?;
    file.set_len(0)
        .map_err(|e| Error::os(format!("cannot write to {}", path.display()), e))?;
    verifier_log::keep_in(file);
    Ok(())
}
