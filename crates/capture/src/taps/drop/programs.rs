//! Loading of the programs at tracepoints, netfilter's hooks and tc.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::layout::TapConfig;
use trawl_bpf::object::{self, TapProgram, Taps};
use trawl_bpf::program::{self, LoadOptions, Traced};
use trawl_bpf::{kernel_types, link, probe};
use trawl_ebpf::Insn;
use trawl_sys::{Error, Result};

use crate::taps::tap::variant;

pub const TRACEPOINT: &str = "kfree_skb";
const SENDING: &str = "net_dev_queue";

/// A loaded program, and the descriptors that keep it attached.
pub type Loaded = (OwnedFd, Vec<OwnedFd>);

/// Loads a program at the tracepoint of drops, and attaches it: the typed program, which reads the kernel's structures,
/// or the raw one if the kernel refuses that. Returns its kind and the prepared program, too.
pub fn load_at_drops(
    (object, program): (&'static [u8], &str),
    config: &TapConfig,
    maps: &[(&str, BorrowedFd<'_>)],
    block: Option<&[Insn]>,
) -> Result<(&'static str, TapProgram, Loaded)> {
    let raw = || {
        let program = format!("{program}_raw");
        let (ready, name) = prepare_program(object, &program, config, maps, block)?;
        let loaded = attach_at_drops(&ready, &name, false)?;
        Ok(("raw_tp", ready, loaded))
    };
    if probe::is_unwanted("tp_btf") {
        return raw();
    }
    let typed = || {
        let (ready, name) = prepare_program(object, program, config, maps, block)?;
        let loaded = attach_at_drops(&ready, &name, true)?;
        Ok(("tp_btf", ready, loaded))
    };
    typed().or_else(|error| raw().map_err(|_| error))
}

/// Attaches the program that notes the flows of the selected processes as they send.
pub fn watch_senders(config: &TapConfig, maps: &[(&str, BorrowedFd<'_>)]) -> Result<Loaded> {
    let name = "trawl_sent";
    let ready = TapProgram::prepare(Taps::reading_kernel(object::TAP_DROP), name, config, maps)?;
    let loaded = ready.load(&program_options(name, program::RAW_TRACEPOINT, 0))?;
    let link = link::attach_raw_tracepoint(loaded.as_fd(), SENDING);
    let link = link.map_err(|e| {
        Error::os("cannot observe the packets that processes send", e)
            .fix("this requires root (CAP_BPF and CAP_PERFMON)")
    })?;
    Ok((loaded, vec![link]))
}

/// Prepares a program, with the filter if given: programs with a filter, and those that name processes, have a name of
/// their own.
pub fn prepare_program(
    object: &'static [u8],
    program: &str,
    config: &TapConfig,
    maps: &[(&str, BorrowedFd<'_>)],
    block: Option<&[Insn]>,
) -> Result<(TapProgram, String)> {
    let names_processes = maps.iter().any(|(name, _)| *name == object::OWNERS_MAP);
    let name = variant(program, &[(names_processes, "p"), (block.is_some(), "f")]);
    let mut ready = TapProgram::prepare(Taps::reading_kernel(object), &name, config, maps)?;
    if let Some(block) = block {
        ready.filter(block)?;
    }
    Ok((ready, name))
}

/// Returns the load options for a program of this kind.
pub fn program_options(name: &str, kind: u32, expected_attach_type: u32) -> LoadOptions<'_> {
    LoadOptions { expected_attach_type, ..LoadOptions::new(name, kind) }
}

/// Loads a prepared program, and attaches it.
fn attach_at_drops(ready: &TapProgram, name: &str, typed: bool) -> Result<Loaded> {
    let mut options = program_options(name, program::RAW_TRACEPOINT, 0);
    if typed {
        let found = kernel_types::tracepoint(TRACEPOINT)
            .map_err(|e| Error::os("cannot read the kernel's type information", e))?;
        let found = found.ok_or_else(|| {
            let what = format!("cannot attach to the tracepoint {TRACEPOINT}");
            Error::failed(what, "the kernel has no such tracepoint")
        })?;
        options.kind = program::TRACING;
        options.expected_attach_type = program::ATTACH_TYPED_TRACEPOINT;
        options.traced = Some(Traced { program: None, function: found.type_id });
    }
    let loaded = ready.load(&options)?;
    let link = if typed {
        link::attach_tracing(loaded.as_fd())
    } else {
        link::attach_raw_tracepoint(loaded.as_fd(), TRACEPOINT)
    };
    let link = link.map_err(|e| {
        Error::os("cannot observe the packets that the kernel drops", e)
            .fix("this requires root (CAP_BPF and CAP_PERFMON)")
    })?;
    Ok((loaded, vec![link]))
}
