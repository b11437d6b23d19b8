//! The table that holds: an array of lines in the one slot of an array of maps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::layout::balance::BALANCE_LINE;
use trawl_bpf::shared_array::{SharedArray, create_slot, fill_slot, in_slot};
use trawl_sys::{Error, Result};

use crate::compile::{compile, decompile};
use crate::memory;
use crate::table::Table;

const NAME: &str = "balance_lines";

#[derive(Debug)]
pub struct Slot(OwnedFd);

impl Slot {
    pub fn create() -> Result<Self> {
        let like = SharedArray::create(NAME, BALANCE_LINE as u32, 1)?;
        create_slot("balance_table", like.as_fd()).map(Self)
    }

    /// One that exists.
    pub fn of(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub fn read(&self) -> Result<Table> {
        let fail = |e| Error::os("cannot read the balancer's table", e);
        let Some(id) = in_slot(self.0.as_fd()).map_err(fail)? else {
            return Ok(Table::default());
        };
        let lines = SharedArray::open_by_id(id)?;
        let line = |number: usize| lines.memory().read(number * BALANCE_LINE, BALANCE_LINE);
        decompile(line).ok_or_else(|| {
            Error::failed(
                "cannot read the balancer's table",
                "it was written by another version",
            )
            .fix("trawl balance unload IF, then load it again")
        })
    }

    /// Puts a table, checked and numbered, in the place of the one that holds: each packet meets the old one or the
    /// new. When this returns, no packet is in the old one any more.
    pub fn publish(&self, table: &Table) -> Result<()> {
        let bytes = compile(table)?;
        memory::check(bytes.len(), None)?;
        let lines = u32::try_from(bytes.len() / BALANCE_LINE).unwrap_or(u32::MAX);
        let mut array = SharedArray::create(NAME, BALANCE_LINE as u32, lines)?;
        array.memory_mut().write(0, &bytes);
        fill_slot(self.0.as_fd(), array.as_fd())
            .map_err(|e| Error::os("cannot put the table in force", e))
    }
}

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
