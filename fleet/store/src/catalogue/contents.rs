//! The part of a store that queries read: the facts of its runs, and the files of its index.

use std::path::Path;

use serde::{Deserialize, Serialize};
use trawl_sys::Result;

use super::Catalogue;
use super::new_records::{Marks, New, Source};
use super::summary::Addresses;
use crate::object::remote::Store;
use crate::runs::Runs;
use crate::runs::coverage::Scope;
use crate::runs::evidence::{Evidence, add_spooled};
use crate::search::TAIL;

/// A file of the index, and the times of its rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct File {
    pub key: String,
    pub bytes: u64,
    pub first_ns: i64,
    pub last_ns: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<Copied>,
}

/// Copy of the parts that describe a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Copied {
    /// Key of the summary that has it.
    pub summary: String,
    /// Length of the file's footer.
    pub footer: u64,
    /// The addresses that the file may have: it is not opened for a question about others.
    #[serde(skip)]
    pub addresses: Addresses,
}

impl File {
    /// Returns the length of the file's end that is read for its footer.
    pub fn tail(&self) -> usize {
        self.copied.as_ref().and_then(|copied| usize::try_from(copied.footer).ok()).unwrap_or(TAIL)
    }
}

#[derive(Debug, Default)]
pub struct Contents {
    pub runs: Runs,
    pub files: Vec<File>,
    /// Records of a newer trawl.
    pub newer: usize,
}

impl Contents {
    /// Reads the catalogue and the records that it does not have yet, and a spool's contents for the store.
    pub fn read(store: &Store, spool: &Path, scope: &Scope, source: Source) -> Result<Self> {
        let marks = Marks::list(store)?;
        let catalogue = Catalogue::read(store)?;
        let mut runs = catalogue.runs_divided(store, [scope.from, scope.to])?;
        let new = if catalogue.is_absent() {
            // The marks of a store whose index is lost are gone, too.
            New { evidence: Evidence::read(store)?, indexes: marks.indexes, ..New::default() }
        } else {
            marks.read(store, &runs, source)?
        };
        let files = catalogue.files().iter().map(|file| File {
            key: file.key.clone(),
            bytes: file.bytes,
            first_ns: file.first_ns,
            last_ns: file.last_ns,
            copied: None,
        });
        let mut files: Vec<File> = files.collect();
        for (chunk, manifest) in &new.evidence.manifests {
            if let Some(index) = new.indexes.get(chunk) {
                files.push(File {
                    key: index.key.clone(),
                    bytes: index.bytes,
                    first_ns: manifest.first_ns.unwrap_or(0) as i64,
                    last_ns: manifest.last_ns.unwrap_or(0) as i64,
                    copied: new.copies.get(chunk).cloned(),
                });
            }
        }
        runs.add(new.runs(|chunk| new.indexes.contains_key(chunk)));
        add_spooled(&mut runs, store, spool);
        Ok(Self { runs, files, newer: new.evidence.newer.len() })
    }
}
