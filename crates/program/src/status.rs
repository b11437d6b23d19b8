//! The XDP programs on an interface and everything known about them: their chains, their maps, and the targets of their
//! redirects.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use trawl_attach::{Site, snapshot};
use trawl_bpf::bpffs::{self, Object, Pinned};
use trawl_bpf::layout::Shared;
use trawl_bpf::layout::bundled::RedirectConfig;
use trawl_bpf::loader::variables_of;
use trawl_bpf::owners::Owners;
use trawl_bpf::table::Table;
use trawl_bpf::{functions, info, map, program};
use trawl_sys::confirm::{self, Reverted};
use trawl_sys::netlink::Netlink;
use trawl_sys::{Error, Result};

use crate::chain;
use crate::chain::dispatcher::Dispatcher;
use crate::pins::{self, Installed};
use crate::swap;

/// An interface with its programs.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramStatus {
    /// The interface, in the syntax of `-i`.
    pub interface: String,
    pub namespace: Option<String>,
    pub index: u32,
    pub programs: Vec<Attached>,
    /// The last change with a time limit, if it was reverted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverted: Option<Reverted>,
}

/// A program that is attached to an interface.
#[derive(Clone, Debug, Serialize)]
pub struct Attached {
    /// `native`, `skb` or `offload`.
    pub mode: &'static str,
    #[serde(flatten)]
    pub program: ProgramFacts,
    pub kind: ProgramOrigin,
    /// The link that attaches it; `None` if it is attached by netlink.
    pub link: Option<u32>,
    /// Links of which one may attach it: links name an interface by its number, and other namespaces use the same
    /// numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub one_of_links: Vec<u32>,
    /// The chain that it begins, in order.
    pub chain: Vec<ChainMember>,
}

/// Origin of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramOrigin {
    /// trawl installed the program.
    Trawl,
    /// The program is the head of a chain by libxdp's protocol, which any tool may have loaded.
    Dispatcher,
    /// Another tool installed the program.
    Plain,
}

/// A member of a chain.
#[derive(Clone, Debug, Serialize)]
pub struct ChainMember {
    pub position: usize,
    pub priority: u32,
    /// Verdicts after which the next program runs.
    pub chain_actions: Vec<String>,
    #[serde(flatten)]
    pub program: ProgramFacts,
}

/// Facts about any program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProgramFacts {
    pub id: u32,
    /// The full name of its function.
    pub name: String,
    pub tag: String,
    /// The file that trawl loaded it from, or the bundled program's name; `None` if it is not trawl's.
    pub source: Option<String>,
    /// Processes that hold it, or the link that attaches it.
    pub held_by: Vec<String>,
    pub pins: Vec<PathBuf>,
    pub maps: Vec<u32>,
    /// Possible targets of its redirects.
    pub redirects: Vec<Redirect>,
    /// For trawl's helper on the other end of a veth: the program that needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helps: Option<String>,
    /// Settings of other interfaces that trawl made for it and that were lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// `None` while the kernel does not count, for members of a chain, which are counted with its head, and for a
    /// program that was removed during the measurement.
    pub runs: Option<Runs>,
}

/// Number of a program's runs, and their total duration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Runs {
    pub count: u64,
    pub ns: u64,
    pub ns_per_packet: Option<f64>,
    /// Duration of the measurement, if one was made.
    pub seconds: Option<f64>,
}

impl Runs {
    fn new(count: u64, ns: u64, seconds: Option<f64>) -> Self {
        Self { count, ns, ns_per_packet: (count > 0).then(|| ns as f64 / count as f64), seconds }
    }
}

/// Returns the programs on each of these interfaces. With a time to measure for, the kernel counts each program's runs
/// for that long; otherwise the counts are those since counting was enabled, if it is. Nothing else is changed.
pub fn of(sites: &[Site], measure: Option<Duration>) -> Result<Vec<ProgramStatus>> {
    let reader =
        StatusReader { owners: Owners::read_all(), pins: bpffs::pinned(), counting: info::statistics_are_on() };
    let mut all = Vec::new();
    for site in sites {
        match reader.at(site) {
            Ok(status) => all.push(status),
            // The interface was removed since the list was made.
            Err(_) if site.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(time) = measure {
        self::measure(&mut all, time)?;
    }
    Ok(all)
}

/// Facts that are read once for all programs of an interface.
struct Known {
    installed: Vec<Installed>,
    names: InterfaceNames,
}

impl Known {
    fn find(&self, program: u32) -> Option<&Installed> {
        self.installed.iter().find(|one| one.id() == program)
    }
}

/// Facts that are read once for all interfaces.
struct StatusReader {
    owners: Owners,
    pins: Vec<Pinned>,
    counting: bool,
}

impl StatusReader {
    fn at(&self, site: &Site) -> Result<ProgramStatus> {
        let known = Known { installed: Installed::all(site)?, names: InterfaceNames::of(site) };
        let mut programs = Vec::new();
        for present in site.link()?.xdp {
            let mut program = self.about(present.program_id, &known);
            let links = snapshot::links_of(site.index(), present);
            let links = links.iter().filter_map(|fd| info::link(fd.as_fd()).ok());
            let mut links: Vec<u32> = links.map(|about| about.id).collect();
            let link = match links.as_slice() {
                [_] => links.pop(),
                _ => None,
            };
            if let Some(link) = link {
                program.add_holders(self.owners.of_link(link));
                program.helps = pins::helped_by(link).map(|(site, name, id)| match site {
                    Some(site) => format!("{name} (id {id}) on {}", site.label()),
                    None => format!("{name} (id {id})"),
                });
            }
            if let Some(ours) = known.find(program.id) {
                program.lost = ours.lost(site);
            }
            let dispatcher = Dispatcher::read(program.id);
            let is_ours = program.source.is_some() || program.helps.is_some();
            let kind = match dispatcher {
                Some(_) => ProgramOrigin::Dispatcher,
                None if is_ours => ProgramOrigin::Trawl,
                None => ProgramOrigin::Plain,
            };
            programs.push(Attached {
                mode: present.mode.name(),
                program,
                kind,
                link,
                one_of_links: links,
                chain: match dispatcher {
                    Some(found) => self.chain(&found, &known),
                    None => self.jumps(present.program_id, &known),
                },
            });
        }
        Ok(ProgramStatus {
            interface: site.label().to_owned(),
            namespace: site.namespace().map(|one| one.label().to_owned()),
            index: site.index(),
            programs,
            reverted: confirm::reverted(&swap::scope(site)?)?,
        })
    }

    fn chain(&self, dispatcher: &Dispatcher, known: &Known) -> Vec<ChainMember> {
        let member = |one: &crate::chain::dispatcher::DispatcherMember| {
            let slot = dispatcher.config.slots.get(one.slot)?;
            Some(ChainMember {
                position: one.slot,
                priority: slot.priority,
                chain_actions: slot.actions.names(),
                program: self.linked(one.program, known),
            })
        };
        dispatcher.members.iter().filter_map(member).collect()
    }

    /// Returns the chain of trawl's own that begins with a program.
    fn jumps(&self, head: u32, known: &Known) -> Vec<ChainMember> {
        let after = chain::after(head);
        if after.is_empty() {
            return Vec::new();
        }
        let member = |(position, id): (usize, u32)| {
            let ours = known.find(id);
            let seat = ours.and_then(Installed::seat);
            ChainMember {
                position,
                priority: seat.map_or(0, |seat| seat.priority),
                chain_actions: seat.map_or_else(Vec::new, |seat| seat.actions().names()),
                program: self.linked(id, known),
            }
        };
        std::iter::once(head).chain(after).enumerate().map(member).collect()
    }

    /// Describes a member of a chain. The kernel counts only the runs of the program that it calls itself, and their
    /// duration covers the whole chain.
    fn linked(&self, id: u32, known: &Known) -> ProgramFacts {
        ProgramFacts { runs: None, ..self.about(id, known) }
    }

    fn about(&self, id: u32, known: &Known) -> ProgramFacts {
        let ours = known.find(id);
        let mut about =
            ProgramFacts { id, source: ours.map(|ours| ours.source().to_owned()), ..ProgramFacts::default() };
        let is_it = |pin: &&Pinned| matches!(&pin.object, Object::Program(found) if found.id == id);
        about.pins = self.pins.iter().filter(is_it).map(|pin| bpffs::usual_path(&pin.path)).collect();
        about.add_holders(self.owners.of_program(id));
        if let Ok(fd) = program::open_by_id(id)
            && let Ok(found) = info::program(fd.as_fd())
        {
            about.name = functions::name_of(fd.as_fd()).unwrap_or(found.name);
            about.tag = found.tag;
            about.maps = found.map_ids;
            about.runs = self.counting.then(|| Runs::new(found.run_count, found.run_time_ns, None));
        }
        // The name in the file is longer than the kernel's.
        if let Some(ours) = ours {
            about.name = ours.name().to_owned();
        }
        about.redirects = redirects_of(id, &about.name, &about.maps, &known.names);
        about
    }
}

impl ProgramFacts {
    fn add_holders(&mut self, holders: &[String]) {
        for holder in holders {
            if !self.held_by.contains(holder) {
                self.held_by.push(holder.clone());
            }
        }
    }

    /// Returns the run counts; `None` if the program was removed.
    fn counts(&self) -> Option<(u64, u64)> {
        let found = program::open_by_id(self.id).and_then(|fd| info::program(fd.as_fd()));
        found.ok().map(|found| (found.run_count, found.run_time_ns))
    }
}

fn measure(all: &mut [ProgramStatus], time: Duration) -> Result<()> {
    let _counting = info::enable_statistics().map_err(|e| {
        Error::os("cannot measure how long programs run", e)
            .fix(format!("this requires root (CAP_SYS_ADMIN) and Linux {} or newer", "5.8"))
    })?;
    let mut programs: Vec<&mut ProgramFacts> =
        all.iter_mut().flat_map(|one| &mut one.programs).map(|one| &mut one.program).collect();
    let before: Vec<_> = programs.iter().map(|one| one.counts()).collect();
    thread::sleep(time);
    for (about, before) in programs.iter_mut().zip(before) {
        about.runs = before.zip(about.counts()).map(|(before, after)| {
            Runs::new(after.0.saturating_sub(before.0), after.1.saturating_sub(before.1), Some(time.as_secs_f64()))
        });
    }
    Ok(())
}

/// A map and its users.
#[derive(Clone, Debug, Serialize)]
pub struct MapStatus {
    pub id: u32,
    pub name: String,
    /// The type, as bpftool names it.
    #[serde(rename = "type")]
    pub kind: String,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    /// Memory in bytes, if the kernel reports it.
    pub memory: Option<u64>,
    pub pins: Vec<PathBuf>,
    pub used_by: Vec<MapUser>,
}

/// A program that uses a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapUser {
    pub interface: String,
    pub id: u32,
    pub name: String,
}

/// Returns the maps of all programs on these interfaces, including those behind dispatchers, by number.
pub fn maps_of(sites: &[Site]) -> Result<Vec<MapStatus>> {
    let pins = bpffs::pinned();
    let mut maps: Vec<MapStatus> = Vec::new();
    let mut add = |interface: &str, program: &ProgramFacts| {
        let user = MapUser { interface: interface.to_owned(), id: program.id, name: program.name.clone() };
        for id in &program.maps {
            match maps.iter_mut().find(|one| one.id == *id) {
                Some(known) => known.used_by.push(user.clone()),
                None => maps.extend(describe(*id, &pins).map(|mut found| {
                    found.used_by.push(user.clone());
                    found
                })),
            }
        }
    };
    for status in of(sites, None)? {
        for attached in &status.programs {
            add(&status.interface, &attached.program);
            // The first program of a chain of trawl's own is attached itself.
            let behind = attached.chain.iter().map(|member| &member.program);
            for program in behind.filter(|one| one.id != attached.program.id) {
                add(&status.interface, program);
            }
        }
    }
    maps.sort_by_key(|one| one.id);
    Ok(maps)
}

fn describe(id: u32, pins: &[bpffs::Pinned]) -> Option<MapStatus> {
    let fd = map::open_by_id(id).ok()?;
    let about = info::map(fd.as_fd()).ok()?;
    let is_it = |pin: &&bpffs::Pinned| matches!(&pin.object, Object::Map(found) if found.id == id);
    Some(MapStatus {
        id,
        name: about.name,
        kind: info::map_kind_name(about.kind),
        key_size: about.key_size,
        value_size: about.value_size,
        max_entries: about.max_entries,
        flags: about.flags,
        memory: info::map_memory(fd.as_fd()),
        pins: pins.iter().filter(is_it).map(|pin| bpffs::usual_path(&pin.path)).collect(),
        used_by: Vec::new(),
    })
}

/// Programs that redirect by an interface's number, which they keep in a variable.
const BY_NUMBER: [&str; 2] = ["trawl_redirect", "trawl_far_redir"];
const CONFIG: &str = "config";
const CONSTANTS: &str = ".rodata";

/// A map that redirects packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Redirect {
    /// `null` for a program that redirects without a map.
    pub map_id: Option<u32>,
    pub map: Option<String>,
    /// `devmap`, `devmap_hash`, `cpumap`, `xskmap`, or `helper` without a map.
    #[serde(rename = "type")]
    pub kind: String,
    /// `null` if the kernel does not report them, as for an xskmap.
    pub targets: Option<Vec<RedirectEntry>>,
}

/// An entry of a redirect map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RedirectEntry {
    pub key: u32,
    #[serde(flatten)]
    pub to: RedirectExit,
    /// Id of the program that runs there first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<u32>,
}

/// An interface or a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum RedirectExit {
    Interface {
        /// `null` if no interface of the program's namespace has that number.
        interface: Option<String>,
        index: u32,
    },
    Cpu {
        cpu: u32,
        /// Maximum number of packets queued for it.
        queue: u32,
    },
}

/// Names of a namespace's interfaces by number.
#[derive(Debug, Default)]
pub struct InterfaceNames(HashMap<u32, String>);

impl InterfaceNames {
    pub fn of(site: &Site) -> Self {
        let links = Netlink::open(site.namespace()).and_then(|mut netlink| netlink.links());
        let links = links.unwrap_or_default().into_iter();
        Self(links.map(|link| (link.index, link.name)).collect())
    }

    fn interface(&self, index: u32) -> RedirectExit {
        RedirectExit::Interface { interface: self.0.get(&index).cloned(), index }
    }
}

/// Returns the redirects of a program with this number, name and these maps.
pub fn redirects_of(program: u32, name: &str, maps: &[u32], names: &InterfaceNames) -> Vec<Redirect> {
    let by_map = maps.iter().filter_map(|id| of_map(*id, names));
    let by_number = BY_NUMBER.contains(&name).then(|| by_number(program, maps, names)).flatten();
    by_map.chain(by_number).collect()
}

/// Returns the redirects of a map; `None` if it is of another kind, or was removed.
fn of_map(id: u32, names: &InterfaceNames) -> Option<Redirect> {
    let table = Table::open_by_id(id).ok()?;
    let about = table.about();
    let target = match about.kind {
        map::DEVMAP | map::DEVMAP_HASH => |_, value: u32, names: &InterfaceNames| names.interface(value),
        map::CPUMAP => |cpu, queue, _: &InterfaceNames| RedirectExit::Cpu { cpu, queue },
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
        Some(RedirectEntry {
            key,
            to: target(key, number(&value, 0)?, names),
            program: number(&value, 4).filter(|id| *id != 0),
        })
    };
    let keys = table.keys().ok()?;
    Some(redirect(&table, Some(keys.into_iter().filter_map(entry).collect())))
}

fn redirect(table: &Table, targets: Option<Vec<RedirectEntry>>) -> Redirect {
    let about = table.about();
    Redirect { map_id: Some(about.id), map: Some(about.name.clone()), kind: info::map_kind_name(about.kind), targets }
}

fn by_number(program: u32, maps: &[u32], names: &InterfaceNames) -> Option<Redirect> {
    let variables = variables_of(program, CONSTANTS)?;
    let (_, offset, size) = variables.into_iter().find(|(name, ..)| name == CONFIG)?;
    let tables = maps.iter().filter_map(|id| Table::open_by_id(*id).ok());
    let constants = { tables }.find(|table| table.about().name.ends_with(CONSTANTS))?;
    let bytes = constants.lookup(&[0; 4]).ok()??;
    let config = bytes.get(offset as usize..offset as usize + size)?;
    let index = RedirectConfig::from_bytes(config)?.target;
    let target = RedirectEntry { key: 0, to: names.interface(index), program: None };
    (index != 0).then(|| Redirect { map_id: None, map: None, kind: "helper".to_owned(), targets: Some(vec![target]) })
}
