//! libxdp's dispatcher: one program on the interface that calls up to ten others in turn, each replacing one of its
//! functions (freplace). Dispatchers made by any tool are read.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::table::Table;
use trawl_bpf::{functions, info, link, program};

use crate::chain::Actions;

/// Name of the main function, by which all tools recognize a dispatcher.
pub(crate) const NAME: &str = "xdp_dispatcher";

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
    pub config: DispatcherConfig,
    pub members: Vec<DispatcherMember>,
}

/// A program behind a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatcherMember {
    /// Position in the order.
    pub slot: usize,
    pub program: u32,
    /// Set if the program replaces the whole dispatcher, of which nothing runs then.
    pub whole: bool,
}

impl Dispatcher {
    /// Reads a dispatcher; `None` if the program is not one.
    pub fn read(id: u32) -> Option<Self> {
        let fd = program::open_by_id(id).ok()?;
        let about = info::program(fd.as_fd()).ok()?;
        if about.name != NAME {
            return None;
        }
        let config = about.map_ids.iter().find_map(|map| read_config(*map))?;
        Some(Self { id, members: members(id, fd.as_fd(), config.slots.len()), config })
    }

    /// Returns the numbers of the programs that it runs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.program)
    }
}

fn read_config(map: u32) -> Option<DispatcherConfig> {
    let table = Table::open_by_id(map).ok()?;
    if table.about().max_entries != 1 || table.about().key_size != 4 {
        return None;
    }
    DispatcherConfig::parse(&table.lookup(&[0; 4]).ok()??)
}

/// Finds the programs that replace the dispatcher's functions by their links. libxdp's pins of them are not needed for
/// it: another mount namespace may hide them.
fn members(id: u32, dispatcher: BorrowedFd<'_>, slots: usize) -> Vec<DispatcherMember> {
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
        Some(DispatcherMember { slot, program: about.program, whole })
    };
    let links = link::all_ids();
    let open = links.into_iter().filter_map(|id| link::open_by_id(id).ok());
    let mut found: Vec<DispatcherMember> = open.filter_map(member).collect();
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
pub struct DispatcherSlot {
    /// Verdicts after which the next program runs.
    pub actions: Actions,
    /// Programs with lower priorities run first.
    pub priority: u32,
    /// The `BPF_F_…` load flags of the program that affect the dispatcher.
    pub flags: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatcherConfig {
    pub version: u8,
    /// Set if the dispatcher accepts packets in several pieces.
    pub frags: bool,
    pub slots: Vec<DispatcherSlot>,
}

impl DispatcherConfig {
    /// Parses the configuration that a dispatcher was loaded with; `None` if it is not a dispatcher's.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| -> Option<u32> { Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?)) };
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
            Some(DispatcherSlot {
                actions: Actions::from_bits(row(0)?),
                priority: row(1)?,
                flags: if version > 1 { row(2)? } else { 0 },
            })
        };
        Some(Self { version, frags, slots: (0..usize::from(count)).map(slot).collect::<Option<_>>()? })
    }

    /// Encodes the configuration for the load of a dispatcher.
    pub fn bytes(&self) -> Vec<u8> {
        let mut words = [[0u32; SLOTS]; 3];
        for (index, slot) in self.slots.iter().take(SLOTS).enumerate() {
            words[0][index] = slot.actions.bits();
            words[1][index] = slot.priority;
            words[2][index] = slot.flags;
        }
        let mut bytes = vec![MAGIC, VERSION, self.slots.len().min(SLOTS) as u8, u8::from(self.frags)];
        bytes.extend(words.iter().flatten().flat_map(|word| word.to_ne_bytes()));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> DispatcherConfig {
        let slot = |priority| DispatcherSlot { actions: Actions::DEFAULT, priority, flags: 32 };
        DispatcherConfig { version: VERSION, frags: true, slots: vec![slot(10), slot(50)] }
    }

    #[test]
    fn encoded_config_parses_to_itself() {
        let bytes = config().bytes();
        assert_eq!(bytes.len(), 124);
        assert_eq!(&bytes[..4], [236, 2, 2, 1]);
        assert_eq!(DispatcherConfig::parse(&bytes), Some(config()));
    }

    #[test]
    fn first_version_is_read() {
        let mut bytes = vec![1, 0, 0, 0];
        bytes.extend([1u32 << 2].map(u32::to_ne_bytes).concat());
        bytes.resize(4 + 40, 0);
        bytes.extend(7u32.to_ne_bytes());
        bytes.resize(84, 0);
        let read = DispatcherConfig::parse(&bytes).unwrap();
        assert_eq!((read.version, read.slots.len()), (1, 1));
        assert_eq!(read.slots[0].priority, 7);
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(DispatcherConfig::parse(&[]), None);
        assert_eq!(DispatcherConfig::parse(&[1; 124]), None);
        let mut bytes = config().bytes();
        bytes[2] = 11;
        assert_eq!(DispatcherConfig::parse(&bytes), None);
        bytes.push(0);
        assert_eq!(DispatcherConfig::parse(&bytes), None);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(0u8.., 0..130), magic: bool) {
            let mut bytes = bytes;
            if magic {
                bytes.resize(LENGTH, 0);
                bytes[..2].copy_from_slice(&[MAGIC, VERSION]);
            }
            if let Some(config) = DispatcherConfig::parse(&bytes) {
                assert!(config.slots.len() <= SLOTS);
                if config.version == VERSION {
                    assert_eq!(DispatcherConfig::parse(&config.bytes()), Some(config));
                }
            }
        }
    }
}
