//! The rules and policies of nftables, and the cgroups, that drop packets: bpf/drop/droppers.bpf.c.

use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, Object, ObjectBuilder};

use crate::kallsyms::Symbols;
use crate::layout::Shared;
use crate::layout::drop::NftRule;
use crate::table::Table;
use crate::{link, object, probe};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/droppers.bpf.o"));
const RULES: &str = "nft_rules";

/// The attached programs.
#[derive(Debug)]
pub struct Droppers {
    pub latest: OwnedFd,
    pub links: Vec<OwnedFd>,
    pub rules: Table,
}

impl Droppers {
    /// Attaches the programs; `None` if the kernel refuses programs at its functions.
    pub fn watch(symbols: &Symbols) -> Option<Self> {
        if probe::is_unwanted("fexit") {
            return None;
        }
        object::quiet_libbpf();
        // libbpf searches the types of the kernel's modules too, of which nftables often is one.
        let mut open = ObjectBuilder::default().open_memory(OBJECT).ok()?;
        let functions: Vec<String> = open.progs().filter_map(|one| function(one.section())).collect();
        let present = symbols.present(&functions);
        if present.is_empty() {
            return None;
        }
        for mut program in open.progs_mut() {
            let wanted = function(program.section()).is_some_and(|one| present.contains(&one));
            program.set_autoload(wanted);
        }
        let loaded = open.load().ok()?;
        let programs = loaded.progs().filter(|one| one.autoload());
        let links: Result<Vec<OwnedFd>, _> = programs.map(|one| link::attach_tracing(one.as_fd())).collect();
        Some(Self {
            latest: map(&loaded, object::DROPPERS_MAP)?,
            links: links.ok()?,
            rules: Table::new(map(&loaded, RULES)?).ok()?,
        })
    }
}

/// Returns the function at which the program of this section runs.
fn function(section: &std::ffi::OsStr) -> Option<String> {
    let (_, function) = section.to_str()?.split_once('/')?;
    Some(function.to_owned())
}

fn map(object: &Object, name: &str) -> Option<OwnedFd> {
    let map = object.maps().find(|map| map.name() == name)?;
    map.as_fd().try_clone_to_owned().ok()
}

/// Returns the rule or policy with this number.
pub fn rule(rules: &Table, number: u64) -> Option<NftRule> {
    let value = rules.lookup(&number.to_ne_bytes()).ok()??;
    NftRule::from_bytes(&value)
}
