//! Packet sockets for capture: AF_PACKET with memory that the kernel fills block by block (TPACKET_V3), one socket for
//! each CPU.
//!
//! The sockets share the packets by PACKET_FANOUT_CPU: each CPU fills its own ring, so that CPUs do not contend for a
//! lock, and each ring is in order of time. Fanout by flow or queue would mix CPUs in one ring and lose both; so would
//! rolling over to a neighbour's ring, which is off.

mod filter;
mod program;

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::{c_int, tpacket_hdr_v1, tpacket3_hdr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use trawl_sys::error::Advice;
use trawl_sys::memory::Mapping;
use trawl_sys::netlink::socket_option::{get, set};
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::{Error, Result};

pub use filter::{Filter, Instruction, PacketQueue, PacketRequest};
pub use program::Rejected;

/// Size of a block, which holds the longest packet on Linux except with BIG TCP, or a few thousand short ones.
const BLOCK_SIZE: usize = 256 << 10;
/// Minimum number of blocks: one is read, one is written, and the others absorb delays.
const BLOCKS_MIN: usize = 4;
/// Time after which a partly filled block is handed over: if packets are awaited, live output may be 10 ms late, and this
/// leaves time for the merge to wake up. Each block costs a wake-up.
const RETIRE_AFTER_MS: u32 = 2;
/// The same if nobody waits for packets.
const RETIRE_RARELY_MS: u32 = 100;
/// Maximum number of sockets: more would only multiply the threads that read them. Several CPUs may share a socket.
pub const SOCKETS_MAX: usize = 16;

/// The sockets of a request.
#[derive(Debug)]
pub struct Opened {
    pub sockets: Vec<PacketSocket>,
    /// Counts of rejected packets, if available.
    pub rejected: Option<Rejected>,
    /// Reason for missing counts that were requested.
    pub refusal: Option<Error>,
}

/// A socket and the ring that the kernel fills.
#[derive(Debug)]
pub struct PacketSocket {
    descriptor: OwnedFd,
    ring: Mapping,
    blocks: usize,
    /// Index of the block that is handed over next.
    current: usize,
}

/// State of the interface that is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSource {
    There,
    /// The interface is gone from the namespace.
    Gone,
}

/// Opens the sockets, which all begin to receive when the last one is ready. On an interface that is down, kernels
/// before 6.12 allow one socket only, so the result may be shorter than requested.
pub fn open(namespace: Option<&Namespace>, request: &PacketRequest<'_>) -> Result<Opened> {
    let fail = |e| explain(request.name, e);
    let (mut counting, mut refusal) = (None, None);
    let filter = request.filter.unwrap_or_default();
    let everything = request.interfaces.map(|_| &[][..]);
    if let Some(block) = filter.block.or(everything) {
        match program::load(request, &filter, block) {
            Ok(loaded) => counting = Some(loaded),
            Err(error) if filter.classic.is_none() || request.interfaces.is_some() => {
                return Err(error);
            }
            Err(error) => refusal = Some(error),
        }
    }
    let open_all = || -> io::Result<Vec<PacketSocket>> {
        let mut sockets = Vec::new();
        let mut group = None;
        let wanted = request.sockets.clamp(1, SOCKETS_MAX);
        while sockets.len() < wanted {
            let socket = PacketSocket::open(request)?;
            if wanted > 1 {
                match join_fanout(&socket.descriptor, group, request.sent) {
                    Ok(joined) => group = Some(joined),
                    Err(e) if e.raw_os_error() == Some(libc::EINVAL) && sockets.is_empty() => {
                        sockets.push(socket);
                        break;
                    }
                    Err(e) => return Err(e),
                }
            }
            sockets.push(socket);
        }
        // The filter replaces the one that rejected everything: it never sees earlier packets.
        let classic = filter::program(request);
        for socket in &sockets {
            match &counting {
                Some((program, _)) => attach_program(&socket.descriptor, program)?,
                None => attach_filter(&socket.descriptor, &classic)?,
            }
        }
        Ok(sockets)
    };
    let sockets = run_maybe_in(namespace, open_all)?.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOMEM) => too_large(request).unwrap_or_else(|| fail(e)),
        _ => fail(e),
    })?;
    Ok(Opened { sockets, rejected: counting.map(|(_, rejected)| rejected), refusal })
}

/// Puts an interface into promiscuous mode until the descriptor is closed.
pub fn promiscuous(namespace: Option<&Namespace>, interface: u32) -> Result<OwnedFd> {
    let set = || -> io::Result<OwnedFd> {
        let socket = raw_socket(libc::SOCK_RAW)?;
        enter_promiscuous_mode(&socket, interface)?;
        Ok(socket)
    };
    run_maybe_in(namespace, set)?.map_err(|e| {
        let what = format!("cannot put interface number {interface} into promiscuous mode");
        match e.raw_os_error() {
            Some(libc::EPERM) => {
                Error::os(what, e).fix("run as root, or with CAP_NET_RAW; or capture without promiscuous mode: -p")
            }
            _ => Error::os(what, e).fix("capture without promiscuous mode: -p"),
        }
    })
}

/// Adds another interface of the namespace to a descriptor of [`promiscuous`], or removes it.
pub fn promiscuous_too(socket: &OwnedFd, interface: u32, on: bool) -> io::Result<()> {
    if on { enter_promiscuous_mode(socket, interface) } else { leave_promiscuous_mode(socket, interface) }
}

impl PacketSocket {
    /// Opens a bound socket that rejects all packets at first.
    fn open(request: &PacketRequest<'_>) -> io::Result<Self> {
        let kind = if request.network_layer { libc::SOCK_DGRAM } else { libc::SOCK_RAW };
        let descriptor = raw_socket(kind)?;
        let blocks = (request.ring_size / BLOCK_SIZE).max(BLOCKS_MIN);
        attach_filter(&descriptor, &filter::NOTHING)?;
        if request.hardware_time {
            prefer_hardware_time(&descriptor)?;
        }
        if !request.sent {
            // This spares copies of packets that the filter would reject; kernels before 4.20 refuse it.
            let _ = ignore_sent(&descriptor);
        }
        let retire_after = if request.prompt { RETIRE_AFTER_MS } else { RETIRE_RARELY_MS };
        make_ring(&descriptor, BLOCK_SIZE, blocks, retire_after)?;
        let ring = Mapping::of_map(descriptor.as_fd(), BLOCK_SIZE * blocks)
            .map_err(|e| io::Error::from_raw_os_error(e.errno().unwrap_or(libc::ENOMEM)))?;
        bind(&descriptor, request.interface)?;
        Ok(Self { descriptor, ring, blocks, current: 0 })
    }

    /// Returns the next block that the kernel has handed over. Dropping it returns it to the kernel.
    pub fn next_block(&mut self) -> Option<Block<'_>> {
        let offset = self.current * BLOCK_SIZE;
        let block = Block::take(&self.descriptor, &mut self.ring, offset, BLOCK_SIZE)?;
        self.current = (self.current + 1) % self.blocks;
        Some(block)
    }

    /// Returns true if the block that the kernel is filling is empty. Called after `next_block` returned none.
    pub fn is_empty(&self) -> bool {
        is_open_and_empty(&self.ring, self.current * BLOCK_SIZE)
    }

    /// Rejects all further packets without counting them. The contents of the ring can still be read.
    pub fn close(&self) -> Result<()> {
        attach_filter(&self.descriptor, &filter::NOTHING)
            .map_err(|e| Error::os("cannot close a packet socket's filter", e))
    }

    /// Returns the number of packets that found the ring full since the last call or block.
    pub fn take_drops(&self) -> Result<u64> {
        drops(&self.descriptor)
    }

    /// Waits until a block is handed over or the time is up.
    pub fn wait(&self, at_most: Duration, wake: Option<BorrowedFd<'_>>) -> Result<PacketSource> {
        let fail = |e| Error::os("cannot wait for packets", e);
        let wake = wake.into_iter().map(|wake| PollFd::from_borrowed_fd(wake, PollFlags::IN));
        let socket = PollFd::new(&self.descriptor, PollFlags::IN);
        let mut set: Vec<PollFd<'_>> = std::iter::once(socket).chain(wake).collect();
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) as _ };
        match poll(&mut set, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(fail(e.into())),
        }
        if !set[0].revents().contains(PollFlags::ERR) {
            return Ok(PacketSource::There);
        }
        match rustix::net::sockopt::socket_error(&self.descriptor).map_err(|e| fail(e.into()))? {
            // The interface went down. It may come up again, unless it was removed.
            Err(rustix::io::Errno::NETDOWN) => {
                let gone = is_unbound(&self.descriptor).map_err(fail)?;
                Ok(if gone { PacketSource::Gone } else { PacketSource::There })
            }
            Err(e) => Err(fail(e.into())),
            Ok(()) => Ok(PacketSource::There),
        }
    }
}

/// Opens a socket without a ring on an interface of the calling thread's namespace: each read returns one packet. The
/// benchmark compares rings with it.
pub fn without_ring(interface: u32) -> Result<File> {
    let open = || {
        let socket = raw_socket(libc::SOCK_RAW | libc::SOCK_NONBLOCK)?;
        ignore_sent(&socket)?;
        bind(&socket, interface)?;
        Ok(File::from(socket))
    };
    open().map_err(|e| explain(&format!("interface number {interface}"), e))
}

/// Opens a socket of protocol 0, which receives nothing before it is bound to an interface.
fn raw_socket(kind: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let descriptor = unsafe { libc::socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor.as_raw_fd()) })
}

/// Returns the error for a filter that is too large, if it is: a filter occupies the socket's option memory.
fn too_large(request: &PacketRequest<'_>) -> Option<Error> {
    /// Memory for the socket's other options.
    const OTHER: usize = 4096;
    let block = request.filter.and_then(|filter| filter.block)?;
    let (instructions, size) = (block.len(), size_of_val(block) + OTHER);
    let most: usize = std::fs::read_to_string("/proc/sys/net/core/optmem_max").ok()?.trim().parse().ok()?;
    (size > most).then(|| {
        Error::failed(
            format!("cannot filter on a packet socket on {}", request.name),
            format!("the filter becomes {instructions} eBPF instructions, which exceed the limit of {most} bytes for a socket"),
        )
        .fix(format!("sysctl -w net.core.optmem_max={}, or use --tap tc", (2 * size).next_power_of_two()))
    })
}

fn explain(name: &str, error: io::Error) -> Error {
    let fix: Advice = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "this requires root (CAP_NET_RAW)".into(),
        Some(libc::ENOMEM) => "choose a smaller --ring-size".into(),
        Some(libc::EAFNOSUPPORT) => "the kernel lacks packet sockets (CONFIG_PACKET): modprobe af_packet".into(),
        Some(libc::ENODEV | libc::ENXIO) => "the interface was removed; ip link lists the others".into(),
        _ => return Error::os(format!("cannot open a packet socket on {name}"), error),
    };
    Error::os(format!("cannot open a packet socket on {name}"), error).fix(fix)
}

#[cfg(test)]
mod tests;

// The system calls on packet sockets: options, binding and counts.

const TPACKET_V3: c_int = 2;
const ETH_P_ALL_NETWORK_ORDER: u16 = (libc::ETH_P_ALL as u16).to_be();

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn make_ring(socket: &OwnedFd, block_size: usize, blocks: usize, retire_after_ms: u32) -> io::Result<()> {
    // Packets are packed in a block; the kernel still requires a frame size that divides the block.
    const FRAME_SIZE: usize = 2048;
    set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &TPACKET_V3)?;
    let request = libc::tpacket_req3 {
        tp_block_size: block_size as u32,
        tp_block_nr: blocks as u32,
        tp_frame_size: FRAME_SIZE as u32,
        tp_frame_nr: (block_size / FRAME_SIZE * blocks) as u32,
        tp_retire_blk_tov: retire_after_ms,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

fn attach_filter(socket: &OwnedFd, program: &[Instruction]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Replaces the socket's filter with an eBPF program of the type "socket filter".
pub fn attach_program(socket: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    let program: c_int = program.as_raw_fd();
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program)
}

fn prefer_hardware_time(socket: &OwnedFd) -> io::Result<()> {
    let wanted = libc::SOF_TIMESTAMPING_RAW_HARDWARE as c_int;
    set(socket, libc::SOL_PACKET, libc::PACKET_TIMESTAMP, &wanted)
}

fn ignore_sent(socket: &OwnedFd) -> io::Result<()> {
    let on: c_int = 1;
    set(socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on)
}

fn enter_promiscuous_mode(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    let request = promiscuity_of(interface);
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Ends the promiscuous mode that this socket requested.
fn leave_promiscuous_mode(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    let request = promiscuity_of(interface);
    set(socket, libc::SOL_PACKET, libc::PACKET_DROP_MEMBERSHIP, &request)
}

fn promiscuity_of(interface: u32) -> libc::packet_mreq {
    libc::packet_mreq {
        mr_ifindex: interface as c_int,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    }
}

/// Joins the group, or makes a new one. The CPU that handles a packet chooses the socket.
fn join_fanout(socket: &OwnedFd, group: Option<u16>, sent_too: bool) -> io::Result<u16> {
    let mut kind = libc::PACKET_FANOUT_CPU;
    if group.is_none() {
        kind |= libc::PACKET_FANOUT_FLAG_UNIQUEID;
    }
    if !sent_too {
        // The group needs the option too; on kernels that do not know it, the filter rejects sent packets.
        kind |= libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    }
    let request = (kind << 16 | u32::from(group.unwrap_or(0))) as c_int;
    set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &request)?;
    let joined = get(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, 0 as c_int)?;
    Ok(joined as u16)
}

pub fn bind(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    let mut address = no_address();
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ETH_P_ALL_NETWORK_ORDER;
    address.sll_ifindex = interface as c_int;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is a whole sockaddr_ll, and its length is given.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

/// Returns true if the kernel has unbound a socket, as it does when the interface is deleted or moved away.
fn is_unbound(socket: &OwnedFd) -> io::Result<bool> {
    let mut address = no_address();
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes `length` bytes at most to the address.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length) })?;
    Ok(address.sll_ifindex <= 0)
}

/// Returns the number of packets that found the ring full, and resets it to zero.
pub fn drops(socket: &OwnedFd) -> Result<u64> {
    let nothing = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
    get(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, nothing)
        .map(|figures| figures.tp_drops.into())
        .map_err(|e| Error::os("cannot read a packet socket's figures", e))
}

fn no_address() -> libc::sockaddr_ll {
    // SAFETY: all zeroes are a valid sockaddr_ll.
    unsafe { std::mem::zeroed() }
}

// A block of packets handed over by the kernel, and the packets in it.

/// Offset of a block's header, after two fields that are not used here.
const HEADER_V1: usize = 8;
const STATUS: usize = HEADER_V1 + offset_of!(tpacket_hdr_v1, block_status);
const PACKETS: usize = HEADER_V1 + offset_of!(tpacket_hdr_v1, num_pkts);
const FIRST: usize = HEADER_V1 + offset_of!(tpacket_hdr_v1, offset_to_first_pkt);

/// Offset of the packet's address, which follows its header and holds the packet type.
const ADDRESS: usize = size_of::<tpacket3_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
const PACKET_TYPE: usize = ADDRESS + offset_of!(libc::sockaddr_ll, sll_pkttype);
const INTERFACE: usize = ADDRESS + offset_of!(libc::sockaddr_ll, sll_ifindex);
const FRAME_HEADER: usize = ADDRESS + size_of::<libc::sockaddr_ll>();

/// Packets that the kernel does not touch until the block is dropped.
#[derive(Debug)]
pub struct Block<'a> {
    start: *mut u8,
    size: usize,
    packets: u32,
    ring: PhantomData<&'a mut Mapping>,
    socket: &'a OwnedFd,
}

/// A packet of a block.
#[derive(Clone, Copy, Debug)]
pub struct RingFrame<'a> {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// True if the time is the network card's.
    pub hardware_time: bool,
    /// Length of the packet; `bytes` may be shorter.
    pub original: u32,
    pub bytes: &'a [u8],
    /// VLAN tag that the kernel removed from the bytes, in its original form.
    pub tag: Option<[u8; 4]>,
    pub packet_type: PacketType,
    /// Index of the interface, for a socket of several interfaces.
    pub interface: u32,
}

/// Direction and destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketType {
    /// Received, and addressed to this host.
    ToUs,
    /// Received as a broadcast.
    ToAll,
    /// Received as a multicast.
    ToGroup,
    /// Received although addressed to another host: promiscuous mode.
    ToOthers,
    Sent,
}

impl PacketType {
    fn of(packet_type: u8) -> Self {
        match packet_type {
            libc::PACKET_BROADCAST => Self::ToAll,
            libc::PACKET_MULTICAST => Self::ToGroup,
            libc::PACKET_OTHERHOST => Self::ToOthers,
            libc::PACKET_OUTGOING => Self::Sent,
            _ => Self::ToUs,
        }
    }
}

/// Returns a field of a block's header, which the kernel changes at any time.
fn word<'a>(start: *mut u8, offset: usize) -> &'a AtomicU32 {
    // SAFETY: callers pass the start of a block inside a live mapping; it is aligned to pages, and the offsets belong
    // to u32 members of its header.
    unsafe { AtomicU32::from_ptr(start.wrapping_add(offset).cast()) }
}

/// Returns true if the kernel owns the block and has put no packet into it.
fn is_open_and_empty(ring: &Mapping, offset: usize) -> bool {
    let start = ring.at(offset);
    word(start, STATUS).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0
        && word(start, PACKETS).load(Ordering::Acquire) == 0
}

impl<'a> Block<'a> {
    /// Returns the block at the offset, if the kernel has handed it over.
    fn take(socket: &'a OwnedFd, ring: &'a mut Mapping, offset: usize, size: usize) -> Option<Self> {
        let start = ring.at(offset);
        assert!(offset + size <= ring.length());
        let status = word(start, STATUS).load(Ordering::Acquire);
        (status & libc::TP_STATUS_USER != 0).then(|| Self {
            start,
            size,
            packets: word(start, PACKETS).load(Ordering::Relaxed),
            ring: PhantomData,
            socket,
        })
    }

    /// Returns the number of packets that found the ring full between the previous block and this one.
    pub fn losses_before(&self) -> Result<u64> {
        let status = word(self.start, STATUS).load(Ordering::Relaxed);
        match status & libc::TP_STATUS_LOSING {
            0 => Ok(0),
            _ => drops(self.socket),
        }
    }

    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Returns the packets in order. Fewer than `packets` are returned only if the block is damaged.
    pub fn frames(&self) -> Frames<'_> {
        // SAFETY: the block lies within the mapping (checked when it was taken), whose exclusive borrow this block
        // holds, and the kernel does not write to it before it is handed back.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, self.size) };
        let first = word(self.start, FIRST).load(Ordering::Relaxed);
        Frames { bytes, next: first as usize, left: self.packets }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // The kernel clears the number only when it opens the block again; until then the block has to count as empty.
        word(self.start, PACKETS).store(0, Ordering::Relaxed);
        word(self.start, STATUS).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}

/// The packets of a block, in order.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    next: usize,
    left: u32,
}

impl<'a> Iterator for Frames<'a> {
    type Item = RingFrame<'a>;

    fn next(&mut self) -> Option<RingFrame<'a>> {
        self.left = self.left.checked_sub(1)?;
        let here = self.bytes.get(self.next..)?;
        let header: &[u8; FRAME_HEADER] = here.first_chunk()?;
        let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| header[at + i]));
        let u16_at = |at: usize| u16::from_ne_bytes(std::array::from_fn(|i| header[at + i]));
        let start = usize::from(u16_at(offset_of!(tpacket3_hdr, tp_mac)));
        let length = u32_at(offset_of!(tpacket3_hdr, tp_snaplen)) as usize;
        let status = u32_at(offset_of!(tpacket3_hdr, tp_status));
        let seconds = u32_at(offset_of!(tpacket3_hdr, tp_sec));
        let nanoseconds = u32_at(offset_of!(tpacket3_hdr, tp_nsec));
        let variant = offset_of!(tpacket3_hdr, hv1);
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let tci = u32_at(variant + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci)) as u16;
            let protocol = match status & libc::TP_STATUS_VLAN_TPID_VALID {
                0 => libc::ETH_P_8021Q as u16,
                _ => u16_at(variant + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tpid)),
            };
            let ([a, b], [c, d]) = (protocol.to_be_bytes(), tci.to_be_bytes());
            [a, b, c, d]
        });
        self.next += u32_at(offset_of!(tpacket3_hdr, tp_next_offset)) as usize;
        Some(RingFrame {
            time: u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds),
            hardware_time: status & libc::TP_STATUS_TS_RAW_HARDWARE != 0,
            original: u32_at(offset_of!(tpacket3_hdr, tp_len)),
            bytes: here.get(start..start + length)?,
            tag,
            packet_type: PacketType::of(header[PACKET_TYPE]),
            interface: u32_at(INTERFACE),
        })
    }
}
