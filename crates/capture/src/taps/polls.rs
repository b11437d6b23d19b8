//! The ends of polls: a program at the kernel's tracepoint after each poll of a device, so that the taps need not read the
//! clock for each packet.

use std::os::fd::{AsFd, OwnedFd};

use trawl_bpf::layout::TapConfig;
use trawl_bpf::object::{self, TapProgram};
use trawl_bpf::program::{self, LoadOptions};
use trawl_bpf::{link, probe};
use trawl_ring::Rings;
use trawl_sys::{Error, Result};

use crate::assembly::program_maps;
use crate::options::Readings;

/// Signals the end of polls to the programs that write into these rings, as long as the returned link is open.
pub(crate) fn watch(config: &TapConfig, rings: &Rings, readings: Readings) -> Result<OwnedFd> {
    let what = "cannot see the end of polls";
    if probe::is_unwanted("napi_poll") {
        return Err(Error::failed(what, "disabled by TRAWL_WITHOUT"));
    }
    let mut config = *config;
    readings.write_to(&mut config);
    let name = "trawl_poll_end";
    let ready = TapProgram::prepare(object::POLL, name, &config, &program_maps(rings, None))?;
    let loaded = ready.load(&LoadOptions::new(name, program::RAW_TRACEPOINT))?;
    link::attach_raw_tracepoint(loaded.as_fd(), "napi_poll").map_err(|e| Error::os(what, e))
}
