//! What trawl keeps of an installed program in the BPF file system, held while another program has its place for a time,
//! and made again when it is put back.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use trawl_attach::site::{Site, make_directory};
use trawl_kernel::{Result, bpffs};

use crate::installed::{Installed, MAPS, PEER_LINK, PROGRAM, RECORD};
use crate::ready::Readiness;
use crate::record::Record;

#[derive(Debug)]
pub(crate) struct Keepsake {
    record: Record,
    /// By the names of their pins.
    maps: Vec<(PathBuf, OwnedFd)>,
    needs_peer: bool,
}

impl Keepsake {
    pub fn of(installed: &Installed) -> Self {
        let pins = fs::read_dir(installed.maps_directory());
        let names = pins.into_iter().flatten().flatten();
        let maps = names.filter_map(|pin| {
            let map = bpffs::open_map(&pin.path()).ok()?;
            Some((PathBuf::from(pin.file_name()), map))
        });
        // Pins that were made elsewhere go with the program, and are the file's own to make.
        let record = Record {
            pins: Vec::new(),
            ..installed.record().clone()
        };
        Self {
            record,
            maps: maps.collect(),
            needs_peer: installed.peer_link().is_some(),
        }
    }

    /// The program is attached again: pins it with its record and maps, and makes ready what it needs.
    pub fn restore(&self, site: &Site, id: u32, program: BorrowedFd<'_>) -> Result<()> {
        let mut ready = Readiness::again(&self.record.changes);
        if self.needs_peer {
            ready.for_sending_back(site)?;
        }
        let lock = site.lock()?;
        let directory = lock.make_inside(&id.to_string())?;
        bpffs::pin(program, &directory.join(PROGRAM))?;
        self.record.pin(&directory.join(RECORD))?;
        if let Some(link) = ready.link() {
            bpffs::pin(link, &directory.join(PEER_LINK))?;
        }
        let maps = directory.join(MAPS);
        make_directory(&maps)?;
        for (name, map) in &self.maps {
            bpffs::pin(map.as_fd(), &maps.join(name))?;
        }
        ready.keep();
        Ok(())
    }

    pub fn maps(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.maps.iter().map(|(_, map)| map.as_fd())
    }
}
