//! The complete verifier logs of all programs that this process loads, kept on request.

use std::fs::File;
use std::io::{self, Write};
use std::sync::OnceLock;

/// `BPF_LOG_LEVEL1`, `BPF_LOG_LEVEL2` and `BPF_LOG_STATS`: each instruction with the known state of its registers.
pub(super) const WHOLE: u32 = 1 | 2 | 4;

static KEPT_IN: OnceLock<File> = OnceLock::new();

/// Starts writing logs to this file. Returns false if they are written to another one already.
pub fn keep_in(file: File) -> bool {
    KEPT_IN.set(file).is_ok()
}

pub(super) fn is_kept() -> bool {
    KEPT_IN.get().is_some()
}

/// Writes down the log of a program, if requested: `refusal` says why it was refused, `None` that it was accepted.
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
    // A full disk does not prevent loading a program.
    let _ = file.write_all(head.as_bytes());
    let _ = file.write_all(&log[..end]);
    let _ = file.write_all(b"\n");
}
