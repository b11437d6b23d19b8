//! Searches of the index: conditions on its rows, the places of the packets that meet them, and the questions that
//! trawl-query answers.

pub mod answer;
mod cache;
pub mod condition;
pub mod footer;
mod groups;
pub mod limits;
pub mod locations;
pub mod net;
pub mod question;
mod read_only;
mod rows;
mod summarised;

use std::sync::Arc;

use object_store::ObjectStore;

use crate::catalogue::contents::File;
use crate::object::remote::Store;
use cache::Cached;
use footer::Checked;
use read_only::ReadOnly;
use summarised::Summarised;

/// Length of a file's end that is read for its footer.
pub const TAIL: usize = 128 << 10;

/// A store as a search reads it.
#[derive(Clone, Debug)]
pub struct Readers {
    pub objects: Arc<dyn ObjectStore>,
    /// The same store, for the parts of index files that describe their contents.
    pub footers: Arc<dyn ObjectStore>,
    pub is_remote: bool,
}

impl Readers {
    /// Returns the readers of a store for a search of these files.
    pub fn of(store: &Store, files: &[File]) -> Self {
        let is_remote = !store.url().starts_with("file:");
        let checked = Checked { store: store.objects(), is_directory: !is_remote };
        let objects: Arc<dyn ObjectStore> = Arc::new(ReadOnly(checked));
        let same = Arc::clone(&objects);
        let footers = if is_remote { Cached::around(same, store.identity()) } else { same };
        Self { objects, footers: Summarised::around(footers, files), is_remote }
    }
}
