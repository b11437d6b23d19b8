//! What trawl remembers of a program it loaded, beside its pins: kept in a pinned map, as the BPF file system holds
//! nothing else.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trawl_kernel::bpf::table::Table;
use trawl_kernel::{Error, Result, bpffs};

use crate::jump_chain::ChainSeat;
use crate::ready::Change;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// The function's whole name, which the kernel cuts at 15 characters.
    pub name: String,
    /// The file it came from, or the bundled program's name.
    pub source: String,
    /// Pins and directories made elsewhere for it, in the order they were made.
    pub pins: Vec<PathBuf>,
    /// Features of interfaces that were switched for it.
    #[serde(default)]
    pub changes: Vec<Change>,
    /// The kernel's tag of the program without the hooks that were put into it; `None` where it has none.
    #[serde(default)]
    pub plain_tag: Option<String>,
    /// Its place among programs that jump to one another.
    #[serde(default)]
    pub seat: Option<ChainSeat>,
}

const MAP_NAME: &str = "trawl_record";

impl Record {
    pub fn pin(&self, path: &Path) -> Result<()> {
        let fail = |e| Error::os(format!("cannot keep a note at {}", path.display()), e);
        let text = serde_json::to_vec(self).map_err(|e| fail(e.into()))?;
        let table = Table::holding(MAP_NAME, &text).map_err(fail)?;
        bpffs::pin(std::os::fd::AsFd::as_fd(&table), path)
    }

    pub fn read(path: &Path) -> Option<Self> {
        let table = Table::new(bpffs::open_map(path).ok()?).ok()?;
        let text = table.lookup(&[0; 4]).ok()??;
        serde_json::from_slice(&text).ok()
    }
}
