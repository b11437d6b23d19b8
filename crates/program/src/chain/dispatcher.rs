//! libxdp's dispatcher: one program on the interface that calls up to ten others in turn, each replacing one of its
//! functions (freplace). Dispatchers made by any tool are read and changed: a new dispatcher for a new set of programs
//! is exchanged for the old one, so that either the whole old chain or the whole new one is on the interface. Pins hold
//! the programs behind it, in the paths that libxdp expects.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use trawl_attach::site::make_directory;
use trawl_attach::{AttachPlan, Owner, Refused, Site, apply};
use trawl_bpf::loader::ObjectFile;
use trawl_bpf::table::Table;
use trawl_bpf::{bpffs, functions, info, link, object, program};
use trawl_sys::lock::{self, Rank};
use trawl_sys::netlink::{XdpAttachment, XdpMode};
use trawl_sys::{Error, Result};

use crate::chain::Actions;
use crate::explain;
use crate::load::{Program, Role, Source};

/// Name of the main function, by which all tools recognize a dispatcher.
const NAME: &str = "xdp_dispatcher";

/// Returns the function that a program replaces. A single program replaces the whole dispatcher, as with libxdp, which
/// saves its packets a detour.
pub(crate) fn function_of(slot: usize, programs: usize) -> String {
    match programs {
        1 => NAME.to_owned(),
        _ => format!("prog{slot}"),
    }
}

/// A dispatcher that is loaded.
#[derive(Debug)]
pub struct Dispatcher {
    pub id: u32,
    pub config: Config,
    pub members: Vec<Member>,
}

/// A program behind a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Position in the order.
    pub slot: usize,
    pub program: u32,
    /// Set if the program replaces the whole dispatcher, of which nothing runs then.
    pub whole: bool,
}

impl Dispatcher {
    /// `None` if the program is not a dispatcher.
    pub fn read(id: u32) -> Option<Self> {
        let fd = program::open_by_id(id).ok()?;
        let about = info::program(fd.as_fd()).ok()?;
        if about.name != NAME {
            return None;
        }
        let config = about.map_ids.iter().find_map(|map| read_config(*map))?;
        Some(Self {
            id,
            members: members(id, fd.as_fd(), config.slots.len()),
            config,
        })
    }

    /// Returns the numbers of the programs that it runs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.program)
    }
}

fn read_config(map: u32) -> Option<Config> {
    let table = Table::open_by_id(map).ok()?;
    if table.about().max_entries != 1 || table.about().key_size != 4 {
        return None;
    }
    Config::parse(&table.lookup(&[0; 4]).ok()??)
}

/// Finds the programs that replace the dispatcher's functions by their links. libxdp's pins of them are not needed for
/// it: another mount namespace may hide them.
fn members(id: u32, dispatcher: BorrowedFd<'_>, slots: usize) -> Vec<Member> {
    let functions = functions::of(dispatcher).unwrap_or_default();
    let slot_of = |type_id: u32| {
        let function = functions.iter().find(|one| one.type_id == type_id)?;
        if function.name == NAME {
            return Some((0, true));
        }
        let slot: usize = function.name.strip_prefix("prog")?.parse().ok()?;
        (slot < slots).then_some((slot, false))
    };
    let member = |fd: OwnedFd| {
        let about = info::link(fd.as_fd()).ok()?;
        let (target, function) = about.function?;
        if target != id {
            return None;
        }
        // A capture on the dispatcher has a link to its function too.
        let stands_in = program::open_by_id(about.program)
            .and_then(|fd| info::program(fd.as_fd()))
            .is_ok_and(|found| found.kind == program::EXTENSION);
        if !stands_in {
            return None;
        }
        let (slot, whole) = slot_of(function)?;
        Some(Member {
            slot,
            program: about.program,
            whole,
        })
    };
    let links = link::all_ids();
    let open = links.into_iter().filter_map(|id| link::open_by_id(id).ok());
    let mut found: Vec<Member> = open.filter_map(member).collect();
    found.sort_by_key(|one| one.slot);
    found
}

/// Maximum number of programs behind one dispatcher.
pub const SLOTS: usize = 10;
const MAGIC: u8 = 236;
/// Version of the dispatchers that trawl writes; used by libxdp since 1.3.
pub const VERSION: u8 = 2;
const LENGTH: usize = 4 + 3 * 4 * SLOTS;
/// Length of the first version's configuration, which had neither magic nor flags.
const LENGTH_1: usize = 4 + 2 * 4 * SLOTS;

/// One slot's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Verdicts after which the next program runs.
    pub actions: Actions,
    /// Lower ones run first.
    pub priority: u32,
    /// The `BPF_F_…` load flags of the program that affect the dispatcher.
    pub flags: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub version: u8,
    /// Set if the dispatcher accepts packets in several pieces.
    pub frags: bool,
    pub slots: Vec<Slot>,
}

impl Config {
    /// Parses the configuration that a dispatcher was loaded with; `None` if it is not a dispatcher's.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        let (version, count, frags) = match (bytes.len(), bytes.first()?) {
            (LENGTH, &MAGIC) => (bytes[1], bytes[2], bytes[3] != 0),
            (LENGTH_1, count) => (1, *count, false),
            _ => return None,
        };
        if usize::from(count) > SLOTS {
            return None;
        }
        let slot = |index: usize| {
            let row = |number: usize| word(4 + (number * SLOTS + index) * 4);
            Some(Slot {
                actions: Actions::from_bits(row(0)?),
                priority: row(1)?,
                flags: if version > 1 { row(2)? } else { 0 },
            })
        };
        Some(Self {
            version,
            frags,
            slots: (0..usize::from(count)).map(slot).collect::<Option<_>>()?,
        })
    }

    /// Encodes the configuration for the load of a dispatcher.
    pub fn bytes(&self) -> Vec<u8> {
        let mut words = [[0u32; SLOTS]; 3];
        for (index, slot) in self.slots.iter().take(SLOTS).enumerate() {
            words[0][index] = slot.actions.bits();
            words[1][index] = slot.priority;
            words[2][index] = slot.flags;
        }
        let mut bytes = vec![
            MAGIC,
            VERSION,
            self.slots.len().min(SLOTS) as u8,
            u8::from(self.frags),
        ];
        bytes.extend(words.iter().flatten().flat_map(|word| word.to_ne_bytes()));
        bytes
    }
}

/// A program for the chain.
#[derive(Debug)]
pub enum Part {
    /// In the chain already, loaded by any tool.
    Present { program: OwnedFd, slot: Slot },
    New {
        name: String,
        source: Box<Source>,
        slot: Slot,
    },
}

impl Part {
    fn slot(&self) -> Slot {
        match self {
            Self::Present { slot, .. } | Self::New { slot, .. } => *slot,
        }
    }

    /// Orders by priority, then by name, with present programs first, as libxdp does.
    fn order(&self) -> (u32, String, bool) {
        let priority = self.slot().priority;
        match self {
            Self::Present { program, .. } => (
                priority,
                functions::name_of(program.as_fd()).unwrap_or_default(),
                false,
            ),
            Self::New { name, .. } => (priority, name.clone(), true),
        }
    }
}

/// Returns the parts of a dispatcher on the interface.
pub fn parts_of(dispatcher: &Dispatcher) -> Result<Vec<Part>> {
    let what = "cannot change the chain of programs";
    if dispatcher.config.version != VERSION {
        return Err(Error::failed(
            what,
            format!(
                "its dispatcher is of version {}, and only version {VERSION} can be changed",
                dispatcher.config.version
            ),
        )
        .fix("unload its programs, and load them again with their own tool"));
    }
    if dispatcher.members.len() != dispatcher.config.slots.len() {
        return Err(Error::failed(
            what,
            format!(
                "of its {} programs only {} can be found",
                dispatcher.config.slots.len(),
                dispatcher.members.len()
            ),
        ));
    }
    let part = |member: &Member| {
        let program = program::open_by_id(member.program)
            .map_err(|e| Error::os(format!("cannot open program {}", member.program), e))?;
        Ok(Part::Present {
            program,
            slot: dispatcher.config.slots[member.slot],
        })
    };
    dispatcher.members.iter().map(part).collect()
}

/// A dispatcher with its programs, not attached to an interface yet.
#[derive(Debug)]
pub struct Built {
    /// The new program, if one was added.
    pub program: Option<Program>,
    dispatcher: OwnedFd,
    pins: DispatcherPins,
}

impl Built {
    /// Returns the program that begins the chain.
    pub fn head(&self) -> BorrowedFd<'_> {
        self.dispatcher.as_fd()
    }
}

/// Builds a dispatcher from these parts.
pub fn build(site: &Site, mut parts: Vec<Part>, lock: &DispatcherLock) -> Result<Built> {
    parts.sort_by_cached_key(Part::order);
    let config = Config {
        version: VERSION,
        frags: parts
            .iter()
            .all(|part| part.slot().flags & program::HAS_FRAGS != 0),
        slots: parts.iter().map(Part::slot).collect(),
    };
    let dispatcher = load(&config)?;
    let id = info::program(dispatcher.as_fd())
        .map_err(|e| Error::os("cannot read the dispatcher's properties", e))?
        .id;
    let functions = functions::of(dispatcher.as_fd())
        .map_err(|e| Error::os("cannot read the dispatcher's functions", e))?;
    let pins = DispatcherPins::new(lock.of(site, id))?;
    let mut added = None;
    for (slot, part) in parts.into_iter().enumerate() {
        let name = function_of(slot, config.slots.len());
        let function = functions
            .iter()
            .find(|one| one.name == name)
            .ok_or_else(|| {
                Error::failed(
                    "cannot build a chain",
                    format!("the function {name} is missing"),
                )
            })?;
        let program = match part {
            Part::Present { program, .. } => program,
            Part::New { source, .. } => {
                let role = Role::Instead {
                    of: dispatcher.as_fd(),
                    function: &name,
                };
                let program = added.insert(source.load_as(site, role)?);
                program
                    .as_fd()
                    .try_clone_to_owned()
                    .map_err(|e| Error::os("cannot hold a program", e))?
            }
        };
        let link = link::replace_function(program.as_fd(), dispatcher.as_fd(), function.type_id)
            .map_err(|e| Error::os(format!("cannot replace {name} by a program"), e))?;
        pins.add(slot, &program, &link)?;
    }
    Ok(Built {
        program: added,
        dispatcher,
        pins,
    })
}

impl Built {
    /// Attaches the dispatcher as planned, and removes the pins of a dispatcher that it replaces.
    pub fn attach(
        &mut self,
        site: &Site,
        plan: &AttachPlan,
        old_dispatcher: Option<u32>,
        lock: &DispatcherLock,
    ) -> Result<XdpMode, Refused> {
        let attached = apply(site, self.dispatcher.as_fd(), plan, &Owner::default())?;
        self.pins.keep();
        if let Some(old) = old_dispatcher {
            remove_pins(&lock.of(site, old));
        }
        Ok(attached.mode)
    }
}

/// Removes a whole dispatcher, and releases all of its programs.
pub fn remove(site: &Site, attachment: XdpAttachment, lock: &DispatcherLock) -> Result<()> {
    let what = || format!("cannot remove the dispatcher from {}", site.label());
    apply::remove(site, attachment).map_err(|refusal| refusal.about(what()))?;
    remove_pins(&lock.of(site, attachment.program_id));
    Ok(())
}

fn load(config: &Config) -> Result<OwnedFd> {
    let mut file =
        ObjectFile::open(NAME, object::DISPATCHER).map_err(|e| explain::cannot_open(NAME, &e))?;
    file.want(&[NAME]);
    if config.frags {
        file.set_flags(NAME, program::HAS_FRAGS);
    }
    file.set_variable("conf", &config.bytes())?;
    let loaded = file
        .load()
        .map_err(|e| explain::cannot_load("the chain of programs", NAME, &e))?;
    let fd = loaded
        .program(NAME)
        .ok_or_else(|| Error::failed("cannot build a chain", "the dispatcher was left out"))?;
    fd.try_clone_to_owned()
        .map_err(|e| Error::os("cannot hold the dispatcher", e))
}

/// Directory of libxdp's BPF file system, if not the usual one.
const VARIABLE: &str = "LIBXDP_BPFFS";
const DIRECTORY: &str = "xdp";

/// Exclusive right to change dispatchers of any tool.
#[derive(Debug)]
pub struct DispatcherLock {
    directory: PathBuf,
    _lock: lock::Lock,
}

impl DispatcherLock {
    pub fn take() -> Result<Self> {
        let mount = match std::env::var_os(VARIABLE) {
            Some(path) => PathBuf::from(path),
            None => bpffs::lasting_or_mounted()?,
        };
        let directory = mount.join(DIRECTORY);
        make_directory(&directory)?;
        Ok(Self {
            _lock: lock::Lock::shared_with_others(Rank::Dispatchers, &directory)?,
            directory,
        })
    }

    /// Returns the directory of a dispatcher's pins.
    pub fn of(&self, site: &Site, dispatcher: u32) -> PathBuf {
        self.directory
            .join(format!("dispatch-{}-{dispatcher}", site.index()))
    }
}

/// The pins of a dispatcher under construction; removed on drop unless they are kept.
#[derive(Debug)]
pub struct DispatcherPins {
    directory: PathBuf,
    kept: bool,
}

impl DispatcherPins {
    pub fn new(directory: PathBuf) -> Result<Self> {
        make_directory(&directory)?;
        Ok(Self {
            directory,
            kept: false,
        })
    }

    pub fn add(&self, slot: usize, program: &OwnedFd, link: &OwnedFd) -> Result<()> {
        bpffs::pin(program.as_fd(), &program_path(&self.directory, slot))?;
        bpffs::pin(link.as_fd(), &link_path(&self.directory, slot))
    }

    pub fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for DispatcherPins {
    fn drop(&mut self) {
        if !self.kept {
            remove_pins(&self.directory);
        }
    }
}

/// Removes a dispatcher's pins.
pub fn remove_pins(directory: &Path) {
    for slot in 0..SLOTS {
        let _ = fs::remove_file(link_path(directory, slot));
        let _ = fs::remove_file(program_path(directory, slot));
    }
    let _ = fs::remove_dir(directory);
}

fn program_path(directory: &Path, slot: usize) -> PathBuf {
    directory.join(format!("prog{slot}-prog"))
}

fn link_path(directory: &Path, slot: usize) -> PathBuf {
    directory.join(format!("prog{slot}-link"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let slot = |priority| Slot {
            actions: Actions::DEFAULT,
            priority,
            flags: 32,
        };
        Config {
            version: VERSION,
            frags: true,
            slots: vec![slot(10), slot(50)],
        }
    }

    #[test]
    fn encoded_config_parses_to_itself() {
        let bytes = config().bytes();
        assert_eq!(bytes.len(), 124);
        assert_eq!(&bytes[..4], [236, 2, 2, 1]);
        assert_eq!(Config::parse(&bytes), Some(config()));
    }

    #[test]
    fn first_version_is_read() {
        let mut bytes = vec![1, 0, 0, 0];
        bytes.extend([1u32 << 2].map(u32::to_ne_bytes).concat());
        bytes.resize(4 + 40, 0);
        bytes.extend(7u32.to_ne_bytes());
        bytes.resize(84, 0);
        let read = Config::parse(&bytes).unwrap();
        assert_eq!((read.version, read.slots.len()), (1, 1));
        assert_eq!(read.slots[0].priority, 7);
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(Config::parse(&[]), None);
        assert_eq!(Config::parse(&[1; 124]), None);
        let mut bytes = config().bytes();
        bytes[2] = 11;
        assert_eq!(Config::parse(&bytes), None);
        bytes.push(0);
        assert_eq!(Config::parse(&bytes), None);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(0u8.., 0..130), magic: bool) {
            let mut bytes = bytes;
            if magic {
                bytes.resize(LENGTH, 0);
                bytes[..2].copy_from_slice(&[MAGIC, VERSION]);
            }
            if let Some(config) = Config::parse(&bytes) {
                assert!(config.slots.len() <= SLOTS);
                if config.version == VERSION {
                    assert_eq!(Config::parse(&config.bytes()), Some(config));
                }
            }
        }
    }
}
