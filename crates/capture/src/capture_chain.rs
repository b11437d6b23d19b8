//! Several captures on one hook: a chain, an array of programs, each of which jumps to the next. At an interface the
//! first program is attached, and later captures follow it and hold the attachment open too. In the slots of a hook's
//! map the latest capture stands in front, so that a lone capture has no jump, which would cost time. When the capture
//! in front leaves, the next one replaces it without a gap.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use trawl_bpf::layout::{ALL, CHAIN_SLOTS};
use trawl_bpf::{link, map, program};
pub use trawl_program::captures::{MAP_NAME, is_member};
use trawl_program::captures::{ROWS, SEATS, SHARED_MAP_NAME, array_of, last_taken, row_of, seated};
use trawl_sys::process::warden::{self, Undo};
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result};

/// A seat in a chain: a row of programs, one for each action of a hook, or a single program.
#[derive(Debug)]
pub struct CaptureSeat {
    map: Arc<OwnedFd>,
    row: u32,
    /// Row of the next capture.
    next: Option<u32>,
    stride: u32,
    /// The programs in this row.
    seated: Vec<u32>,
}

impl CaptureSeat {
    /// Creates a new chain and claims its head; later captures follow.
    pub fn first(stride: u32) -> Result<Self> {
        Self::new(MAP_NAME, stride, 0, Some(1))
    }

    /// Creates a new chain for many interfaces, with one program attached to all of them.
    pub fn first_of_many() -> Result<Self> {
        Self::new(SHARED_MAP_NAME, 1, 0, Some(1))
    }

    /// Creates a new chain and claims its end; later captures go in front. A lone capture there has no jump.
    pub fn last(stride: u32) -> Result<Self> {
        Self::new(MAP_NAME, stride, SEATS - 1, None)
    }

    fn new(name: &str, stride: u32, row: u32, next: Option<u32>) -> Result<Self> {
        Ok(Self { map: Arc::new(map::create_prog_array(name, ROWS * stride)?), row, next, stride, seated: Vec::new() })
    }

    /// Finds a free seat after all others in the chain of an attached program, if that program is trawl's.
    pub fn after(attached: u32, stride: u32) -> Result<Option<Self>> {
        let Some(map) = joinable(attached, stride)? else {
            return Ok(None);
        };
        let row = last_taken(map.as_fd(), stride).map_err(inspect_error)? + 1;
        if row >= SEATS {
            return Err(no_free_seat());
        }
        Ok(Some(Self { map: Arc::new(map), row, next: Some(row + 1), stride, seated: Vec::new() }))
    }

    /// Finds a free seat in front of all others in the chain of an attached program, if that program is trawl's.
    pub fn in_front_of(attached: u32, stride: u32) -> Result<Option<Self>> {
        let Some(map) = joinable(attached, stride)? else {
            return Ok(None);
        };
        let Some(next) = row_of(map.as_fd(), stride, attached).map_err(inspect_error)? else {
            return Ok(None);
        };
        let row = next.checked_sub(1).ok_or_else(no_free_seat)?;
        Ok(Some(Self { map: Arc::new(map), row, next: Some(next), stride, seated: Vec::new() }))
    }

    pub fn map(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Returns true if programs in this chain are attached to many interfaces and see the packets of all.
    pub fn is_for_many(&self) -> bool {
        map::info(self.map()).is_ok_and(|about| about.name == SHARED_MAP_NAME)
    }

    /// Returns true if the attached program jumps into this chain.
    pub fn is_of(&self, attached: u32) -> bool {
        let Ok(Some(other)) = array_of(attached, self.stride) else {
            return false;
        };
        let number = |map: BorrowedFd<'_>| map::info(map).map(|about| about.id).ok();
        number(self.map()) == number(other.as_fd())
    }

    /// Returns the warden's task for a link, one of many, that attaches this seat's program.
    pub fn hand_over(&self, link: &Arc<OwnedFd>, own: &Arc<OwnedFd>) -> Box<dyn Undo> {
        Box::new(HandOver {
            link: Arc::downgrade(link),
            own: Arc::downgrade(own),
            chain: Arc::downgrade(&self.map),
            index: self.next(0),
        })
    }

    /// Binds the chain to one of its programs: a program without a jump would not refer to it.
    pub fn mark(&self, program: &OwnedFd) -> Result<()> {
        program::bind_map(program, &self.map)
            .map_err(|e| Error::os("cannot bind a program to its chain of captures", e))
    }

    /// Takes the seat: the programs before this one jump here from now on.
    pub fn sit(&mut self, programs: &[OwnedFd]) -> io::Result<()> {
        for (offset, program) in (0u32..).zip(programs) {
            self.seated.push(program::id(program)?);
            map::set_program(self.map.as_fd(), self.row * self.stride + offset, program.as_fd())?;
        }
        Ok(())
    }

    /// Returns the slot that this seat's programs jump to, for one of the hook's actions; no slot of the array if no
    /// capture can follow.
    pub fn next(&self, offset: u32) -> u32 {
        self.next.map_or(ALL as u32, |next| next * self.stride + offset)
    }

    /// Keeps the program that the hook had before the first capture, for the last capture to restore.
    pub fn keep_before(&self, offset: u32, program: BorrowedFd<'_>) -> io::Result<()> {
        map::set_program(self.map.as_fd(), self.before(offset), program)
    }

    /// Returns the program that the hook had before the first capture.
    pub fn kept_before(&self, offset: u32) -> io::Result<Option<OwnedFd>> {
        map::program_in(self.map.as_fd(), self.before(offset))?.map(program::open_by_id).transpose()
    }

    fn before(&self, offset: u32) -> u32 {
        SEATS * self.stride + offset
    }

    /// Returns the successor of this seat, for one of the hook's actions.
    pub fn successor(&self, offset: u32) -> Result<Successor> {
        Ok(Successor { chain: warden::hold(self.map.as_fd())?, index: self.next(offset) })
    }

    /// Returns the program that replaces this seat's, if a next one exists.
    pub fn program_after(&self, offset: u32) -> Option<OwnedFd> {
        self.successor(offset).ok()?.program()
    }

    /// Returns the warden's tasks for this seat.
    pub fn leave_tasks(&self, programs: &[OwnedFd]) -> Result<Vec<Box<dyn Undo>>> {
        (0u32..)
            .zip(programs)
            .map(|(offset, program)| {
                let own = program::id(program).map_err(|e| Error::os("cannot inspect a program", e))?;
                let successor = self.successor(offset)?;
                Ok(Box::new(LeaveChain { own, successor }) as Box<dyn Undo>)
            })
            .collect()
    }

    /// Returns true if a program sits in this chain.
    pub fn holds(&self, id: u32) -> bool {
        matches!(row_of(self.map.as_fd(), self.stride, id), Ok(Some(_)))
    }

    /// Returns the first program of the chain.
    pub fn head(&self) -> Option<OwnedFd> {
        let first = (0..SEATS * self.stride).find_map(|slot| map::program_in(self.map.as_fd(), slot).ok().flatten())?;
        program::open_by_id(first).ok()
    }

    /// Hands the seat to the next program.
    pub fn leave(&mut self) {
        for (offset, own) in (0u32..).zip(std::mem::take(&mut self.seated)) {
            let next = self.program_after(offset);
            // A failure is harmless: the kernel frees the whole chain with its last holder.
            let _ = map::replace_program(self.map.as_fd(), own, next.as_ref().map(AsFd::as_fd));
        }
    }
}

/// A program, and its seat among the captures of its interfaces.
#[derive(Debug)]
pub(crate) struct Seated {
    pub seat: RefCell<CaptureSeat>,
    pub program: Arc<OwnedFd>,
    pub id: u32,
}

impl Seated {
    pub fn new(seat: CaptureSeat, program: OwnedFd) -> Result<Self> {
        Ok(Self {
            seat: RefCell::new(seat),
            id: program::id(&program).map_err(|e| Error::os("cannot inspect a program", e))?,
            program: Arc::new(program),
        })
    }

    pub fn sit(&self, label: &str) -> Result<()> {
        self.seat
            .borrow_mut()
            .sit(std::slice::from_ref(&*self.program))
            .map_err(|e| Error::os(format!("cannot join the capture on {label}"), e))
    }

    pub fn leave_tasks(&self) -> Result<Vec<Box<dyn Undo>>> {
        let seat = self.seat.borrow();
        seat.leave_tasks(std::slice::from_ref(&*self.program))
    }
}

/// Returns the programs that replace a killed capture in a hook's slots: the next capture of its chain, or the programs
/// from before. The kernel empties a chain with its last holder.
pub fn after_killed(head: u32, stride: u32) -> Result<Option<Vec<Option<OwnedFd>>>> {
    let Some(map) = array_of(head, stride)? else {
        return Ok(None);
    };
    let row = row_of(map.as_fd(), stride, head).map_err(inspect_error)?;
    let seat = CaptureSeat {
        map: Arc::new(map),
        row: row.unwrap_or_default(),
        next: row.map(|row| row + 1).filter(|next| *next < SEATS),
        stride,
        seated: Vec::new(),
    };
    let after = |slot| match seat.program_after(slot) {
        Some(program) => Ok(Some(program)),
        None => seat.kept_before(slot).map_err(inspect_error),
    };
    (0..stride).map(after).collect::<Result<_>>().map(Some)
}

/// Returns the chain of an attached program, if the program is trawl's and the chain has room.
fn joinable(attached: u32, stride: u32) -> Result<Option<OwnedFd>> {
    let map = array_of(attached, stride)?;
    if let Some(map) = &map
        && seated(map.as_fd(), stride).map_err(inspect_error)? >= CHAIN_SLOTS as u32
    {
        let why = format!("{CHAIN_SLOTS} captures already share it");
        return Err(Error::failed("cannot join the captures on this hook", why).fix("end one of them"));
    }
    Ok(map)
}

fn inspect_error(error: io::Error) -> Error {
    Error::os("cannot inspect a chain of captures", error)
}

fn no_free_seat() -> Error {
    let why = format!("all {SEATS} places in their chain are used");
    Error::failed("cannot join the captures on this hook", why).fix("end all of these captures, then start them again")
}

/// The slot of a chain whose program, if any, replaces a removed one.
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

/// Capabilities needed to exchange programs, which are opened by number.
pub const TO_EXCHANGE_PROGRAMS: Capabilities = Capabilities::BPF.union(Capabilities::SYS_ADMIN);

/// Task that hands a seat in a chain to the next program.
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

    fn needed_capabilities(&self) -> Capabilities {
        TO_EXCHANGE_PROGRAMS
    }
}

/// Task that hands a link, one of many with the same program, to the next program in the chain. The capture owns the
/// descriptors; the task is over when the capture drops the link.
#[derive(Debug)]
struct HandOver {
    link: Weak<OwnedFd>,
    own: Weak<OwnedFd>,
    chain: Weak<OwnedFd>,
    index: u32,
}

impl Undo for HandOver {
    fn undo(&self) -> Result<()> {
        let held = (self.link.upgrade(), self.own.upgrade(), self.chain.upgrade());
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
        let held = [&self.link, &self.own, &self.chain].into_iter().filter_map(Weak::upgrade);
        held.map(|one| one.as_raw_fd()).collect()
    }

    fn needed_capabilities(&self) -> Capabilities {
        TO_EXCHANGE_PROGRAMS
    }
}

impl Drop for CaptureSeat {
    fn drop(&mut self) {
        self.leave();
    }
}
