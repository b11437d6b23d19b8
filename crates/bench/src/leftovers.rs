//! What an interrupted benchmark leaves behind: captures that run, labs and files.

use std::path::Path;

use trawl_sys::process;

/// In the environment of all that a benchmark starts: its process id.
pub(super) const MARK: &str = "TRAWL_BENCH";

/// The beginning of the names of its files.
pub(super) fn file_prefix(process: u32) -> String {
    format!("trawl-bench-{process}-")
}

/// Removes what a benchmark has left behind that ran as this process and wrote to this directory.
pub fn clean_up(process: u32, directory: &Path) {
    for peer in marked(process) {
        let _ = process::interrupt(peer);
    }
    for lab in trawl_lab::list().unwrap_or_default() {
        if lab.owner.is_some_and(|owner| owner.pid == process) {
            let _ = trawl_lab::remove(&lab.id);
        }
    }
    let prefix = file_prefix(process);
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true => std::fs::remove_dir_all(entry.path()),
                false => std::fs::remove_file(entry.path()),
            };
        }
    }
}

/// Processes that carry its mark.
fn marked(process: u32) -> Vec<u32> {
    let mark = format!("{MARK}={process}");
    let carries = |id: &u32| {
        std::fs::read(format!("/proc/{id}/environ")).is_ok_and(|all| {
            all.split(|&byte| byte == 0)
                .any(|one| one == mark.as_bytes())
        })
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(carries)
        .collect()
}
