//! Loading a program of the tap at drops, or of those that follow packets, and attaching it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::layout::TapConfig;
use trawl_bpf::object::{TapProgram, Taps};
use trawl_bpf::program::{self, LoadOptions, Traced};
use trawl_bpf::{kernel_types, link};
use trawl_ebpf::Insn;
use trawl_sys::{Error, Result};

/// A loaded program, and what keeps it attached.
pub type Loaded = (OwnedFd, Vec<OwnedFd>);

/// A tracepoint, and the program for it.
#[derive(Clone, Copy, Debug)]
pub struct Tracepoint {
    object: Taps,
    tracepoint: &'static str,
    typed: bool,
    program: &'static str,
}

impl Tracepoint {
    pub fn at(object: Taps, tracepoint: &'static str, typed: bool) -> Self {
        Self {
            object,
            tracepoint,
            typed,
            program: "",
        }
    }

    pub fn program(self, program: &'static str) -> Self {
        Self { program, ..self }
    }
}

/// The program, with a filter in it where one is given: those have a name of their own.
pub fn prepare(
    object: Taps,
    program: &str,
    config: &TapConfig,
    maps: &[(&str, BorrowedFd<'_>)],
    block: Option<&[Insn]>,
) -> Result<(TapProgram, String)> {
    let name = match block {
        Some(_) => format!("{program}_f"),
        None => program.to_owned(),
    };
    let mut ready = TapProgram::prepare(object, &name, config, maps)?;
    if let Some(block) = block {
        ready.filter(block)?;
    }
    Ok((ready, name))
}

/// What a program of this kind is loaded with.
pub fn options(name: &str, kind: u32, expected_attach_type: u32) -> LoadOptions<'_> {
    LoadOptions {
        expected_attach_type,
        ..LoadOptions::new(name, kind)
    }
}

/// Loads the program for a tracepoint and attaches it.
pub fn load(
    place: &Tracepoint,
    config: &TapConfig,
    maps: &[(&str, BorrowedFd<'_>)],
    block: Option<&[Insn]>,
) -> Result<Loaded> {
    let (ready, name) = prepare(place.object, place.program, config, maps, block)?;
    let mut options = options(&name, program::RAW_TRACEPOINT, 0);
    if place.typed {
        let found = kernel_types::tracepoint(place.tracepoint)
            .map_err(|e| Error::os("cannot read the kernel's type information", e))?;
        let found = found.ok_or_else(|| {
            let what = format!("cannot look at the tracepoint {}", place.tracepoint);
            Error::failed(what, "the kernel has none of that name")
        })?;
        options.kind = program::TRACING;
        options.expected_attach_type = program::ATTACH_TYPED_TRACEPOINT;
        options.traced = Some(Traced {
            program: None,
            function: found.type_id,
        });
    }
    let loaded = ready.load(&options)?;
    let link = match place.typed {
        true => link::attach_tracing(loaded.as_fd()),
        false => link::attach_raw_tracepoint(loaded.as_fd(), place.tracepoint),
    };
    let link = link.map_err(|e| {
        Error::os("cannot look at the packets that the kernel drops", e)
            .fix("this requires root (CAP_BPF and CAP_PERFMON)")
    })?;
    Ok((loaded, vec![link]))
}
