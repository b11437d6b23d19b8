//! Several captures on one hook: a chain, an array of programs that each one jumps on into. At an interface the first
//! program is attached, and later captures come after it and hold the attachment open too. In the slots of a hook's map
//! the latest stands in front, so that a capture that is alone has nowhere to jump to, which the kernel makes a program
//! pay for. When the one in front leaves, the next takes its place without a gap.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use trawl_bpf::layout::{ALL, CHAIN_SLOTS};
use trawl_bpf::{link, map, program};
pub use trawl_program::hooks::{MAP_NAME, is_member};
use trawl_program::hooks::{ROWS, SEATS, SHARED_MAP_NAME, array_of, last_taken, row_of, seated};
use trawl_sys::privilege::Capabilities;
use trawl_sys::warden::{self, Undo};
use trawl_sys::{Error, Result};

/// A seat in a chain: a row of programs, one for each action of a hook, or one alone.
#[derive(Debug)]
pub struct CaptureSeat {
    map: Arc<OwnedFd>,
    row: u32,
    /// The row of the capture that comes after.
    next: Option<u32>,
    stride: u32,
    /// The programs that sit here.
    seated: Vec<u32>,
}

impl CaptureSeat {
    /// The head of a new chain that grows after it.
    pub fn first(stride: u32) -> Result<Self> {
        Self::new(MAP_NAME, stride, 0, Some(1))
    }

    /// The head of a new chain for many interfaces, where one program is attached to all of them.
    pub fn first_of_many() -> Result<Self> {
        Self::new(SHARED_MAP_NAME, 1, 0, Some(1))
    }

    /// The end of a new chain that grows in front of it: as long as it is alone there it jumps nowhere.
    pub fn last(stride: u32) -> Result<Self> {
        Self::new(MAP_NAME, stride, SEATS - 1, None)
    }

    fn new(name: &str, stride: u32, row: u32, next: Option<u32>) -> Result<Self> {
        Ok(Self {
            map: Arc::new(map::create_prog_array(name, ROWS * stride)?),
            row,
            next,
            stride,
            seated: Vec::new(),
        })
    }

    /// A free seat after all others in the chain of a program that is attached, if that program is trawl's.
    pub fn after(attached: u32, stride: u32) -> Result<Option<Self>> {
        let Some(map) = joinable(attached, stride)? else {
            return Ok(None);
        };
        let row = last_taken(map.as_fd(), stride).map_err(cannot_look)? + 1;
        if row >= SEATS {
            return Err(used_up());
        }
        Ok(Some(Self {
            map: Arc::new(map),
            row,
            next: Some(row + 1),
            stride,
            seated: Vec::new(),
        }))
    }

    /// A free seat in front of all others in the chain of a program that is attached, if that program is trawl's.
    pub fn in_front_of(attached: u32, stride: u32) -> Result<Option<Self>> {
        let Some(map) = joinable(attached, stride)? else {
            return Ok(None);
        };
        let Some(next) = row_of(map.as_fd(), stride, attached).map_err(cannot_look)? else {
            return Ok(None);
        };
        let row = next.checked_sub(1).ok_or_else(used_up)?;
        Ok(Some(Self {
            map: Arc::new(map),
            row,
            next: Some(next),
            stride,
            seated: Vec::new(),
        }))
    }

    pub fn map(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Whether programs in this chain are attached to many interfaces: each sees packets of all of them.
    pub fn is_for_many(&self) -> bool {
        map::info(self.map()).is_ok_and(|about| about.name == SHARED_MAP_NAME)
    }

    /// Whether the program that is attached jumps into this chain.
    pub fn is_of(&self, attached: u32) -> bool {
        let Ok(Some(other)) = array_of(attached, self.stride) else {
            return false;
        };
        let number = |map: BorrowedFd<'_>| map::info(map).map(|about| about.id).ok();
        number(self.map()) == number(other.as_fd())
    }

    /// What the warden does about a link that this seat's program is attached by, one of many.
    pub fn hand_over(&self, link: &Arc<OwnedFd>, own: &Arc<OwnedFd>) -> Box<dyn Undo> {
        Box::new(HandOver {
            link: Arc::downgrade(link),
            own: Arc::downgrade(own),
            chain: Arc::downgrade(&self.map),
            index: self.next(0),
        })
    }

    /// Makes the chain known by one of its programs: one that jumps nowhere does not name it by itself.
    pub fn mark(&self, program: &OwnedFd) -> Result<()> {
        program::bind_map(program, &self.map)
            .map_err(|e| Error::os("cannot tie a program to its chain of captures", e))
    }

    /// Takes the seat: from now on the programs before this one jump here.
    pub fn sit(&mut self, programs: &[OwnedFd]) -> io::Result<()> {
        for (offset, program) in (0u32..).zip(programs) {
            self.seated.push(program::id(program)?);
            map::set_program(
                self.map.as_fd(),
                self.row * self.stride + offset,
                program.as_fd(),
            )?;
        }
        Ok(())
    }

    /// Where this seat's programs jump on to, for one of the hook's actions: no place of the array if nobody can be
    /// there.
    pub fn next(&self, offset: u32) -> u32 {
        self.next
            .map_or(ALL as u32, |next| next * self.stride + offset)
    }

    /// Keeps what was at the hook before the first capture came, for the last one to put back.
    pub fn keep_before(&self, offset: u32, program: BorrowedFd<'_>) -> io::Result<()> {
        map::set_program(self.map.as_fd(), self.before(offset), program)
    }

    /// What was at the hook before the first capture came.
    pub fn kept_before(&self, offset: u32) -> io::Result<Option<OwnedFd>> {
        map::program_in(self.map.as_fd(), self.before(offset))?
            .map(program::open_by_id)
            .transpose()
    }

    fn before(&self, offset: u32) -> u32 {
        SEATS * self.stride + offset
    }

    /// Where the program is found that takes this seat's place, for one of the hook's actions.
    pub fn successor(&self, offset: u32) -> Result<Successor> {
        Ok(Successor {
            chain: warden::hold(self.map.as_fd())?,
            index: self.next(offset),
        })
    }

    /// The program that takes this seat's place now, if there is a next one.
    pub fn program_after(&self, offset: u32) -> Option<OwnedFd> {
        self.successor(offset).ok()?.program()
    }

    /// What the warden does about this seat if trawl is killed.
    pub fn leave_tasks(&self, programs: &[OwnedFd]) -> Result<Vec<Box<dyn Undo>>> {
        (0u32..)
            .zip(programs)
            .map(|(offset, program)| {
                let own =
                    program::id(program).map_err(|e| Error::os("cannot look at a program", e))?;
                let successor = self.successor(offset)?;
                Ok(Box::new(LeaveChain { own, successor }) as Box<dyn Undo>)
            })
            .collect()
    }

    /// Whether a program sits in this chain.
    pub fn holds(&self, id: u32) -> bool {
        matches!(row_of(self.map.as_fd(), self.stride, id), Ok(Some(_)))
    }

    /// The program that packets are to come to first.
    pub fn head(&self) -> Option<OwnedFd> {
        let first = (0..SEATS * self.stride)
            .find_map(|slot| map::program_in(self.map.as_fd(), slot).ok().flatten())?;
        program::open_by_id(first).ok()
    }

    /// Gives the seat up to the next program.
    pub fn leave(&mut self) {
        for (offset, own) in (0u32..).zip(std::mem::take(&mut self.seated)) {
            let next = self.program_after(offset);
            // Nothing is lost if this fails: the whole chain goes with its last holder.
            let _ = map::replace_program(self.map.as_fd(), own, next.as_ref().map(AsFd::as_fd));
        }
    }
}

/// What is to be in a hook's slots in the place of a capture in front that was killed: the next capture in its chain, or
/// what was there before. The kernel empties a chain when nobody holds it any more.
pub fn after_killed(head: u32, stride: u32) -> Result<Option<Vec<Option<OwnedFd>>>> {
    let Some(map) = array_of(head, stride)? else {
        return Ok(None);
    };
    let row = row_of(map.as_fd(), stride, head).map_err(cannot_look)?;
    let seat = CaptureSeat {
        map: Arc::new(map),
        row: row.unwrap_or_default(),
        next: row.map(|row| row + 1).filter(|next| *next < SEATS),
        stride,
        seated: Vec::new(),
    };
    let after = |slot| match seat.program_after(slot) {
        Some(program) => Ok(Some(program)),
        None => seat.kept_before(slot).map_err(cannot_look),
    };
    (0..stride).map(after).collect::<Result<_>>().map(Some)
}

/// The chain of a program that is attached, if it is trawl's and not too long already.
fn joinable(attached: u32, stride: u32) -> Result<Option<OwnedFd>> {
    let map = array_of(attached, stride)?;
    if let Some(map) = &map
        && seated(map.as_fd(), stride).map_err(cannot_look)? >= CHAIN_SLOTS as u32
    {
        let why = format!("{CHAIN_SLOTS} captures are on it already");
        return Err(
            Error::failed("cannot join the captures on this hook", why).fix("end one of them")
        );
    }
    Ok(map)
}

fn cannot_look(error: io::Error) -> Error {
    Error::os("cannot look at a chain of captures", error)
}

fn used_up() -> Error {
    let why = format!("{SEATS} have come and gone since the first");
    Error::failed("cannot join the captures on this hook", why)
        .fix("end all of these captures, then start them again")
}

/// The slot of a chain whose program, if there is one, takes over from the one that is gone.
#[derive(Debug)]
pub struct Successor {
    pub chain: OwnedFd,
    pub index: u32,
}

impl Successor {
    pub fn program(&self) -> Option<OwnedFd> {
        program_at(self.chain.as_fd(), self.index)
    }
}

fn program_at(chain: BorrowedFd<'_>, index: u32) -> Option<OwnedFd> {
    program::open_by_id(map::program_in(chain, index).ok()??).ok()
}

/// Rights to exchange programs, which are found by their numbers.
pub const TO_EXCHANGE_PROGRAMS: Capabilities = Capabilities::BPF.union(Capabilities::SYS_ADMIN);

/// Lets the next program have a seat in a chain.
#[derive(Debug)]
struct LeaveChain {
    own: u32,
    successor: Successor,
}

impl Undo for LeaveChain {
    fn undo(&self) -> Result<()> {
        let next = self.successor.program();
        let next = next.as_ref().map(AsFd::as_fd);
        map::replace_program(self.successor.chain.as_fd(), self.own, next)
            .map_err(|e| Error::os("cannot leave a chain of captures", e))
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.successor.chain.as_raw_fd()]
    }

    fn takes(&self) -> Capabilities {
        TO_EXCHANGE_PROGRAMS
    }
}

/// Lets the next program in a chain take over a link, one of many with the same program. The capture holds the
/// descriptors, and the task is over when it lets go of the link.
#[derive(Debug)]
struct HandOver {
    link: Weak<OwnedFd>,
    own: Weak<OwnedFd>,
    chain: Weak<OwnedFd>,
    index: u32,
}

impl Undo for HandOver {
    fn undo(&self) -> Result<()> {
        let held = (
            self.link.upgrade(),
            self.own.upgrade(),
            self.chain.upgrade(),
        );
        let (Some(link), Some(own), Some(chain)) = held else {
            return Ok(());
        };
        match program_at(chain.as_fd(), self.index) {
            Some(next) => link::replace_program(link.as_fd(), next.as_fd(), own.as_fd())
                .map_err(|e| Error::os("cannot hand a link over", e)),
            None => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        self.link.strong_count() == 0
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let held = [&self.link, &self.own, &self.chain].into_iter();
        let held = held.filter_map(Weak::upgrade);
        held.map(|one| one.as_raw_fd()).collect()
    }

    fn takes(&self) -> Capabilities {
        TO_EXCHANGE_PROGRAMS
    }
}

impl Drop for CaptureSeat {
    fn drop(&mut self) {
        self.leave();
    }
}
