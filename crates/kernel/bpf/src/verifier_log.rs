//! The verifier's log as a whole, of each program that this process loads, where somebody asked for it.

use std::fs::File;
use std::io::{self, Write};
use std::sync::OnceLock;

/// `BPF_LOG_LEVEL1`, `BPF_LOG_LEVEL2` and `BPF_LOG_STATS`: each instruction with what is known of its registers.
pub(super) const WHOLE: u32 = 1 | 2 | 4;

static KEPT_IN: OnceLock<File> = OnceLock::new();

/// From now on, logs are written to this file. False if they are written to another one already.
pub fn keep_in(file: File) -> bool {
    KEPT_IN.set(file).is_ok()
}

pub(super) fn is_kept() -> bool {
    KEPT_IN.get().is_some()
}

/// Writes the log of a program down, if anybody wants it: `refusal` says why it was not taken, `None` that it was.
pub(super) fn add(program: &str, refusal: Option<&io::Error>, log: &[u8]) {
    let Some(mut file) = KEPT_IN.get() else {
        return;
    };
    let outcome = match refusal {
        Some(error) => format!("refused: {error}"),
        None => "accepted".to_owned(),
    };
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let head = format!("== {program}, {outcome}\n");
    // A full disk is no reason not to load a program.
    let _ = file.write_all(head.as_bytes());
    let _ = file.write_all(&log[..end]);
    let _ = file.write_all(b"\n");
}
