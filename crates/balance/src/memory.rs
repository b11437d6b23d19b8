//! What a balancer takes of the kernel's memory, looked at before it is asked for.

use trawl_bpf::layout::balance::BALANCE_FLOWS;
use trawl_sys::{Error, Result, host};

/// Of each flow, what the kernel's LRU hash takes: an element with key and value, and a place in its buckets.
const BYTES_PER_FLOW: u64 = 128;

/// Refuses what the host has no memory for: a table of this many bytes, and, where the program is loaded anew, its flows.
pub fn check(table: usize, flows: Option<u32>) -> Result<()> {
    check_against(host::available_memory(), table, flows)
}

fn check_against(available: u64, table: usize, flows: Option<u32>) -> Result<()> {
    let of_flows = flows.map_or(0, |flows| u64::from(flows) * BYTES_PER_FLOW);
    let needed = table as u64 + of_flows;
    // A kernel that does not say is asked by trying.
    if available == 0 || needed <= available {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let error = Error::failed(
        "the table stays as it is",
        format!(
            "table and flows would take {} MiB, and {} MiB are available",
            mib(needed),
            mib(available)
        ),
    );
    Err(match of_flows > table as u64 {
        true => error.fix(format!(
            "choose fewer flows with --flows N; the default is {}",
            BALANCE_FLOWS as u32
        )),
        false => error.fix("use fewer virtual addresses or backends"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_memory_for_is_refused() {
        let available = 1 << 30;
        assert!(check_against(available, 32 << 20, Some(1 << 20)).is_ok());
        assert!(check_against(0, 32 << 20, Some(1 << 30)).is_ok());
        let flows = check_against(available, 32 << 20, Some(1 << 26)).expect_err("8 GiB");
        assert!(flows.why().contains("8224 MiB"), "{flows}");
        let advice = flows.how_to_fix().expect("advice");
        assert!(advice.contains("--flows N"), "{advice}");
        let table = check_against(16 << 20, 32 << 20, None).expect_err("32 MiB");
        let advice = table.how_to_fix().expect("advice");
        assert!(advice.contains("fewer virtual addresses"), "{advice}");
    }
}
