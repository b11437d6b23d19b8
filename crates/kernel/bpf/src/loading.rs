//! Loading of finished instructions, with an error that explains the kernel's refusal.

use std::io;
use std::os::fd::OwnedFd;

use trawl_ebpf::Insn;
use trawl_sys::error::Refusal;
use trawl_sys::{Error, Result};

use crate::probe::{self, Capability, lack_of};
use crate::program::{HAS_FRAGS, LoadOptions, NETFILTER, RAW_TRACEPOINT, SYSCALL, TRACING, load_as_is};
use crate::{deadline, loader, typed_reads, verifier_log};

const LOG_SIZE: usize = 4 << 20;

/// Loads a program, within the limit for the verifier, if there is one.
pub fn load(instructions: &[Insn], options: &LoadOptions<'_>) -> Result<OwnedFd> {
    // Only these kinds were tried with typed loads; others are refused under lockdown, and the error says so.
    let may_be_typed = matches!(options.kind, TRACING | RAW_TRACEPOINT | NETFILTER | SYSCALL);
    let typed = may_be_typed.then(|| typed_reads::instead_of_helpers(instructions)).flatten();
    let instructions = typed.as_deref().unwrap_or(instructions);
    if verifier_log::is_kept() {
        let mut log = vec![0u8; loader::LOG_SIZE];
        let loaded = try_load(instructions, options, Some((&mut log, verifier_log::WHOLE)));
        verifier_log::add(options.name, loaded.as_ref().err(), &log);
        if let Ok(fd) = loaded {
            return Ok(fd);
        }
    }
    let loaded = match deadline::limit() {
        Some(limit) => {
            let (loaded, is_late) = deadline::within(limit, || try_load(instructions, options, None));
            if loaded.is_err() && is_late {
                let what = format!("cannot load the program {}", options.name);
                let why = format!("the verifier did not finish within {limit:.1?} of CPU time of a usual processor");
                return Err(Error::failed(what, why).refused(Refusal::TooSlow));
            }
            // Writing the verifier's log takes as long again, and it would only say that the program is too large.
            if loaded.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::E2BIG)) {
                let what = format!("cannot load the program {}", options.name);
                let why = "the program is too large for the verifier";
                return Err(Error::failed(what, why).refused(Refusal::TooLong));
            }
            loaded
        }
        None => try_load(instructions, options, None),
    };
    match loaded {
        Ok(fd) => Ok(fd),
        Err(error) => {
            let mut log = vec![0u8; LOG_SIZE];
            let retried = try_load(instructions, options, Some((&mut log, 1)));
            retried.map_err(|_| explain(options.name, error, &log))
        }
    }
}

/// Makes one attempt: the error is the kernel's errno, and the verifier's messages are written to the log, if one is
/// given, at that level. A kernel whose packets are never in several pieces has no flag for programs that accept them.
pub fn try_load(
    instructions: &[Insn],
    options: &LoadOptions<'_>,
    log: Option<(&mut Vec<u8>, u32)>,
) -> io::Result<OwnedFd> {
    let mut options = options.clone();
    if options.flags & HAS_FRAGS != 0 && !probe::has_xdp_frags() {
        options.flags &= !HAS_FRAGS;
    }
    load_as_is(instructions, &options, log)
}

/// Returns the line of the verifier's log with the reason: the last one before its statistics.
fn reason_in(log: &[u8]) -> Option<String> {
    // The verifier leaves zeroes where it removes lines of its log. The text after them may be the rest of the log, or
    // remains of an earlier attempt to verify a branch: the part with the statistics is the end.
    let text = String::from_utf8_lossy(log);
    let is_end = |part: &&str| part.lines().any(|line| line.starts_with("processed "));
    let text = match text.split('\0').find(is_end) {
        Some(end) => end.to_owned(),
        None => text.replace('\0', ""),
    };
    let reason = text.lines().rfind(|line| {
        !line.trim().is_empty() && !line.starts_with("processed ") && !line.starts_with("verification time")
    });
    reason.map(str::to_owned)
}

fn explain(name: &str, error: io::Error, log: &[u8]) -> Error {
    if let Some((why, how)) = lack_of(&Capability::FOR_BPF) {
        return Error::failed(format!("cannot load the program {name}"), why).fix(how);
    }
    let reason = reason_in(log);
    let os = Error::os(format!("cannot load the program {name}"), error);
    match (os.errno(), reason) {
        (Some(libc::EPERM), None) => os.fix("this requires root (CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON)"),
        (_, Some(reason)) if reason.contains("bpf_probe_read") && typed_reads::is_locked() => {
            let why = typed_reads::reason();
            Error::failed(format!("cannot load the program {name}"), why)
        }
        (_, Some(reason)) => {
            Error::failed(format!("cannot load the program {name}"), format!("the verifier says: {reason}"))
                .refused(Refusal::Verifier)
        }
        _ if os.errno() == Some(libc::E2BIG) => os.refused(Refusal::TooLong),
        _ => os,
    }
}

#[cfg(test)]
mod tests {
    use super::reason_in;

    #[test]
    fn reason_is_found_despite_removed_lines() {
        let stale: &[u8] = b"0: exit\nR0 !read_ok\nprocessed 2 insns (limit 1000000)\n\0from 1 to 9: safe\n\0\0\0";
        assert_eq!(reason_in(stale).as_deref(), Some("R0 !read_ok"));
        let later: &[u8] = b"0: r1 = r0\n\0\0R0 !read_ok\nprocessed 1 insns\n\0";
        assert_eq!(reason_in(later).as_deref(), Some("R0 !read_ok"));
        let unfinished: &[u8] = b"back-edge from insn 3 to 1\n\0\0";
        assert_eq!(reason_in(unfinished).as_deref(), Some("back-edge from insn 3 to 1"));
        assert_eq!(reason_in(&[0; 16]), None);
    }
}
