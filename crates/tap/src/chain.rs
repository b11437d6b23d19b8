//! Several captures on one hook. The first program there is attached; later captures join its chain, an array of
//! programs that each one jumps on into, and hold the attachment open too. When the attached one leaves, the next
//! takes its place without a gap.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_kernel::bpf::{map, program};
use trawl_kernel::layout::CHAIN_SLOTS;
use trawl_kernel::warden::{self, Successor, Task};
use trawl_kernel::{Error, Result};
pub use trawl_program::captures::{MAP_NAME, is_member};
use trawl_program::captures::{array_of, last_taken};

/// A seat in a chain. Each slot holds `stride` programs, one for each action of a hook, or one alone.
#[derive(Debug)]
pub struct Seat {
    map: OwnedFd,
    slot: u32,
    stride: u32,
    /// The programs that sit here.
    seated: Vec<u32>,
}

impl Seat {
    /// The head of a new chain.
    pub fn first(stride: u32) -> Result<Self> {
        let map = map::create_prog_array(MAP_NAME, CHAIN_SLOTS as u32 * stride)?;
        Ok(Self {
            map,
            slot: 0,
            stride,
            seated: Vec::new(),
        })
    }

    /// A free seat behind all others in the chain of a program that is attached, if that program is trawl's.
    pub fn behind(attached: u32, stride: u32) -> Result<Option<Self>> {
        let Some(map) = array_of(attached, stride)? else {
            return Ok(None);
        };
        let slot = last_taken(map.as_fd(), stride)
            .map_err(|e| Error::os("cannot look at a chain of captures", e))?
            + 1;
        if slot >= CHAIN_SLOTS as u32 {
            let why = format!("{CHAIN_SLOTS} captures are on it already");
            return Err(
                Error::failed("cannot join the captures on this hook", why).mend("end one of them")
            );
        }
        Ok(Some(Self {
            map,
            slot,
            stride,
            seated: Vec::new(),
        }))
    }

    pub fn map(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Takes the seat: from now on the programs before this one jump here.
    pub fn sit(&mut self, programs: &[OwnedFd]) -> io::Result<()> {
        for (offset, program) in (0u32..).zip(programs) {
            self.seated.push(program::id(program)?);
            map::set_program(
                self.map.as_fd(),
                self.slot * self.stride + offset,
                program.as_fd(),
            )?;
        }
        Ok(())
    }

    /// Where this seat's programs jump on to, for one of the hook's actions.
    pub fn next(&self, offset: u32) -> u32 {
        (self.slot + 1) * self.stride + offset
    }

    /// Where the program is found that takes this seat's place, for one of the hook's actions.
    pub fn successor(&self, offset: u32) -> Result<Successor> {
        Ok(Successor {
            chain: warden::hold(self.map.as_fd())?,
            index: self.next(offset),
        })
    }

    /// The program that takes this seat's place now, if somebody sits behind.
    pub fn program_behind(&self, offset: u32) -> Option<OwnedFd> {
        self.successor(offset).ok()?.program()
    }

    /// What the warden does about this seat if trawl is killed.
    pub fn leave_tasks(&self, programs: &[OwnedFd]) -> Result<Vec<Task>> {
        (0u32..)
            .zip(programs)
            .map(|(offset, program)| {
                let own =
                    program::id(program).map_err(|e| Error::os("cannot look at a program", e))?;
                Ok(Task::LeaveChain {
                    own,
                    successor: self.successor(offset)?,
                })
            })
            .collect()
    }

    /// Gives the seat up to whoever sits behind.
    pub fn leave(&mut self) {
        for (offset, own) in (0u32..).zip(std::mem::take(&mut self.seated)) {
            let next = self.program_behind(offset);
            // Nothing is lost if this fails: the whole chain goes with its last holder.
            let _ = map::replace_program(self.map.as_fd(), own, next.as_ref().map(AsFd::as_fd));
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}
