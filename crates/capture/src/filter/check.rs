//! The verifier's answer to a filter, in the smallest program around it.

use std::os::fd::AsFd;
use std::time::Instant;

use serde::Serialize;
use trawl_bpf::info;
use trawl_bpf::loading;
use trawl_bpf::probe::{KernelFeature, ProbeAnswer};
use trawl_bpf::program::{self, HAS_FRAGS, LoadOptions};
use trawl_filter::lower::{Lowered, Target};
use trawl_filter::{Hook, standalone};
use trawl_sys::{Error, Result, errno};

use super::Block;

/// Returns true unless the kernel lacks jumps over more than 32,767 instructions. A user who may not load programs
/// cannot probe this; most kernels have them.
pub fn has_far_jumps() -> bool {
    !matches!(KernelFeature::FarJumps.probe(), ProbeAnswer::NotSupported { .. })
}

/// The outcome of a check.
#[derive(Debug, Serialize)]
pub struct Acceptance {
    /// `None` if the verifier was not asked.
    pub accepted: Option<bool>,
    /// Number of instructions of the whole program.
    pub instructions: usize,
    pub seconds: f64,
    /// Number of instructions that the verifier processed, repetitions included.
    pub processed: Option<u32>,
    pub reason: Option<String>,
}

impl Acceptance {
    fn not_asked(error: &Error) -> Self {
        Self { accepted: None, instructions: 0, seconds: 0.0, processed: None, reason: Some(error.to_string()) }
    }

    /// Returns the outcome for people.
    pub fn sentence(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or_default();
        let milliseconds = self.seconds * 1e3;
        match (self.accepted, self.processed) {
            (Some(true), Some(processed)) => {
                format!("accepted by the verifier: {processed} instructions processed, loaded in {milliseconds:.1} ms")
            }
            (Some(true), None) => {
                format!("accepted by the verifier, loaded in {milliseconds:.1} ms")
            }
            (Some(false), _) => {
                format!(
                    "refused after {milliseconds:.1} ms, as a program of {} instructions: {reason}",
                    self.instructions
                )
            }
            (None, _) => format!("not checked: {reason}"),
        }
    }
}

/// Loads the block as a program of its own and unloads it again.
pub fn check(lowered: &Lowered, target: &Target) -> Result<Acceptance> {
    let block = match Block::new(lowered) {
        Ok(block) => block,
        Err(error) => return Ok(Acceptance::not_asked(&error)),
    };
    let instructions = standalone(&block, target, None).ok_or_else(|| {
        Error::failed("cannot check this filter", "it requires a buffer for the packet, which the check does not have")
    })?;
    let (kind, flags) = match target.hook {
        Hook::Xdp => (program::XDP, HAS_FRAGS),
        Hook::Tc | Hook::Copy { .. } => (program::SCHED_CLS, 0),
        Hook::Socket => (program::SOCKET_FILTER, 0),
    };
    let options = LoadOptions { flags, ..LoadOptions::new("trawl_check", kind) };
    let start = Instant::now();
    let loaded = loading::load(&instructions, &options);
    let mut outcome = Acceptance {
        accepted: Some(loaded.is_ok()),
        instructions: instructions.len(),
        seconds: start.elapsed().as_secs_f64(),
        processed: None,
        reason: None,
    };
    match loaded {
        Ok(program) => {
            let about = info::program(program.as_fd());
            outcome.processed = about.ok().map(|a| a.verified).filter(|&count| count > 0);
        }
        Err(error) => {
            if error.errno() == Some(errno::EPERM) {
                outcome.accepted = None;
            }
            outcome.reason = Some(error.to_string());
        }
    }
    Ok(outcome)
}
