//! A look for network namespaces: at their names, at mounts, and at the processes that live in them.

use std::array;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::vec;

use super::{Namespace, list};
use crate::error::{Error, Result};
use crate::mounts;

/// The namespaces that can be found, each once: those with a name first, then the one of the calling thread, those that
/// are kept by a mount elsewhere, and those that processes live in.
///
/// A look goes as far as it is asked to: no process is looked at where a name leads to what is wanted. What it has found
/// it holds open. The number of an inode that is held is given to no other one, so it tells which ways lead to the same
/// again, and these are not gone. What is made after a look has begun may not be found by it.
#[derive(Debug)]
pub struct Look {
    found: Vec<Namespace>,
    numbers: HashSet<u64>,
    ways: vec::IntoIter<FoundBy>,
    later: array::IntoIter<Among, 4>,
    is_cut_short: bool,
}

/// What is gone through, one after the other.
#[derive(Clone, Copy, Debug)]
enum Among {
    Names,
    Own,
    Mounts,
    Processes,
}

#[derive(Debug)]
enum FoundBy {
    Name(String),
    Own,
    Mount(mounts::Mount),
    Process(u32),
}

impl Default for Look {
    fn default() -> Self {
        Self {
            found: Vec::new(),
            numbers: HashSet::new(),
            ways: Vec::new().into_iter(),
            later: [Among::Names, Among::Own, Among::Mounts, Among::Processes].into_iter(),
            is_cut_short: false,
        }
    }
}

impl Look {
    /// The first that fits.
    pub fn find(&mut self, mut fits: impl FnMut(&Namespace) -> bool) -> Option<&Namespace> {
        let mut at = 0;
        while at < self.found.len() || self.goes_on() {
            if fits(&self.found[at]) {
                return self.found.get(at);
            }
            at += 1;
        }
        None
    }

    /// The one whose inode has this number.
    pub fn numbered(&mut self, number: u64) -> Option<&Namespace> {
        self.find(|one| one.identity().1 == number)
    }

    /// There were ways that could not be gone, for want of descriptors or memory.
    pub fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// Finds one more; false where there are no more.
    fn goes_on(&mut self) -> bool {
        loop {
            let Some(way) = self.ways.next() else {
                let Some(among) = self.later.next() else {
                    return false;
                };
                self.ways = self
                    .unless_cut(among.ways())
                    .unwrap_or_default()
                    .into_iter();
                continue;
            };
            let is_known = |number| self.numbers.contains(&number);
            let found = way.go(is_known);
            if let Some(new) = self.unless_cut(found).flatten()
                && self.numbers.insert(new.identity().1)
            {
                self.found.push(new);
                return true;
            }
        }
    }

    /// Processes end, names are deleted, and some may not be looked at; all else that fails hides what there may be.
    fn unless_cut<T>(&mut self, result: Result<T>) -> Option<T> {
        const WANTS: [i32; 3] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
        let wants = |e: &Error| e.errno().is_some_and(|errno| WANTS.contains(&errno));
        self.is_cut_short |= result.as_ref().is_err_and(wants);
        result.ok()
    }
}

impl Among {
    fn ways(self) -> Result<Vec<FoundBy>> {
        Ok(match self {
            Self::Names => list().into_iter().map(FoundBy::Name).collect(),
            Self::Own => vec![FoundBy::Own],
            Self::Mounts => mounts::of_kind("nsfs", "self")
                .into_iter()
                .map(FoundBy::Mount)
                .collect(),
            Self::Processes => {
                let entries = fs::read_dir("/proc")
                    .map_err(|e| Error::os("cannot look through the processes", e))?;
                let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                names
                    .filter_map(|name| name.parse().ok().map(FoundBy::Process))
                    .collect()
            }
        })
    }
}

impl FoundBy {
    /// What it leads to, unless that is known.
    fn go(self, is_known: impl Fn(u64) -> bool) -> Result<Option<Namespace>> {
        match self {
            Self::Name(name) => Namespace::by_name(&name).map(Some),
            Self::Own => Namespace::current().map(Some),
            Self::Mount(mount) => match number(&mount.part) {
                Some(number) if !is_known(number) => Namespace::from_path(&mount.place).map(Some),
                _ => Ok(None),
            },
            Self::Process(id) => {
                let path = PathBuf::from(format!("/proc/{id}/ns/net"));
                match number_at(&path)? {
                    Some(number) if !is_known(number) => Namespace::in_proc(&path).map(Some),
                    _ => Ok(None),
                }
            }
        }
    }
}

fn number_at(link: &Path) -> Result<Option<u64>> {
    let text =
        fs::read_link(link).map_err(|e| Error::os(format!("cannot read {}", link.display()), e))?;
    Ok(text.to_str().and_then(number))
}

/// In the kernel's own name of a network namespace.
pub(super) fn number(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}
