//! xdp-bench's programs, out of the installed binary: they are in it as object files, and are loaded without it.
//!
//! xdp-bench itself does not start where the kernel lacks one of the tracepoints that it counts by (Debian 12's on 6.18,
//! for one). Its programs alone are also the harder ones to keep up with: nothing counts beside them.

use std::path::Path;

use trawl_attach::Request;
use trawl_bpf::table::{self, Table};
use trawl_program::load::{Program, Source};
use trawl_program::{Site, install};
use trawl_sys::netns::run_in;
use trawl_sys::{Error, Result};

use trawl_lab::Station;

use super::who::{Verdict, label};

const NAME: &str = "xdp-bench";
const MAGIC: &[u8] = b"\x7fELF";
const MACHINE_BPF: u16 = 247;
const XDP_DROP: u32 = 1;
const XDP_TX: u32 = 3;
/// The program that older versions have for all that it does with one interface.
const BASIC: &str = "xdp_basic_prog";
const TARGET: &str = "tx_port_native";

/// Puts its program for a verdict on an interface; `out` is where that one sends frames on to.
pub fn load(binary: &Path, verdict: Verdict, at: &Station, out: &Station) -> Result<()> {
    let (mut source, name) = find(binary, names(verdict)?)?;
    // Its user space gives the counters their sizes: one for each CPU.
    let cpus = table::possible_cpus().map_err(|e| Error::os("cannot count the CPUs", e))?;
    for map in source.maps() {
        if map.max_entries == 0 && !map.is_data {
            source.set_entries(&map.name, cpus as u32)?;
        }
    }
    match verdict {
        Verdict::Drop => source.set_variable("action", &XDP_DROP.to_ne_bytes())?,
        Verdict::Tx => {
            source.set_variable("action", &XDP_TX.to_ne_bytes())?;
            if name == BASIC {
                source.set_variable("swap_macs", &[1])?;
            }
        }
        _ => {}
    }
    if verdict == Verdict::Redirect {
        source.set_variable("ifindex_out", &out.index.to_ne_bytes())?;
    }
    let site = Site::find(&label(at), None)?;
    install::put_alone(
        &site,
        source,
        &Request::default(),
        |program| match verdict {
            Verdict::RedirectMap => fill(program, at, out),
            _ => Ok(()),
        },
    )
    .map(drop)
}

/// What its programs for a verdict are called, those of newer versions first.
fn names(verdict: Verdict) -> Result<&'static [&'static str]> {
    match verdict {
        Verdict::Drop => Ok(&[BASIC]),
        Verdict::Tx => Ok(&["xdp_swap_macs_prog", BASIC]),
        Verdict::Redirect => Ok(&["xdp_redirect_prog", "xdp_redirect_basic_prog"]),
        Verdict::RedirectMap => Ok(&["redir_devmap_native"]),
        Verdict::Pass => Err(Error::failed(
            "cannot compare",
            "its program that passes is not taken out",
        )),
    }
}

fn fill(program: &Program, at: &Station, out: &Station) -> Result<()> {
    let what = "cannot fill xdp-bench's device map";
    let fail = |e| Error::os(what, e);
    let map = program
        .map(TARGET)
        .ok_or_else(|| Error::failed(what, "it is not there"))?;
    let table = Table::new(map.try_clone_to_owned().map_err(fail)?).map_err(fail)?;
    // struct bpf_devmap_val: the interface, and no program.
    let value = [out.index.to_ne_bytes(), [0; 4]].concat();
    run_in(&at.namespace, || {
        table.update(&0u32.to_ne_bytes(), &value, table::ANY)
    })?
    .map_err(fail)
}

/// The object that holds the first of these programs that is there.
fn find(path: &Path, programs: &'static [&'static str]) -> Result<(Source, &'static str)> {
    let what = || format!("cannot take {} out of {NAME}", programs.join(" or "));
    let binary = std::fs::read(path).map_err(|e| Error::os(what(), e))?;
    for program in programs {
        for object in objects(&binary) {
            if let Ok(mut source) = Source::embedded(NAME, object)
                && source.choose(Some(program)).is_ok()
            {
                return Ok((source, program));
            }
        }
    }
    Err(Error::failed(what(), "it is not in there"))
}

/// BPF object files inside a binary: an ELF file ends with its table of sections.
fn objects(binary: &[u8]) -> impl Iterator<Item = &[u8]> {
    let starts = (0..binary.len()).filter(|at| binary[*at..].starts_with(MAGIC));
    starts.filter_map(|at| object_at(&binary[at..]))
}

fn object_at(bytes: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let sections = u64::from_le_bytes(*bytes.get(40..)?.first_chunk()?);
    let size = u64::from(word(58)?) * u64::from(word(60)?);
    let end = usize::try_from(sections.checked_add(size)?).ok()?;
    bytes.get(..end).filter(|_| word(18) == Some(MACHINE_BPF))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_bpf::object;

    #[test]
    fn objects_are_found_in_between() {
        let noise = [&b"\x7fELF"[..], &[0; 100]].concat();
        let binary = [&noise, object::LAB, &noise, object::VERDICT, b"\x7fEL"].concat();
        let found: Vec<&[u8]> = objects(&binary).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], object::LAB);
        assert!(objects(&binary[..binary.len() / 2]).count() <= 1);
    }
}
