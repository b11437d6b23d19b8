//! A program that is loaded.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_kernel::bpf::info;
use trawl_kernel::bpf::loader::LoadedFile;
use trawl_kernel::{Error, Result};

use crate::jump_chain::ChainSeat;
use crate::map_pins::Pins;
use crate::ready::{Change, Readiness};
use crate::record::Record;
use crate::tappable::{Fitted, HOOK};

/// A program that the kernel has, but that is not attached anywhere yet.
#[derive(Debug)]
pub struct Program {
    pub(super) file: LoadedFile,
    pub(super) fd: OwnedFd,
    pub(super) name: String,
    pub(super) source: String,
    pub(super) id: u32,
    pub(super) map_ids: Vec<u32>,
    pub(super) pins: Pins,
    pub(super) fitted: Fitted,
    pub(super) seat: Option<ChainSeat>,
    pub(super) changes: Vec<Change>,
    /// Keeps a program on the other end of a veth.
    pub(super) peer_link: Option<OwnedFd>,
    pub(super) plain_tag: Option<String>,
}

impl Program {
    /// The function's whole name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// The tag that it has without hooks, where that was asked for and can be told.
    pub(crate) fn plain_tag(&self) -> Option<&str> {
        self.plain_tag.as_deref()
    }

    /// One of the file's maps, by its name in the source, or one of those that came with its hooks.
    pub fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let hooks = self.fitted.maps.iter();
        let mut found = hooks.filter(|(found, _)| found == name);
        let hook = found.next().map(|(_, fd)| fd.as_fd());
        hook.or_else(|| self.file.map(name))
    }

    /// Another program that was loaded from the file.
    pub fn other(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.file.program(name)
    }

    /// The maps that the program and those that it jumps to use, by their names in the source. All of them matter: the
    /// kernel empties an array of programs that nobody holds, even if programs still jump through it.
    pub(crate) fn own_maps(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let is_own = |fd: &BorrowedFd<'_>| {
            info::map(*fd).is_ok_and(|about| self.map_ids.contains(&about.id))
        };
        let mut maps = self.file.maps();
        maps.retain(|(_, fd)| is_own(fd));
        let hooks = self.fitted.maps.iter();
        maps.extend(hooks.map(|(name, fd)| (name.clone(), fd.as_fd())));
        maps
    }

    /// Whether captures can enter it.
    pub(crate) fn is_tappable(&self) -> bool {
        self.map(HOOK).is_some()
    }

    /// Its place in a chain, if it is to be in one.
    pub(crate) fn seat(&self) -> Option<ChainSeat> {
        self.seat
    }

    /// What the person who loads it should know.
    pub fn notices(&self) -> &[String] {
        &self.fitted.notices
    }

    /// What was done to other interfaces for it, to be taken back when it is taken off.
    pub fn remember(&mut self, ready: &Readiness) -> Result<()> {
        self.changes = ready.changes().to_vec();
        let link = ready.link().map(|link| link.try_clone_to_owned());
        self.peer_link = link
            .transpose()
            .map_err(|e| Error::os("cannot hold a link", e))?;
        Ok(())
    }

    pub(crate) fn peer_link(&self) -> Option<&OwnedFd> {
        self.peer_link.as_ref()
    }

    /// The note of them is pinned.
    pub(crate) fn recorded(&mut self) {
        self.pins.recorded();
    }

    /// From now on the pins made while loading stay; the note of them.
    pub(crate) fn keep(&mut self) -> Record {
        Record {
            name: self.name.clone(),
            source: self.source.clone(),
            pins: self.pins.keep(),
            changes: self.changes.clone(),
            plain_tag: self.plain_tag.clone(),
            seat: self.seat,
        }
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
