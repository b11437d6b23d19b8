//! The table in force, an array of lines in the one slot of an array of maps, and the check that the host has memory
//! for the table and the flows.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::arena::{SharedArray, create_slot, fill_slot, in_slot};
use trawl_bpf::layout::balance::{BALANCE_FLOWS, BALANCE_LINE};
use trawl_sys::{Error, Result, host};

use crate::compile::{compile, decompile};
use crate::table::Table;

const NAME: &str = "balance_lines";

#[derive(Debug)]
pub struct Slot(OwnedFd);

impl Slot {
    pub fn create() -> Result<Self> {
        let like = SharedArray::create(NAME, BALANCE_LINE as u32, 1)?;
        create_slot("balance_table", like.as_fd()).map(Self)
    }

    /// Wraps an existing map.
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
            Error::failed("cannot read the balancer's table", "it was written by another version")
                .fix("trawl balance unload IF, then load it again")
        })
    }

    /// Replaces the current table by a checked and numbered one: each packet sees the old one or the new one. On return
    /// no packet uses the old one.
    pub fn publish(&self, table: &Table) -> Result<()> {
        let bytes = compile(table)?;
        check_memory(bytes.len(), None)?;
        let lines = u32::try_from(bytes.len() / BALANCE_LINE).unwrap_or(u32::MAX);
        let mut array = SharedArray::create(NAME, BALANCE_LINE as u32, lines)?;
        array.memory_mut().write(0, &bytes);
        fill_slot(self.0.as_fd(), array.as_fd()).map_err(|e| Error::os("cannot apply the new table", e))
    }
}

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Bytes per flow in the kernel's LRU hash: an element with key and value, and its bucket.
const BYTES_PER_FLOW: u64 = 128;

/// Refuses a table of this many bytes that exceeds the host's available memory, together with the flows of a program
/// that is loaded anew.
pub fn check_memory(table: usize, flows: Option<u32>) -> Result<()> {
    check_memory_against(host::available_memory(), table, flows)
}

fn check_memory_against(available: u64, table: usize, flows: Option<u32>) -> Result<()> {
    let of_flows = flows.map_or(0, |flows| u64::from(flows) * BYTES_PER_FLOW);
    let needed = table as u64 + of_flows;
    // On a kernel that does not report its memory, the allocation itself decides.
    if available == 0 || needed <= available {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let error = Error::failed(
        "the table stays as it is",
        format!("table and flows need {} MiB, and {} MiB are available", mib(needed), mib(available)),
    );
    Err(if of_flows > table as u64 {
        error.fix(format!("choose fewer flows with --flows N; the default is {}", BALANCE_FLOWS as u32))
    } else {
        error.fix("use fewer virtual addresses or backends")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_beyond_the_memory_is_refused() {
        let available = 1 << 30;
        assert!(check_memory_against(available, 32 << 20, Some(1 << 20)).is_ok());
        assert!(check_memory_against(0, 32 << 20, Some(1 << 30)).is_ok());
        let flows = check_memory_against(available, 32 << 20, Some(1 << 26)).expect_err("8 GiB");
        assert!(flows.why().contains("8224 MiB"), "{flows}");
        let advice = flows.how_to_fix().expect("advice");
        assert!(advice.contains("--flows N"), "{advice}");
        let table = check_memory_against(16 << 20, 32 << 20, None).expect_err("32 MiB");
        let advice = table.how_to_fix().expect("advice");
        assert!(advice.contains("fewer virtual addresses"), "{advice}");
    }
}
