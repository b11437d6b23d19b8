//! Where a program can redirect packets to: the entries of its maps of interfaces, CPUs and sockets, as the kernel has
//! them, and the one interface of a bundled program that names it by number.

use std::collections::HashMap;

use serde::Serialize;
use trawl_kernel::bpf::loader::variables_of;
use trawl_kernel::bpf::table::Table;
use trawl_kernel::bpf::{info, map};
use trawl_kernel::layout::Shared;
use trawl_kernel::layout::bundled::RedirectConfig;
use trawl_kernel::netlink::Netlink;

use trawl_attach::Site;

/// The programs that redirect by the number of an interface, and what holds it.
const BY_NUMBER: [&str; 2] = ["trawl_redirect", "trawl_far_redir"];
const CONFIG: &str = "config";
const CONSTANTS: &str = ".rodata";

/// A map that sends packets on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Redirect {
    /// `null` for a program that redirects without a map.
    pub map_id: Option<u32>,
    pub map: Option<String>,
    /// `devmap`, `devmap_hash`, `cpumap`, `xskmap`, or `helper` without a map.
    #[serde(rename = "type")]
    pub kind: String,
    /// `null` where the kernel does not tell them, as those of an xskmap.
    pub targets: Option<Vec<Target>>,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    pub key: u32,
    #[serde(flatten)]
    pub to: To,
    /// The id of the program that runs there first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<u32>,
}

/// An interface or a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum To {
    Interface {
        /// `null` where no interface of the program's namespace has that number.
        interface: Option<String>,
        index: u32,
    },
    Cpu {
        cpu: u32,
        /// How many packets wait for it at most.
        queue: u32,
    },
}

/// Names of a namespace's interfaces by their numbers.
#[derive(Debug, Default)]
pub struct Names(HashMap<u32, String>);

impl Names {
    pub fn of(site: &Site) -> Self {
        let links = Netlink::open(site.namespace()).and_then(|mut netlink| netlink.links());
        let links = links.unwrap_or_default().into_iter();
        Self(links.map(|link| (link.index, link.name)).collect())
    }

    fn interface(&self, index: u32) -> To {
        To::Interface {
            interface: self.0.get(&index).cloned(),
            index,
        }
    }
}

/// The redirects of a program with this number, name and these maps.
pub fn of(program: u32, name: &str, maps: &[u32], names: &Names) -> Vec<Redirect> {
    let by_map = maps.iter().filter_map(|id| of_map(*id, names));
    let by_number = BY_NUMBER
        .contains(&name)
        .then(|| by_number(program, maps, names))
        .flatten();
    by_map.chain(by_number).collect()
}

/// `None` for a map of another kind, or one that is gone.
fn of_map(id: u32, names: &Names) -> Option<Redirect> {
    let table = Table::open_by_id(id).ok()?;
    let about = table.about();
    let target = match about.kind {
        map::DEVMAP | map::DEVMAP_HASH => |_, value: u32, names: &Names| names.interface(value),
        map::CPUMAP => |cpu, queue, _: &Names| To::Cpu { cpu, queue },
        map::XSKMAP => return Some(redirect(&table, None)),
        _ => return None,
    };
    let entry = |key: Vec<u8>| {
        let value = table.lookup(&key).ok()??;
        let number = |bytes: &[u8], at: usize| {
            let four = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(four))
        };
        let key = number(&key, 0)?;
        Some(Target {
            key,
            to: target(key, number(&value, 0)?, names),
            program: number(&value, 4).filter(|id| *id != 0),
        })
    };
    let keys = table.keys().ok()?;
    Some(redirect(
        &table,
        Some(keys.into_iter().filter_map(entry).collect()),
    ))
}

fn redirect(table: &Table, targets: Option<Vec<Target>>) -> Redirect {
    let about = table.about();
    Redirect {
        map_id: Some(about.id),
        map: Some(about.name.clone()),
        kind: info::map_kind_name(about.kind),
        targets,
    }
}

fn by_number(program: u32, maps: &[u32], names: &Names) -> Option<Redirect> {
    let variables = variables_of(program, CONSTANTS)?;
    let (_, offset, size) = variables.into_iter().find(|(name, ..)| name == CONFIG)?;
    let tables = maps.iter().filter_map(|id| Table::open_by_id(*id).ok());
    let constants = { tables }.find(|table| table.about().name.ends_with(CONSTANTS))?;
    let bytes = constants.lookup(&[0; 4]).ok()??;
    let config = bytes.get(offset as usize..offset as usize + size)?;
    let index = RedirectConfig::from_bytes(config)?.target;
    let target = Target {
        key: 0,
        to: names.interface(index),
        program: None,
    };
    (index != 0).then(|| Redirect {
        map_id: None,
        map: None,
        kind: "helper".to_owned(),
        targets: Some(vec![target]),
    })
}
