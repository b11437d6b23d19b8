//! libxdp's dispatcher: one program on the interface that calls up to ten others in turn, each put in the place of one
//! of its functions (freplace). Read here, no matter what made it; made and changed in [`build`].

pub(crate) mod build;
pub mod config;
pub(crate) mod pins;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_kernel::bpf::table::Table;
use trawl_kernel::bpf::{functions, info, link, program};

use config::Config;

/// The main function's name, by which everyone tells a dispatcher.
const NAME: &str = "xdp_dispatcher";

/// Which function a program takes the place of. One that is alone takes that of the whole dispatcher, as with libxdp:
/// its packets then make no detour.
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
    /// Its place in the order.
    pub slot: usize,
    pub program: u32,
    /// It stands in for the dispatcher as a whole, of which nothing runs then.
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

    /// The numbers of the programs that it runs.
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

/// Which programs stand in for the dispatcher's functions, by the links that put them there. The pins that libxdp
/// keeps of them are not needed for it: they can be out of sight in another mount namespace.
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
        // A capture that looks at the dispatcher has a link to its function too.
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
