//! The maps of a program in a trial: their contents read, compared and brought back.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use trawl_bpf::map;
use trawl_bpf::table::{ANY, Table};
use trawl_sys::{Error, Result};

use crate::report::MapDifference;
use crate::wording::hex;

/// The entries of a map.
#[derive(Debug, PartialEq, Eq)]
enum Contents {
    /// The values of an array, one after the other, each of this length.
    Array { values: Vec<u8>, length: usize },
    /// Keys with their values.
    Table(BTreeMap<Vec<u8>, Vec<u8>>),
}

impl Contents {
    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Array { values, length } => {
                let number = u32::from_ne_bytes(key.try_into().ok()?) as usize;
                values.get(number * length..(number + 1) * length)
            }
            Self::Table(entries) => entries.get(key).map(Vec::as_slice),
        }
    }

    /// Returns the keys under which the other contents are not the same.
    fn differing(&self, other: &Self) -> Vec<Vec<u8>> {
        match (self, other) {
            (Self::Array { values, length }, Self::Array { values: others, .. }) if !values.is_empty() => {
                let pairs = values.chunks(*length).zip(others.chunks(*length)).enumerate();
                let differing = pairs.filter(|(_, (one, other))| one != other);
                differing.map(|(number, _)| (number as u32).to_ne_bytes().to_vec()).collect()
            }
            (Self::Table(entries), Self::Table(others)) => {
                let keys = entries.keys().chain(others.keys().filter(|key| !entries.contains_key(*key)));
                keys.filter(|key| entries.get(*key) != others.get(*key)).cloned().collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A map of a program.
#[derive(Debug)]
pub(crate) struct TrialMap {
    pub name: String,
    table: Table,
    /// The contents at the beginning of each run; `None` until they are noted.
    first: Option<Contents>,
    /// True if the contents are never read.
    is_too_large: bool,
}

/// The maps of a program whose contents can be read and written.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    all: Vec<TrialMap>,
    /// Maps whose values are maps.
    of_maps: Vec<(String, Table)>,
    /// Sentences without a full stop about maps whose contents are not compared.
    pub opaque: Vec<String>,
}

/// Number of entries beyond which an array is not read, since it would take minutes and gigabytes: programs that look
/// numbers up in tables, such as load balancers, have arrays of tens of millions.
const MOST_ENTRIES: u32 = 1 << 20;

/// Section of constants, whose map the kernel does not let anybody change.
const CONSTANTS: &str = ".rodata";

impl Maps {
    /// Opens the maps of a loaded program.
    pub fn open(maps: Vec<(String, BorrowedFd<'_>)>) -> Result<Self> {
        let mut opened = Self::default();
        for (name, fd) in maps {
            if name.contains(CONSTANTS) {
                continue;
            }
            let cannot = |e| Error::os(format!("cannot read the map {name}"), e);
            let table = fd.try_clone_to_owned().and_then(Table::new).map_err(cannot)?;
            let kind = table.about().kind;
            // Programs change neither the programs nor the sockets in a map.
            if [map::PROG_ARRAY, map::XSKMAP].contains(&kind) {
                continue;
            }
            if map::is_of_maps(kind) {
                opened.of_maps.push((name, table));
            } else {
                opened.add(name, table);
            }
        }
        Ok(opened)
    }

    fn add(&mut self, name: String, table: Table) {
        let (kind, entries) = (table.about().kind, table.about().max_entries);
        if !map::has_keys(kind) {
            self.opaque.push(format!("the contents of the map {name} cannot be compared"));
            return;
        }
        let is_too_large = map::is_array(kind) && entries > MOST_ENTRIES;
        if is_too_large {
            self.opaque.push(format!("the map {name} is not compared: it has {entries} entries"));
        }
        self.all.push(TrialMap { name, table, first: None, is_too_large });
    }

    /// Adds the maps inside of maps that are not the file's own. Programs cannot exchange them.
    pub fn add_inner(&mut self) -> Result<()> {
        let mut found: Vec<(String, Table)> = Vec::new();
        for (name, outer) in &self.of_maps {
            let cannot = |e| Error::os(format!("cannot read the map {name}"), e);
            let mut entries = outer.entries().map_err(cannot)?;
            // A map under several keys has the same name in each program.
            entries.sort();
            for (key, value) in entries {
                let Some(id) = value.try_into().ok().map(u32::from_ne_bytes) else {
                    continue;
                };
                let own = self.all.iter().map(|known| &known.table);
                if own.chain(found.iter().map(|(_, table)| table)).any(|known| known.about().id == id) {
                    continue;
                }
                let table = Table::open_by_id(id).map_err(cannot)?;
                found.push((format!("{name}[{}]", hex(&key)), table));
            }
        }
        found.into_iter().for_each(|(name, table)| self.add(name, table));
        Ok(())
    }

    /// Returns some keys of each noted map whose keys are no positions.
    pub fn keys(&self, most: usize) -> Vec<Vec<u8>> {
        let maps = self.all.iter().filter(|one| !map::is_array(one.table.about().kind));
        let keys = maps.filter_map(|one| match &one.first {
            Some(Contents::Table(entries)) => Some(entries.keys().take(most).cloned()),
            _ => None,
        });
        keys.flatten().collect()
    }

    /// Notes the present contents as those that `reset` brings back.
    pub fn note(&mut self) -> Result<()> {
        for one in self.all.iter_mut().filter(|one| !one.is_too_large) {
            one.first = Some(one.read()?);
        }
        Ok(())
    }

    /// Forgets the noted contents of maps that the runs have not changed, so that `reset` need not read them.
    pub fn forget_unchanged(&mut self) -> Result<()> {
        for one in &mut self.all {
            if one.first.is_some() && one.first.as_ref() == Some(&one.read()?) {
                one.first = None;
            }
        }
        Ok(())
    }

    /// Brings the noted contents back.
    pub fn reset(&self) -> Result<()> {
        self.all.iter().try_for_each(TrialMap::reset)
    }

    /// Compares the contents with the contents of another program's maps that have the same names.
    pub fn compare(&self, other: &Self, ignored: &[String]) -> Result<Vec<MapDifference>> {
        let mut differences = Vec::new();
        for one in self.all.iter().filter(|one| !one.is_too_large && !ignored.contains(&one.name)) {
            let mut others = other.all.iter().filter(|other| !other.is_too_large);
            let Some(counterpart) = others.find(|other| same_map(&one.name, &other.name)) else {
                continue;
            };
            let (after, before) = (one.read()?, counterpart.read()?);
            let differing = after.differing(&before);
            let Some(first) = differing.first() else {
                continue;
            };
            differences.push(MapDifference {
                name: one.name.clone(),
                entries: differing.len() as u64,
                key: hex(first),
                before: before.get(first).map(hex),
                after: after.get(first).map(hex),
            });
        }
        Ok(differences)
    }
}

/// Returns true if two objects mean the same map: the map of a section's variables has the object's name in front.
fn same_map(one: &str, other: &str) -> bool {
    match (one.split_once('.'), other.split_once('.')) {
        (Some((_, one)), Some((_, other))) => one == other,
        (None, None) => one == other,
        _ => false,
    }
}

impl TrialMap {
    fn error(&self, what: &str, e: std::io::Error) -> Error {
        Error::os(format!("cannot {what} the map {}", self.name), e)
    }

    fn read(&self) -> Result<Contents> {
        let read = if map::is_array(self.table.about().kind) {
            self.table.array_values().map(|values| {
                let length = values.len() / (self.table.about().max_entries as usize).max(1);
                Contents::Array { values, length }
            })
        } else {
            self.table.entries().map(|all| Contents::Table(all.into_iter().collect()))
        };
        read.map_err(|e| self.error("read", e))
    }

    fn reset(&self) -> Result<()> {
        let Some(first) = &self.first else {
            return Ok(());
        };
        let present = self.read()?;
        // A full table has no room for old entries before the new ones are gone.
        let (kept, gone): (Vec<_>, Vec<_>) =
            first.differing(&present).into_iter().partition(|key| first.get(key).is_some());
        for key in gone {
            self.table.delete(&key).map_err(|e| self.error("empty", e))?;
        }
        for key in kept {
            let value = first.get(&key).unwrap_or_default();
            self.table.update(&key, value, ANY).map_err(|e| self.error("write", e))?;
        }
        Ok(())
    }
}

impl AsFd for TrialMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }
}
