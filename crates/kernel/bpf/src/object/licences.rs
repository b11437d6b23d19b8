//! The licence that each object declares to the kernel, and the helpers and functions that the kernel reserves for
//! programs under the GPL. docs/licences.md has the table.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{ALL, MARKED_CALLS, READ_USER_MARK};
use crate::program::{self, LoadOptions, RAW_TRACEPOINT, SCHED_CLS, XDP, load_as_is};
use trawl_ebpf::helper::PROBE_READ_USER;
use trawl_ebpf::{Insn, op};

/// Licences that the kernel accepts for these helpers (include/linux/license.h).
const COMPATIBLE: [&str; 6] =
    ["GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"];
/// Helpers that the kernel marks `gpl_only`, for programs at XDP, tc and tracepoints.
const RESERVED: [(i32, &str); 32] = [
    (4, "bpf_probe_read"),
    (6, "bpf_trace_printk"),
    (22, "bpf_perf_event_read"),
    (25, "bpf_perf_event_output"),
    (27, "bpf_get_stackid"),
    (35, "bpf_get_current_task"),
    (45, "bpf_probe_read_str"),
    (55, "bpf_perf_event_read_value"),
    (67, "bpf_get_stack"),
    (69, "bpf_fib_lookup"),
    (100, "bpf_tcp_check_syncookie"),
    (110, "bpf_tcp_gen_syncookie"),
    (112, "bpf_probe_read_user"),
    (113, "bpf_probe_read_kernel"),
    (114, "bpf_probe_read_user_str"),
    (115, "bpf_probe_read_kernel_str"),
    (158, "bpf_get_current_task_btf"),
    (163, "bpf_check_mtu"),
    (165, "bpf_snprintf"),
    (169, "bpf_timer_init"),
    (170, "bpf_timer_set_callback"),
    (171, "bpf_timer_start"),
    (172, "bpf_timer_cancel"),
    (173, "bpf_get_func_ip"),
    (175, "bpf_task_pt_regs"),
    (176, "bpf_get_branch_snapshot"),
    (177, "bpf_trace_vprintk"),
    (191, "bpf_copy_from_user_task"),
    (204, "bpf_tcp_raw_gen_syncookie_ipv4"),
    (205, "bpf_tcp_raw_gen_syncookie_ipv6"),
    (206, "bpf_tcp_raw_check_syncookie_ipv4"),
    (207, "bpf_tcp_raw_check_syncookie_ipv6"),
];

/// Sections of an ELF file, by name: flags and contents.
fn sections(object: &[u8]) -> Vec<(String, u64, &[u8])> {
    const LENGTH: usize = 64;
    let number = |at: usize, length: usize| {
        let bytes = object[at..at + length].iter().rev();
        bytes.fold(0usize, |high, byte| high << 8 | usize::from(*byte))
    };
    let (table, count, names) = (number(40, 8), number(60, 2), number(62, 2));
    let names = number(table + names * LENGTH + 24, 8);
    let mut found = Vec::new();
    for at in (0..count).map(|index| table + index * LENGTH) {
        let name = object[names + number(at, 4)..].split(|byte| *byte == 0).next().unwrap_or_default();
        // A section of zeros has no bytes in the file.
        let length = if number(at + 4, 4) == 8 { 0 } else { number(at + 32, 8) };
        let start = number(at + 24, 8);
        let contents = object.get(start..start + length).unwrap_or_default();
        found.push((String::from_utf8_lossy(name).into_owned(), number(at + 8, 8) as u64, contents));
    }
    found
}

fn declared(object: &[u8]) -> String {
    let found = sections(object).into_iter().find(|(name, ..)| name == "license").expect("each object has a licence");
    String::from_utf8_lossy(found.2).trim_end_matches('\0').to_owned()
}

/// Returns the numbers of the helpers that an object calls, and of the marks that trawl replaces when it loads it.
fn called(object: &[u8]) -> BTreeSet<i32> {
    const EXECUTABLE: u64 = 4;
    let code = sections(object).into_iter().filter(|(_, flags, _)| flags & EXECUTABLE != 0);
    let mut numbers = BTreeSet::new();
    for (.., bytes) in code {
        for one in bytes.chunks_exact(8) {
            if one[0] == op::CALL_CODE && one[1] >> 4 == 0 {
                numbers.insert(i32::from_le_bytes([one[4], one[5], one[6], one[7]]));
            }
        }
    }
    numbers
}

/// Returns the names of the reserved helpers and functions among these numbers.
fn reserved(numbers: &BTreeSet<i32>) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for number in numbers {
        let helper = if *number == READ_USER_MARK { PROBE_READ_USER } else { *number };
        let of_marks = MARKED_CALLS.iter().find(|(mark, _)| *mark == helper);
        names.extend(RESERVED.iter().chain(of_marks).filter(|(one, _)| *one == helper).map(|(_, name)| *name));
    }
    names.sort_unstable();
    names
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/licences.md")
}

#[test]
fn page_lists_the_licence_of_each_object() {
    let mut table = String::new();
    for (name, object) in ALL {
        let licence = declared(object);
        let names = reserved(&called(object));
        assert!(names.is_empty() || COMPATIBLE.contains(&licence.as_str()), "{name}: {licence} and {names:?}");
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        writeln!(table, "| `{name}` | {licence} | {names} |").expect("strings grow");
    }
    let page = std::fs::read_to_string(page()).expect("docs/licences.md");
    let rows: String = page.lines().filter(|line| line.starts_with("| `")).map(|line| format!("{line}\n")).collect();
    assert_eq!(rows, table, "docs/licences.md has another table; its rows are now:\n{table}");
}

/// Each file in bpf/ offers both licences, so that an object may declare the GPL.
#[test]
fn sources_of_objects_offer_both_licences() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bpf");
    let mut files = 0;
    for folder in std::fs::read_dir(root).expect("bpf/").flatten() {
        for file in std::fs::read_dir(folder.path()).expect("a folder").flatten() {
            let text = std::fs::read_to_string(file.path()).expect("a source");
            let first = text.lines().next().unwrap_or_default();
            let offered = "SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)";
            assert!(first.contains(offered), "{}: {first}", file.path().display());
            files += 1;
        }
    }
    assert!(files > ALL.len(), "{files} files");
}

/// Returns the number of each helper that the running kernel refuses to a program under another licence.
fn refused_by_kernel(kind: u32) -> BTreeSet<i32> {
    let is_refused = |helper: &i32| {
        let call = Insn::new(op::CALL_CODE, 0, 0, 0, *helper);
        let code = [&[call][..], &program::returning(0)].concat();
        let options = LoadOptions { license: "Proprietary", ..LoadOptions::new("licence", kind) };
        let mut log = vec![0; 1 << 16];
        let loaded = load_as_is(&code, &options, Some((&mut log, 1)));
        loaded.is_err() && String::from_utf8_lossy(&log).contains("GPL-restricted")
    };
    (1..=211).filter(is_refused).collect()
}

#[test]
fn kernel_reserves_no_other_helpers() {
    if !crate::probe::missing_capabilities(&crate::probe::Capability::FOR_BPF).is_empty() {
        eprintln!("SKIPPED: programs cannot be loaded without CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN");
        return;
    }
    let known: BTreeSet<i32> = RESERVED.iter().map(|(number, _)| *number).collect();
    let mut refused = BTreeSet::new();
    for kind in [XDP, SCHED_CLS, RAW_TRACEPOINT] {
        refused.extend(refused_by_kernel(kind));
    }
    assert!(refused.contains(&trawl_ebpf::helper::PROBE_READ_KERNEL), "{refused:?}");
    // An earlier kernel reserves more: the clock before Linux 5.8, for example.
    let called: BTreeSet<i32> = ALL.iter().flat_map(|(_, object)| called(object)).collect();
    let unknown: Vec<i32> = refused.intersection(&called).filter(|number| !known.contains(number)).copied().collect();
    assert!(unknown.is_empty(), "the kernel also reserves the helpers {unknown:?}");
}
