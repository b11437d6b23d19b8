//! Maps: creating them, and reading and writing their entries.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use trawl_sys::{Error, Result};

use super::{c_name, entry, opts, owned};
use crate::layout::{CaptureLock, Shared};
use crate::types;

pub const RINGBUF: u32 = libbpf_sys::BPF_MAP_TYPE_RINGBUF;
pub const PERF_EVENT_ARRAY: u32 = libbpf_sys::BPF_MAP_TYPE_PERF_EVENT_ARRAY;
pub const PROG_ARRAY: u32 = libbpf_sys::BPF_MAP_TYPE_PROG_ARRAY;
pub const DEVMAP: u32 = libbpf_sys::BPF_MAP_TYPE_DEVMAP;
pub const DEVMAP_HASH: u32 = libbpf_sys::BPF_MAP_TYPE_DEVMAP_HASH;
pub const CPUMAP: u32 = libbpf_sys::BPF_MAP_TYPE_CPUMAP;
pub const XSKMAP: u32 = libbpf_sys::BPF_MAP_TYPE_XSKMAP;

/// Returns true if every key of such a map has a value from the start, which is zero then.
pub fn is_array(kind: u32) -> bool {
    matches!(kind, libbpf_sys::BPF_MAP_TYPE_ARRAY | libbpf_sys::BPF_MAP_TYPE_PERCPU_ARRAY)
}

/// Returns true if the values of such a map are bytes alone, and refer to nothing.
pub fn is_plain(kind: u32) -> bool {
    is_array(kind)
        || is_lru(kind)
        || matches!(
            kind,
            libbpf_sys::BPF_MAP_TYPE_HASH | libbpf_sys::BPF_MAP_TYPE_PERCPU_HASH | libbpf_sys::BPF_MAP_TYPE_LPM_TRIE
        )
}

/// Returns true if such a map drops the least recently used entries when it is full.
pub fn is_lru(kind: u32) -> bool {
    matches!(kind, libbpf_sys::BPF_MAP_TYPE_LRU_HASH | libbpf_sys::BPF_MAP_TYPE_LRU_PERCPU_HASH)
}

/// Returns true if the values of such a map are maps.
pub fn is_of_maps(kind: u32) -> bool {
    matches!(kind, libbpf_sys::BPF_MAP_TYPE_ARRAY_OF_MAPS | libbpf_sys::BPF_MAP_TYPE_HASH_OF_MAPS)
}

/// Returns true if the keys of such a map can be listed.
pub fn has_keys(kind: u32) -> bool {
    !matches!(
        kind,
        libbpf_sys::BPF_MAP_TYPE_RINGBUF
            | libbpf_sys::BPF_MAP_TYPE_USER_RINGBUF
            | libbpf_sys::BPF_MAP_TYPE_PERF_EVENT_ARRAY
            | libbpf_sys::BPF_MAP_TYPE_QUEUE
            | libbpf_sys::BPF_MAP_TYPE_STACK
            | libbpf_sys::BPF_MAP_TYPE_BLOOM_FILTER
            | libbpf_sys::BPF_MAP_TYPE_ARENA
    )
}

pub(crate) fn create(name: &str, kind: u32, sizes: (u32, u32), entries: u32, flags: u32) -> io::Result<OwnedFd> {
    create_with(name, kind, sizes, entries, |opts| opts.map_flags = flags)
}

/// Creates a map with further options.
pub(super) fn create_with(
    name: &str,
    kind: u32,
    (key_size, value_size): (u32, u32),
    entries: u32,
    fill: impl FnOnce(&mut libbpf_sys::bpf_map_create_opts),
) -> io::Result<OwnedFd> {
    let mut opts = opts!(libbpf_sys::bpf_map_create_opts);
    fill(&mut opts);
    let name = c_name(name);
    // SAFETY: the name and the options live until the call returns.
    owned(unsafe { libbpf_sys::bpf_map_create(kind, name.as_ptr(), key_size, value_size, entries, &opts) })
}

/// Creates an empty map like this one.
pub fn create_like(about: &super::info::MapInfo) -> io::Result<OwnedFd> {
    create_with(&about.name, about.kind, (about.key_size, about.value_size), about.max_entries, |opts| {
        opts.map_flags = about.flags;
        opts.map_extra = about.extra;
    })
}

/// Opens an AF_XDP socket that is bound to no queue. A map accepts it, and programs see that its slot is taken.
pub fn unbound_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// Creates an array whose memory user space can map.
pub fn create_mmapable_array(name: &str, value_size: u32, entries: u32) -> Result<OwnedFd> {
    create(name, libbpf_sys::BPF_MAP_TYPE_ARRAY, (4, value_size), entries, libbpf_sys::BPF_F_MMAPABLE)
        .map_err(|e| Error::os(format!("cannot create the map {name} ({entries} times {value_size} bytes)"), e))
}

/// Creates a doorbell, with which programs wake a process: a ring buffer of the least size.
pub fn create_doorbell(name: &str) -> Result<OwnedFd> {
    let page = rustix::param::page_size() as u32;
    create(name, libbpf_sys::BPF_MAP_TYPE_RINGBUF, (0, 0), page, 0)
        .map_err(|e| Error::os(format!("cannot create the map {name}"), e))
}

/// Creates the map of the lock under which the programs of a capture change shared values.
pub fn create_lock(name: &str) -> Result<OwnedFd> {
    let kind = libbpf_sys::BPF_MAP_TYPE_ARRAY;
    let size = size_of::<CaptureLock>() as u32;
    let made = types::of_lock().and_then(|types| {
        create_with(name, kind, (4, size), 1, |opts| {
            opts.btf_fd = types.as_raw_fd() as u32;
            opts.btf_key_type_id = types::LOCK_KEY;
            opts.btf_value_type_id = types::LOCK_VALUE;
        })
    });
    made.map_err(|e| Error::os(format!("cannot create the map {name}"), e))
}

/// Creates a hash map that drops the least recently used entries when it is full.
pub fn create_lru(name: &str, key_size: u32, value_size: u32, entries: u32) -> Result<OwnedFd> {
    let kind = libbpf_sys::BPF_MAP_TYPE_LRU_HASH;
    create(name, kind, (key_size, value_size), entries, 0)
        .map_err(|e| Error::os(format!("cannot create the map {name}"), e))
}

/// Creates an array of programs to jump to.
pub fn create_prog_array(name: &str, entries: u32) -> Result<OwnedFd> {
    create(name, libbpf_sys::BPF_MAP_TYPE_PROG_ARRAY, (4, 4), entries, 0)
        .map_err(|e| Error::os(format!("cannot create the program array {name}"), e))
}

/// Creates an array of maps like this one.
pub fn create_array_of_maps(name: &str, like: BorrowedFd<'_>, entries: u32) -> Result<OwnedFd> {
    let kind = libbpf_sys::BPF_MAP_TYPE_ARRAY_OF_MAPS;
    create_with(name, kind, (4, 4), entries, |opts| {
        opts.inner_map_fd = like.as_raw_fd() as u32;
    })
    .map_err(|e| Error::os(format!("cannot create the map {name}"), e))
}

/// Puts a program, or a map, into a slot.
pub fn set_program(map: BorrowedFd<'_>, slot: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    let fd = program.as_raw_fd();
    // SAFETY: key and value are four bytes each, as program arrays have them.
    unsafe { entry::update(map, &raw const slot, &raw const fd, entry::ANY) }
}

/// Assigns a socket to a queue of a map of AF_XDP sockets.
pub fn set_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    // The kernel accepts a descriptor for either kind of map.
    set_program(map, queue, socket)
}

/// Empties a slot; succeeds if it is empty already.
pub fn clear_program(map: BorrowedFd<'_>, slot: u32) -> io::Result<()> {
    // SAFETY: the key is four bytes.
    unsafe { entry::delete(map, &raw const slot) }.map(drop)
}

/// Puts a program into a slot, or empties it.
pub fn put_program(map: BorrowedFd<'_>, slot: u32, program: Option<BorrowedFd<'_>>) -> io::Result<()> {
    match program {
        Some(program) => set_program(map, slot, program),
        None => clear_program(map, slot),
    }
}

/// Returns the identifier of the program in a slot, if it has one.
pub fn program_in(map: BorrowedFd<'_>, slot: u32) -> io::Result<Option<u32>> {
    let mut id = 0u32;
    // SAFETY: key and value are four bytes each.
    let found = unsafe { entry::lookup(map, &raw const slot, &raw mut id) }?;
    Ok(found.then_some(id))
}

/// Replaces a program wherever it is in an array, or removes it.
pub fn replace_program(map: BorrowedFd<'_>, own: u32, other: Option<BorrowedFd<'_>>) -> io::Result<()> {
    for slot in 0..super::info::map(map)?.max_entries {
        if program_in(map, slot)? == Some(own) {
            put_program(map, slot, other)?;
        }
    }
    Ok(())
}

/// Writes an entry of an array.
pub fn write<T: Shared>(map: BorrowedFd<'_>, slot: u32, value: &T) -> io::Result<()> {
    let size = info(map)?.value_size as usize;
    if size != size_of::<T>() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the key is four bytes, and the value as long as the map's, as was just checked.
    unsafe { entry::update(map, &raw const slot, value, entry::ANY) }
}

/// Returns the bytes of an array's entry.
pub fn read(map: BorrowedFd<'_>, slot: u32) -> io::Result<Vec<u8>> {
    // The kernel rounds values of arrays up to eight bytes, and copies as many as the map was made with.
    let mut value = vec![0; (info(map)?.value_size as usize).next_multiple_of(8)];
    // SAFETY: the key is four bytes, and there is room for a whole value.
    match unsafe { entry::lookup(map, &raw const slot, value.as_mut_ptr()) }? {
        true => Ok(value),
        false => Err(io::Error::from_raw_os_error(libc::ENOENT)),
    }
}

/// Opens an existing map.
pub fn open_by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a plain number.
    owned(unsafe { libbpf_sys::bpf_map_get_fd_by_id(id) })
}

/// Returns the kernel's description of a map.
pub fn info(map: impl AsFd) -> io::Result<super::info::MapInfo> {
    super::info::map(map.as_fd())
}
