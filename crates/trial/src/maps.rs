//! The maps of a program in a trial: their contents read, compared and brought back.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use trawl_bpf::map;
use trawl_bpf::table::{ANY, Table};
use trawl_sys::memory::Mapping;
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
    /// Memory of a large array, unless the kernel does not map it: reading all of its values takes seconds.
    memory: Option<Mapping>,
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

/// Number of entries beyond which an array is not held as a whole, and not brought back: programs that look numbers up in
/// tables, such as load balancers, have arrays of tens of millions.
const MOST_ENTRIES: u32 = 1 << 20;
/// Number of entries of such an array that are read at once.
pub(crate) const PART: u32 = 1 << 12;

/// Returns true for an array with more entries.
pub(crate) fn is_large(kind: u32, entries: u32) -> bool {
    map::is_array(kind) && entries > MOST_ENTRIES
}

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
        let is_large = is_large(kind, entries);
        if is_large {
            self.opaque.push(format!(
                "the map {name} is not brought back when packets are run again alone: it has {entries} entries"
            ));
        }
        let memory = is_large.then(|| Mapping::of_map(table.as_fd(), memory_of(&table)).ok()).flatten();
        self.all.push(TrialMap { name, table, first: None, memory });
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
        for one in self.all.iter_mut().filter(|one| !one.is_large()) {
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
        let is_ignored = |one: &&TrialMap| ignored.iter().any(|name| same_map(name, &one.name));
        for one in self.all.iter().filter(|one| !is_ignored(one)) {
            let mut others = other.all.iter();
            let Some(counterpart) = others.find(|other| same_map(&one.name, &other.name)) else {
                continue;
            };
            let differing = one.differing(counterpart)?;
            let Some(first) = differing.first() else {
                continue;
            };
            differences.push(MapDifference {
                name: one.name.clone(),
                is_fuzzed: false,
                entries: differing.len() as u64,
                key: hex(first),
                before: counterpart.value(first)?.as_deref().map(hex),
                after: one.value(first)?.as_deref().map(hex),
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

    /// Returns true for an array that is compared, and never held as a whole.
    fn is_large(&self) -> bool {
        is_large(self.table.about().kind, self.table.about().max_entries)
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

    /// Returns the keys under which another program's map has other contents.
    fn differing(&self, other: &Self) -> Result<Vec<Vec<u8>>> {
        if !self.is_large() || !other.is_large() {
            return Ok(self.read()?.differing(&other.read()?));
        }
        let entries = self.table.about().max_entries.min(other.table.about().max_entries);
        let is_mapped = self.memory.is_some() && other.memory.is_some();
        let length = if is_mapped { stride(&self.table) } else { self.table.value_length() };
        let mut differing = Vec::new();
        for first in (0..entries).step_by(PART as usize) {
            let (at, count) = (first as usize, PART.min(entries - first) as usize);
            let part = |map: &Self| {
                let memory = map.memory.as_ref().filter(|_| is_mapped);
                let values = memory.and_then(|memory| memory.read(at * length, count * length));
                values.map_or_else(|| map.table.values_from(at, count), Ok).map_err(|e| map.error("read", e))
            };
            let (values, others) = (part(self)?, part(other)?);
            if values == others {
                continue;
            }
            let pairs = (first..).zip(values.chunks(length).zip(others.chunks(length)));
            differing.extend(pairs.filter(|(_, (one, other))| one != other).map(|(key, _)| key.to_ne_bytes().to_vec()));
        }
        Ok(differing)
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.table.lookup(key).map_err(|e| self.error("read", e))
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

/// Returns the distance of an array's values in its memory.
fn stride(array: &Table) -> usize {
    array.value_length().next_multiple_of(size_of::<u64>())
}

fn memory_of(array: &Table) -> usize {
    stride(array) * array.about().max_entries as usize
}

impl AsFd for TrialMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_sys::testing::root_or_skip;

    #[test]
    fn large_arrays_are_compared_in_parts() {
        if !root_or_skip() {
            return;
        }
        let large = || {
            let entries = MOST_ENTRIES + PART + 7;
            let fd = map::create_mmapable_array("trawl_large", 3, entries).expect("a map");
            let mut maps = Maps::default();
            maps.add("ring".to_owned(), Table::new(fd).expect("a map"));
            maps
        };
        let (one, mut other) = (large(), large());
        assert!(one.opaque[0].contains("ring"), "{:?}", one.opaque);
        assert!(one.compare(&other, &[]).expect("contents").is_empty());
        let last = (MOST_ENTRIES + PART + 6).to_ne_bytes();
        for (maps, key, value) in [(&one, last, [1, 2, 3]), (&other, [1, 0, 0, 0], [7, 0, 0])] {
            maps.all[0].table.update(&key, &value, ANY).expect("a value");
        }
        let differences = one.compare(&other, &[]).expect("contents");
        assert!(one.all[0].memory.is_some());
        other.all[0].memory = None;
        assert_eq!(format!("{:?}", one.compare(&other, &[]).expect("contents")), format!("{differences:?}"));
        assert_eq!((differences[0].entries, &*differences[0].key), (2, "01000000"));
        assert_eq!(
            (differences[0].before.as_deref(), differences[0].after.as_deref()),
            (Some("070000"), Some("000000"))
        );
        assert!(one.compare(&other, &["ring".to_owned()]).expect("contents").is_empty());
        assert!(same_map(".bss", "firewall.bss") && !same_map(".bss", "firewall.data"));
    }
}
