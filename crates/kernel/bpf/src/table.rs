//! A map's entries as bytes, with the lengths checked against what the kernel will read and write.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::check;
pub use super::entry::{ANY, NEW_ONLY};
use super::entry::{delete, exists, lookup, take, update};
use super::info::{self, MapInfo};

/// Number of entries that are read at once.
const BATCH: usize = 4096;

/// An open map with its key and value sizes.
#[derive(Debug)]
pub struct Table {
    fd: OwnedFd,
    about: MapInfo,
    /// Bytes of a value in user space: in a per-CPU map, of all CPUs together.
    value_length: usize,
}

impl Table {
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let about = info::map(fd.as_fd())?;
        let value_length = if is_per_cpu(about.kind) {
            (about.value_size as usize).next_multiple_of(8) * possible_cpus()?
        } else {
            about.value_size as usize
        };
        Ok(Self { fd, about, value_length })
    }

    pub fn open_by_id(id: u32) -> io::Result<Self> {
        super::map::open_by_id(id).and_then(Self::new)
    }

    /// Creates an array with one value: these bytes.
    pub fn holding(name: &str, bytes: &[u8]) -> io::Result<Self> {
        let too_long = |_| io::Error::from_raw_os_error(libc::E2BIG);
        let length = u32::try_from(bytes.len()).map_err(too_long)?;
        let fd = super::map::create(name, libbpf_sys::BPF_MAP_TYPE_ARRAY, (4, length), 1, 0)?;
        let table = Self::new(fd)?;
        table.update(&[0; 4], bytes, ANY)?;
        Ok(table)
    }

    /// Creates an empty hash map.
    pub fn hash(name: &str, (key, value): (usize, usize), entries: u32) -> io::Result<Self> {
        let sizes = (key as u32, value as u32);
        super::map::create(name, libbpf_sys::BPF_MAP_TYPE_HASH, sizes, entries, 0).and_then(Self::new)
    }

    pub fn about(&self) -> &MapInfo {
        &self.about
    }

    /// Writes a value under a key; per-CPU maps expect the values of all possible CPUs, each padded to eight bytes.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        self.check_key(key)?;
        if value.len() != self.value_length {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: key and value are as long as the kernel expects, which has just been checked.
        unsafe { update(self.as_fd(), key.as_ptr(), value.as_ptr(), flags) }
    }

    /// Writes entries, as [`Self::entries`] returns them, in as few system calls as the kernel allows.
    pub fn update_entries(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> io::Result<()> {
        let mut at = 0;
        for some in entries.chunks(BATCH) {
            match self.update_batch(some) {
                Ok(()) => at += some.len(),
                // Some kinds of map have no batches, and an entry that fails gets its own error below.
                Err(_) => break,
            }
        }
        entries[at..].iter().try_for_each(|(key, value)| self.update(key, value, ANY))
    }

    fn update_batch(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> io::Result<()> {
        let mut keys = Vec::with_capacity(entries.len() * self.about.key_size as usize);
        let mut values = Vec::with_capacity(entries.len() * self.value_length);
        for (key, value) in entries {
            self.check_key(key)?;
            if value.len() != self.value_length {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            keys.extend_from_slice(key);
            values.extend_from_slice(value);
        }
        self.write_batch(&keys, &values)
    }

    /// Writes values of an array, one after the other, from a key on.
    pub fn update_values(&self, first: usize, values: &[u8]) -> io::Result<()> {
        let keys = (first as u32..).take(values.len() / self.value_length.max(1));
        let flat: Vec<u8> = keys.clone().flat_map(u32::to_ne_bytes).collect();
        self.write_batch(&flat, values).or_else(|_| {
            let mut entries = keys.zip(values.chunks(self.value_length));
            entries.try_for_each(|(key, value)| self.update(&key.to_ne_bytes(), value, ANY))
        })
    }

    /// Writes entries from keys and values, each one after the other.
    fn write_batch(&self, keys: &[u8], values: &[u8]) -> io::Result<()> {
        let entries = keys.len() / (self.about.key_size as usize).max(1);
        if values.len() != entries * self.value_length {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut count = entries as u32;
        // SAFETY: there are `count` keys and values of the lengths that the kernel reads, which has just been checked.
        check(unsafe {
            libbpf_sys::bpf_map_update_batch(
                self.fd.as_raw_fd(),
                keys.as_ptr().cast(),
                values.as_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        })
        .map(drop)
    }

    /// Returns the length of a value as it is read, of a per-CPU map for all CPUs together.
    pub fn value_length(&self) -> usize {
        self.value_length
    }

    /// Writes one value under a key, in a per-CPU map for each CPU.
    pub fn update_all(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if !is_per_cpu(self.about.kind) {
            return self.update(key, value, ANY);
        }
        let mut padded = value.to_vec();
        padded.resize(value.len().next_multiple_of(8), 0);
        let copies = self.value_length / padded.len().max(1);
        self.update(key, &padded.repeat(copies), ANY)
    }

    /// Returns the value under a key, if it has one; from per-CPU maps all values, each padded to eight bytes.
    pub fn lookup(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.check_key(key)?;
        let mut value = vec![0u8; self.value_length];
        // SAFETY: the key is as long as the kernel reads, the value as long as it writes.
        let found = unsafe { lookup(self.as_fd(), key.as_ptr(), value.as_mut_ptr()) }?;
        Ok(found.then_some(value))
    }

    /// Removes an entry, and returns its value as `lookup` does.
    pub fn take(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.check_key(key)?;
        let mut value = vec![0u8; self.value_length];
        // SAFETY: the key is as long as the kernel reads, the value as long as it writes.
        let found = unsafe { take(self.as_fd(), key.as_ptr(), value.as_mut_ptr()) }?;
        Ok(found.then_some(value))
    }

    /// Removes an entry; returns true if it existed.
    pub fn delete(&self, key: &[u8]) -> io::Result<bool> {
        self.check_key(key)?;
        // SAFETY: the key is as long as the kernel reads.
        unsafe { delete(self.as_fd(), key.as_ptr()) }
    }

    /// Returns all keys; entries that are added or removed meanwhile may be missing.
    pub fn keys(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // A key that was removed meanwhile sends the kernel back to the first one.
        while keys.len() <= self.about.max_entries as usize
            && let Some(next) = self.key_after(keys.last())?
        {
            keys.push(next);
        }
        Ok(keys)
    }

    /// Returns all entries, in as few system calls as the kernel allows.
    pub fn entries(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        match self.entries_in_batches() {
            // Some kinds of map have no batches, and a bucket of a hash map may be larger than a batch.
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOMEM)) => {}
            result => return result,
        }
        let mut entries = Vec::new();
        for key in self.keys()? {
            if let Some(value) = self.lookup(&key)? {
                entries.push((key, value));
            }
        }
        Ok(entries)
    }

    fn entries_in_batches(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (key_length, value_length) = (self.about.key_size as usize, self.value_length);
        let most = (self.about.max_entries as usize).clamp(1, BATCH);
        let mut keys = vec![0u8; key_length * most];
        let mut values = vec![0u8; value_length * most];
        let mut position = None;
        let mut entries = Vec::new();
        loop {
            let (found, next) = self.read_batch(position.as_deref(), &mut keys, &mut values)?;
            let pairs = keys.chunks(key_length).zip(values.chunks(value_length)).take(found);
            entries.extend(pairs.map(|(key, value)| (key.to_vec(), value.to_vec())));
            if next.is_none() {
                return Ok(entries);
            }
            position = next;
        }
    }

    /// Returns the values of all keys of an array, one after the other; of a per-CPU array, with the values of all CPUs
    /// for each key.
    pub fn array_values(&self) -> io::Result<Vec<u8>> {
        self.values_from(0, self.about.max_entries as usize)
    }

    /// Returns some values of an array, from a key on, as [`Self::array_values`] does.
    pub fn values_from(&self, first: usize, count: usize) -> io::Result<Vec<u8>> {
        let mut values = vec![0u8; self.value_length * count];
        let mut keys = vec![0u8; size_of::<u32>() * count.min(BATCH)];
        for (number, part) in values.chunks_mut(self.value_length.max(1) * BATCH).enumerate() {
            self.read_values(first + number * BATCH, &mut keys, part)?;
        }
        Ok(values)
    }

    /// Reads as many values of an array as there is room for, from a key on. `keys` has room for their keys.
    fn read_values(&self, first: usize, keys: &mut [u8], values: &mut [u8]) -> io::Result<()> {
        let count = values.len() / self.value_length.max(1);
        // The kernel begins after a key.
        let position = first.checked_sub(1).map(|before| (before as u32).to_ne_bytes());
        let position = position.as_ref().map(<[u8; 4]>::as_slice);
        // Arrays have batches since Linux 5.6, per-CPU arrays since 5.13.
        if matches!(self.read_batch(position, keys, values), Ok((found, _)) if found == count) {
            return Ok(());
        }
        for (key, value) in (first..).zip(values.chunks_mut(self.value_length)) {
            let found = self.lookup(&(key as u32).to_ne_bytes())?;
            found.into_iter().for_each(|found| value.copy_from_slice(&found));
        }
        Ok(())
    }

    /// Reads entries after a position, or from the first one on, as many as there is room for. Returns their number and
    /// the position after them; no position at the end.
    fn read_batch(
        &self,
        position: Option<&[u8]>,
        keys: &mut [u8],
        values: &mut [u8],
    ) -> io::Result<(usize, Option<Vec<u8>>)> {
        let (key_length, value_length) = (self.about.key_size as usize, self.value_length.max(1));
        let most = (keys.len() / key_length.max(1)).min(values.len() / value_length);
        let mut count = most as u32;
        let mut from = position.map(<[u8]>::to_vec);
        // The position is a key or a number of 32 bits.
        let mut next = vec![0u8; key_length.max(size_of::<u32>())];
        // SAFETY: there is room for `count` keys and values, and for a position.
        let result = check(unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                self.fd.as_raw_fd(),
                from.as_mut().map_or(std::ptr::null_mut(), |from| from.as_mut_ptr().cast()),
                next.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        });
        let found = (count as usize).min(most);
        match result {
            Ok(_) => Ok((found, Some(next))),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok((found, None)),
            Err(e) => Err(e),
        }
    }

    /// Returns true if the map has any entry; arrays always have all of theirs.
    pub fn has_entries(&self) -> io::Result<bool> {
        Ok(self.key_after(None)?.is_some())
    }

    /// Returns the map's next key after this one, or its first key.
    fn key_after(&self, last: Option<&Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
        let mut next = vec![0u8; self.about.key_size as usize];
        let last = last.map_or(std::ptr::null(), |key| key.as_ptr());
        // SAFETY: the last key is null or of full length, and the next one has room for it.
        let result =
            unsafe { libbpf_sys::bpf_map_get_next_key(self.fd.as_raw_fd(), last.cast(), next.as_mut_ptr().cast()) };
        Ok(exists(result)?.then_some(next))
    }

    fn check_key(&self, key: &[u8]) -> io::Result<()> {
        if key.len() == self.about.key_size as usize { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

impl AsFd for Table {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn is_per_cpu(kind: u32) -> bool {
    matches!(
        kind,
        libbpf_sys::BPF_MAP_TYPE_PERCPU_HASH
            | libbpf_sys::BPF_MAP_TYPE_PERCPU_ARRAY
            | libbpf_sys::BPF_MAP_TYPE_LRU_PERCPU_HASH
            | libbpf_sys::BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE
    )
}

/// Returns the number of possible CPUs, for each of which per-CPU values exist.
pub fn possible_cpus() -> io::Result<usize> {
    // SAFETY: the call takes nothing and returns a number.
    let count = check(unsafe { libbpf_sys::libbpf_num_possible_cpus() })?;
    Ok(count as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_sys::testing::root_or_skip;

    #[test]
    fn bytes_are_kept_and_lengths_are_checked() {
        if !root_or_skip() {
            return;
        }
        let table = Table::holding("trawl_test", b"hello").unwrap();
        assert_eq!(table.lookup(&[0; 4]).unwrap().as_deref(), Some(&b"hello"[..]));
        assert!(table.lookup(&[0; 3]).is_err());
        assert!(table.update(&[0; 4], b"longer", ANY).is_err());
        assert_eq!(table.keys().unwrap(), [[0; 4]]);
        assert_eq!(table.entries().unwrap(), [(vec![0; 4], b"hello".to_vec())]);
        let again = Table::open_by_id(table.about().id).unwrap();
        again.update(&[0; 4], b"world", ANY).unwrap();
        assert_eq!(table.lookup(&[0; 4]).unwrap().as_deref(), Some(&b"world"[..]));
        let array = super::super::map::create("trawl_test", libbpf_sys::BPF_MAP_TYPE_PERCPU_ARRAY, (4, 3), 10_000, 0);
        let array = Table::new(array.unwrap()).unwrap();
        let length = array.value_length;
        for key in [0u32, 5000, 9999] {
            array.update_all(&key.to_ne_bytes(), &key.to_ne_bytes()[..3]).unwrap();
        }
        let values = array.array_values().unwrap();
        assert_eq!(values.len(), length * 10_000);
        assert_eq!(values[5000 * length..][..3], 5000u32.to_ne_bytes()[..3]);
        assert_eq!(values[9999 * length..][..3], 9999u32.to_ne_bytes()[..3]);
        assert!(values[5001 * length..9999 * length].iter().all(|byte| *byte == 0));
        assert_eq!(array.values_from(4999, 3).unwrap(), values[4999 * length..5002 * length]);
        array.update_values(7000, &values[4999 * length..5002 * length]).unwrap();
        assert_eq!(array.values_from(6999, 4).unwrap()[length..], values[4999 * length..5002 * length]);
        let hash = Table::hash("trawl_test", (4, 3), 10_000).unwrap();
        for number in 0..6000u32 {
            hash.update(&number.to_ne_bytes(), &number.to_ne_bytes()[..3], ANY).unwrap();
        }
        let mut entries = hash.entries().unwrap();
        entries.sort();
        entries.dedup();
        assert_eq!(entries.len(), 6000);
        assert!(entries.iter().all(|(key, value)| key[..3] == value[..]));
        let copy = Table::new(crate::map::create_like(hash.about()).unwrap()).unwrap();
        copy.update_entries(&entries).unwrap();
        let mut copied = copy.entries().unwrap();
        copied.sort();
        assert_eq!(copied, entries);
    }
}
