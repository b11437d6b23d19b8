//! AF_XDP sockets: frames lie in memory that is shared with the kernel, and only their offsets are passed. Sockets that
//! send come first, sockets that receive are at the end.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use trawl_sys::error::{Error, Result};
use trawl_sys::memory::Mapping;
use trawl_sys::netlink::Netlink;
use trawl_sys::netlink::ethtool::Ethtool;
use trawl_sys::netlink::socket_option::{get, set};

/// Bytes for one frame, including its headroom; the kernel supports 2048 and 4096.
const ROOM: usize = 4096;
/// Number of slots for frames, and size of the rings.
const SLOTS: u32 = 2048;

/// Longest wait for a queue that is in use, and the interval between attempts.
const PATIENCE: Duration = Duration::from_secs(1);
const TURN: Duration = Duration::from_millis(10);

/// Length of the longest frame.
pub const LONGEST: usize = ROOM;

/// Result of a call to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kicked {
    /// Frames that the device accepted.
    pub taken: u32,
    /// Frames that it dropped for lack of room: they are not sent again.
    pub dropped: u32,
    /// True if the device had no room for the next frame, which stays queued.
    pub busy: bool,
}

/// A socket bound to one queue of an interface.
#[derive(Debug)]
pub struct XskSender {
    socket: OwnedFd,
    name: String,
    queue: u32,
    memory: Mapping,
    transmit: Producer<libc::xdp_desc>,
    /// Value of the kernel's counter of frames when they were last reported by [`Self::kick`].
    reported: u32,
    completed: Consumer<u64>,
    /// Unused slots.
    free: Vec<u64>,
    zero_copy: bool,
}

impl XskSender {
    /// Opens a socket on an interface of the calling thread's namespace: zero-copy if the driver supports it, otherwise
    /// copying.
    pub fn open(name: &str, queue: u32) -> Result<Self> {
        let index = Netlink::current()?.link(name)?.index;
        let fail = |e: std::io::Error| explain("send by AF_XDP out of", name, queue, e);
        let memory = Mapping::anonymous(ROOM * SLOTS as usize)?;
        let socket = open().map_err(fail)?;
        register_memory(&socket, &memory, ROOM as u32).map_err(fail)?;
        let rings = make_sending_rings(&socket, SLOTS).map_err(fail)?;
        let zero_copy = bind_patiently(&socket, index, queue).map_err(fail)?;
        let transmit = Producer::new(rings.transmit, SLOTS);
        Ok(Self {
            reported: transmit.consumed(),
            transmit,
            completed: Consumer::new(rings.completed, SLOTS),
            free: (0..u64::from(SLOTS)).map(|slot| slot * ROOM as u64).collect(),
            name: name.to_owned(),
            queue,
            socket,
            memory,
            zero_copy,
        })
    }

    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Returns the number of frames that the kernel holds and the device has not accepted yet.
    pub fn waiting(&self) -> u32 {
        self.transmit.waiting()
    }

    /// Calls `write` to fill a free slot with a frame, whose length it returns, and queues it. Returns `None` if it
    /// wrote none, or no slot is free.
    pub fn queue<E>(&mut self, write: impl FnOnce(&mut [u8]) -> Result<Option<usize>, E>) -> Result<Option<usize>, E> {
        if self.free.is_empty() {
            let completed = &mut self.completed;
            self.free.extend(std::iter::from_fn(|| completed.take()));
        }
        if !self.transmit.has_room() {
            return Ok(None);
        }
        let Some(frame) = self.free.pop() else {
            return Ok(None);
        };
        let start = self.memory.at(frame as usize);
        // SAFETY: the slot lies within the memory and belongs to user space: the kernel gave it back, or never had it.
        let room = unsafe { std::slice::from_raw_parts_mut(start, ROOM) };
        match write(room) {
            Ok(Some(length)) => {
                self.transmit.put(libc::xdp_desc { addr: frame, len: length as u32, options: 0 });
                Ok(Some(length))
            }
            other => {
                self.free.push(frame);
                other
            }
        }
    }

    /// Hands the queued frames to the kernel, which sends them until the device accepts no more. In zero-copy mode, the
    /// driver sends them later, and the next call reports them.
    pub fn kick(&mut self) -> Result<Kicked> {
        self.transmit.publish();
        let mut kicked = Kicked::default();
        // In copying mode, the kernel sends a few frames for each call.
        loop {
            let at = self.transmit.consumed();
            if self.transmit.waiting() == 0 {
                break;
            }
            if let Err(error) = self.wake() {
                match error.raw_os_error() {
                    // The device dropped one frame, and would drop the next ones too.
                    Some(libc::EBUSY) => {
                        kicked.dropped += 1;
                        break;
                    }
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => {}
                    _ => return Err(self.explain(error)),
                }
            }
            if self.transmit.consumed() == at {
                kicked.busy = !self.zero_copy || !self.transmit.has_room();
                break;
            }
        }
        let now = self.transmit.consumed();
        let consumed = now.wrapping_sub(self.reported);
        self.reported = now;
        kicked.taken = consumed.saturating_sub(kicked.dropped);
        Ok(kicked)
    }

    /// Returns true if the driver sends frames from this socket now: in zero-copy mode, some drivers do so only while
    /// an XDP program is attached.
    pub fn is_served(&self) -> bool {
        match self.wake() {
            Err(e) => !matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENXIO)),
            Ok(()) => true,
        }
    }

    /// Explains why the kernel sends no frames from the bound socket.
    fn explain(&self, error: io::Error) -> Error {
        const DOING: &str = "send by AF_XDP out of";
        let unserved = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENXIO));
        let link = Netlink::current().and_then(|mut netlink| netlink.find_link(&self.name));
        if unserved && self.zero_copy && matches!(link, Ok(Some(_))) {
            return Error::failed(
                format!("cannot {DOING} {}", self.name),
                "its driver sends from such sockets only while it has an XDP program",
            );
        }
        explain(DOING, &self.name, self.queue, error)
    }

    /// Makes the kernel send queued frames.
    fn wake(&self) -> io::Result<()> {
        // SAFETY: no data and no address are passed.
        let result = unsafe {
            libc::sendto(self.socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the number of slots that the kernel holds: sent, or queued.
    pub fn outstanding(&mut self) -> u32 {
        let completed = &mut self.completed;
        self.free.extend(std::iter::from_fn(|| completed.take()));
        SLOTS - self.free.len() as u32
    }
}

/// Binds a socket, with retries: the kernel releases the queue of a closed socket a moment after the close.
fn bind_patiently(socket: &OwnedFd, index: u32, queue: u32) -> std::io::Result<bool> {
    let start = Instant::now();
    loop {
        match bind(socket, index, queue) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < PATIENCE => {
                std::thread::sleep(TURN);
            }
            result => return result,
        }
    }
}

fn explain(doing: &str, name: &str, queue: u32, error: std::io::Error) -> Error {
    let what = format!("cannot {doing} {name}");
    match error.raw_os_error() {
        Some(libc::EPERM) => Error::os(what, error).fix("this requires root (CAP_NET_RAW)"),
        Some(libc::EAFNOSUPPORT) => Error::failed(what, "the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)"),
        Some(libc::ENXIO | libc::ENODEV) => Error::failed(what, "the interface is gone"),
        Some(libc::ENETDOWN) => crate::send::down_or_gone(what, name),
        Some(libc::EINVAL) if queues(name).is_none_or(|queues| queue >= queues) => {
            Error::failed(what, format!("it has no queue {queue}"))
        }
        Some(libc::EINVAL) => Error::failed(what, format!("the driver refuses AF_XDP at queue {queue}: {error}")),
        Some(libc::EBUSY) => Error::failed(what, format!("another socket has its queue {queue}")),
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            Error::os(what, error).fix("the limit of locked memory may be too low: ulimit -l unlimited")
        }
        _ => Error::os(what, error),
    }
}

/// Returns the number of queues in use of an interface; `None` if the interface is gone.
fn queues(name: &str) -> Option<u32> {
    let link = Netlink::current().and_then(|mut netlink| netlink.link(name)).ok()?;
    let channels = Ethtool::open(None, name).and_then(|ethtool| ethtool.channels());
    let in_use = channels.map_or(0, |now| now.combined + now.rx.max(now.tx));
    Some(match in_use {
        0 => link.rx_queues.max(link.tx_queues),
        in_use => in_use,
    })
}

// The system calls that make an AF_XDP socket.

/// The rings of a socket that sends.
struct SendingRings {
    pub transmit: Ring,
    pub completed: Ring,
}

/// The rings of a socket that receives.
struct ReceivingRings {
    pub fill: Ring,
    pub received: Ring,
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn register_memory(socket: &OwnedFd, memory: &Mapping, room: u32) -> io::Result<()> {
    // SAFETY: all zeroes are a valid xdp_umem_reg.
    let mut request: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
    request.addr = memory.at(0) as u64;
    request.len = memory.length() as u64;
    request.chunk_size = room;
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)
}

fn make_sending_rings(socket: &OwnedFd, size: u32) -> io::Result<SendingRings> {
    // A socket that does not receive still requires a ring for memory to receive into.
    for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_TX_RING] {
        set(socket, libc::SOL_XDP, ring, &size)?;
    }
    let offsets = offsets(socket)?;
    let completed = libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64;
    Ok(SendingRings {
        transmit: map::<libc::xdp_desc>(socket, &offsets.tx, size, libc::XDP_PGOFF_TX_RING)?,
        completed: map::<u64>(socket, &offsets.cr, size, completed)?,
    })
}

fn make_receiving_rings(socket: &OwnedFd, size: u32) -> io::Result<ReceivingRings> {
    // The memory requires a ring for sent frames, although none are sent.
    for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
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
    let memory = Mapping::of_file(socket.as_fd(), length, page as u64)
        .map_err(|e| e.errno().map_or_else(|| io::Error::other(e.to_string()), io::Error::from_raw_os_error))?;
    Ok(Ring { memory, producer: at.producer as usize, consumer: at.consumer as usize, entries })
}

/// Returns the kernel's counts of a receiving socket.
fn statistics(socket: &OwnedFd) -> io::Result<libc::xdp_statistics> {
    // SAFETY: all zeroes are a valid xdp_statistics.
    let statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    get(socket, libc::SOL_XDP, libc::XDP_STATISTICS, statistics)
}

/// Binds the socket, and returns true if it is zero-copy.
fn bind(socket: &OwnedFd, interface: u32, queue: u32) -> io::Result<bool> {
    match bind_with(socket, interface, queue, libc::XDP_ZEROCOPY) {
        Ok(()) => Ok(true),
        Err(e) if is_final(&e) => Err(e),
        // Zero-copy is not supported by the driver or for this queue, or it lacks memory; drivers report this by many
        // errors, so copying mode is tried after all of them.
        Err(_) => bind_with(socket, interface, queue, libc::XDP_COPY).map(|()| false),
    }
}

/// Returns true if copying mode would fail in the same way.
fn is_final(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENETDOWN | libc::ENODEV | libc::ENXIO | libc::EPERM))
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
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn offsets(socket: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: all zeroes are a valid xdp_mmap_offsets.
    let offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, offsets)
}

// The rings that an AF_XDP socket shares with the kernel: one side writes, the other reads.

/// Offsets of the parts of a ring in its mapping.
#[derive(Debug)]
struct Ring {
    pub memory: Mapping,
    pub producer: usize,
    pub consumer: usize,
    pub entries: usize,
}

impl Ring {
    fn word(&self, offset: usize) -> &AtomicU32 {
        let at: *mut u32 = self.memory.at(offset).cast();
        // SAFETY: the kernel reported this offset of an aligned u32 in the mapping, which lives as long as the borrow;
        // both sides access it only atomically.
        unsafe { AtomicU32::from_ptr(at) }
    }
}

/// Entries of the two kinds of rings.
trait Entry: Copy {}
/// An offset in the shared memory.
impl Entry for u64 {}
/// A frame: its offset and its length.
impl Entry for libc::xdp_desc {}

/// A ring that user space writes: frames to send, or slots to receive into.
#[derive(Debug)]
struct Producer<T> {
    ring: Ring,
    size: u32,
    /// Number of entries written; the kernel sees them up to its own counter.
    written: u32,
    entry: PhantomData<T>,
}

impl<T: Entry> Producer<T> {
    pub fn new(ring: Ring, size: u32) -> Self {
        let written = ring.word(ring.producer).load(Ordering::Relaxed);
        Self { ring, size, written, entry: PhantomData }
    }

    /// Returns the number of entries that the kernel has consumed, modulo 2^32.
    pub fn consumed(&self) -> u32 {
        self.ring.word(self.ring.consumer).load(Ordering::Acquire)
    }

    pub fn waiting(&self) -> u32 {
        self.written.wrapping_sub(self.consumed())
    }

    pub fn has_room(&self) -> bool {
        self.waiting() < self.size
    }

    /// Writes an entry. Requires a free slot.
    pub fn put(&mut self, entry: T) {
        let index = (self.written & (self.size - 1)) as usize;
        let at = self.ring.entries + index * size_of::<T>();
        let to: *mut T = self.ring.memory.at(at).cast();
        // SAFETY: the entry lies in the mapping, aligned, and the kernel does not read it before it is published.
        unsafe { to.write(entry) };
        self.written = self.written.wrapping_add(1);
    }

    pub fn publish(&mut self) {
        let word = self.ring.word(self.ring.producer);
        word.store(self.written, Ordering::Release);
    }
}

/// A ring that user space reads: slots that the kernel returns, or received frames.
#[derive(Debug)]
struct Consumer<T> {
    ring: Ring,
    size: u32,
    read: u32,
    entry: PhantomData<T>,
}

impl<T: Entry> Consumer<T> {
    pub fn new(ring: Ring, size: u32) -> Self {
        let read = ring.word(ring.consumer).load(Ordering::Relaxed);
        Self { ring, size, read, entry: PhantomData }
    }

    pub fn take(&mut self) -> Option<T> {
        let produced = self.ring.word(self.ring.producer).load(Ordering::Acquire);
        if produced == self.read {
            return None;
        }
        let index = (self.read & (self.size - 1)) as usize;
        let at = self.ring.entries + index * size_of::<T>();
        let from: *mut T = self.ring.memory.at(at).cast();
        // SAFETY: the entry lies in the mapping, aligned, and the kernel has published it.
        let entry = unsafe { from.read() };
        self.read = self.read.wrapping_add(1);
        self.ring.word(self.ring.consumer).store(self.read, Ordering::Release);
        Some(entry)
    }
}

// AF_XDP sockets that receive, for experiments only: such a tap would keep the packets from other receivers.

/// Number of slots for frames, and size of the rings.
const RECEIVE_SLOTS: u32 = 8192;

/// Frames that did not get through, by the kernel's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Dropped because the receive ring was full.
    pub full: u64,
    /// Dropped for other reasons, such as a missing slot or an excessive length.
    pub other: u64,
}

/// A socket that receives the frames that an XDP program redirects to it from one queue of an interface.
#[derive(Debug)]
pub struct XskReceiver {
    socket: OwnedFd,
    name: String,
    memory: Mapping,
    fill: Producer<u64>,
    received: Consumer<libc::xdp_desc>,
}

impl XskReceiver {
    /// Opens a socket for a queue of an interface of the calling thread's namespace.
    pub fn open(name: &str, queue: u32) -> Result<Self> {
        let index = Netlink::current()?.link(name)?.index;
        let fail = |e: std::io::Error| explain("receive by AF_XDP from", name, queue, e);
        let memory = Mapping::anonymous(ROOM * RECEIVE_SLOTS as usize)?;
        let socket = open().map_err(fail)?;
        register_memory(&socket, &memory, ROOM as u32).map_err(fail)?;
        let rings = make_receiving_rings(&socket, RECEIVE_SLOTS).map_err(fail)?;
        bind_patiently(&socket, index, queue).map_err(fail)?;
        let mut fill = Producer::new(rings.fill, RECEIVE_SLOTS);
        for slot in 0..u64::from(RECEIVE_SLOTS) {
            fill.put(slot * ROOM as u64);
        }
        fill.publish();
        Ok(Self { fill, received: Consumer::new(rings.received, RECEIVE_SLOTS), name: name.to_owned(), socket, memory })
    }

    /// Passes each received frame to `see`, gives its slot back to the kernel, and returns the number of frames.
    pub fn drain<E>(&mut self, mut see: impl FnMut(&[u8]) -> Result<(), E>) -> Result<u64, E> {
        let mut count = 0;
        while let Some(frame) = self.received.take() {
            let (offset, length) = (frame.addr as usize, frame.len as usize);
            if offset + length <= self.memory.length() {
                let start = self.memory.at(offset);
                // SAFETY: the frame lies within the memory, as was just checked, and the kernel does not touch its slot
                // before it is put into the fill ring again.
                see(unsafe { std::slice::from_raw_parts(start, length) })?;
            }
            // The ring has as many entries as slots exist: a put always fits.
            self.fill.put(frame.addr / ROOM as u64 * ROOM as u64);
            count += 1;
            if count % 64 == 0 {
                self.fill.publish();
            }
        }
        self.fill.publish();
        Ok(count)
    }

    pub fn missed(&self) -> Result<Missed> {
        let counted =
            statistics(&self.socket).map_err(|e| explain("read the AF_XDP drop counters of", &self.name, 0, e))?;
        Ok(Missed {
            // A frame without a slot is counted among the dropped ones.
            full: counted.rx_ring_full,
            other: counted.rx_dropped + counted.rx_invalid_descs,
        })
    }
}

impl AsFd for XskReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
