//! The system calls that make an AF_XDP socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use trawl_sys::memory::Mapping;
use trawl_sys::socket_option::{get, set};

use super::ring::Ring;

/// The rings of a socket that sends.
pub(super) struct SendingRings {
    pub transmit: Ring,
    pub completed: Ring,
}

/// The rings of a socket that receives.
pub(super) struct ReceivingRings {
    pub fill: Ring,
    pub received: Ring,
}

pub(super) fn open() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn register_memory(socket: &OwnedFd, memory: &Mapping, room: u32) -> io::Result<()> {
    // SAFETY: all zeroes are a valid xdp_umem_reg.
    let mut request: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
    request.addr = memory.at(0) as u64;
    request.len = memory.length() as u64;
    request.chunk_size = room;
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)
}

pub(super) fn make_sending_rings(socket: &OwnedFd, size: u32) -> io::Result<SendingRings> {
    // A socket that does not receive still needs a ring for memory to receive into.
    for ring in [
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_TX_RING,
    ] {
        set(socket, libc::SOL_XDP, ring, &size)?;
    }
    let offsets = offsets(socket)?;
    let completed = libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64;
    Ok(SendingRings {
        transmit: map::<libc::xdp_desc>(socket, &offsets.tx, size, libc::XDP_PGOFF_TX_RING)?,
        completed: map::<u64>(socket, &offsets.cr, size, completed)?,
    })
}

pub(super) fn make_receiving_rings(socket: &OwnedFd, size: u32) -> io::Result<ReceivingRings> {
    // The memory needs a ring for what was sent, though nothing is.
    for ring in [
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_RX_RING,
    ] {
        set(socket, libc::SOL_XDP, ring, &size)?;
    }
    let offsets = offsets(socket)?;
    let fill = libc::XDP_UMEM_PGOFF_FILL_RING as i64;
    Ok(ReceivingRings {
        fill: map::<u64>(socket, &offsets.fr, size, fill)?,
        received: map::<libc::xdp_desc>(socket, &offsets.rx, size, libc::XDP_PGOFF_RX_RING)?,
    })
}

fn map<T>(socket: &OwnedFd, at: &libc::xdp_ring_offset, size: u32, page: i64) -> io::Result<Ring> {
    let entries = at.desc as usize;
    let length = entries + size as usize * size_of::<T>();
    let memory = Mapping::of_file(socket.as_fd(), length, page as u64).map_err(|e| {
        e.errno().map_or_else(
            || io::Error::other(e.to_string()),
            io::Error::from_raw_os_error,
        )
    })?;
    Ok(Ring {
        memory,
        producer: at.producer as usize,
        consumer: at.consumer as usize,
        entries,
    })
}

/// What the kernel counts at a socket that receives.
pub(super) fn statistics(socket: &OwnedFd) -> io::Result<libc::xdp_statistics> {
    // SAFETY: all zeroes are a valid xdp_statistics.
    let statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    get(socket, libc::SOL_XDP, libc::XDP_STATISTICS, statistics)
}

/// Binds the socket, and says whether frames go without being copied.
pub(super) fn bind(socket: &OwnedFd, interface: u32, queue: u32) -> io::Result<bool> {
    match bind_with(socket, interface, queue, libc::XDP_ZEROCOPY) {
        Ok(()) => Ok(true),
        Err(e) if is_final(&e) => Err(e),
        // The driver cannot, or not with this queue, or has not the memory for it, and drivers have many words for
        // that: the copying way is open to all.
        Err(_) => bind_with(socket, interface, queue, libc::XDP_COPY).map(|()| false),
    }
}

/// Copying would not help.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::ENETDOWN | libc::ENODEV | libc::ENXIO | libc::EPERM)
    )
}

fn bind_with(socket: &OwnedFd, interface: u32, queue: u32, mode: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: mode,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: the address is a whole sockaddr_xdp, and its size is given.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: all zeroes are a valid xdp_mmap_offsets.
    let offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, offsets)
}
