//! Packet sockets for capture: AF_PACKET with memory that the kernel fills block by block (TPACKET_V3), one socket
//! for each CPU.
//!
//! The sockets share the packets by PACKET_FANOUT_CPU: each CPU fills a ring of its own, so that CPUs do not wait for
//! each other's lock, and what lies in one ring is in the order of time. Fanout by flow or queue would mix CPUs in one
//! ring and lose both; rolling over to a neighbour's ring when the own one is full would as well, so it is off.

mod block;
mod filter;
mod option;
mod program;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use trawl_sys::error::Advice;
use trawl_sys::memory::Mapping;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::{Error, Result};

pub use block::{Block, Frame, Frames, PacketType};
pub use filter::Instruction;
pub use program::Rejected;

/// Holds the longest packet there is on Linux short of BIG TCP, and a few thousand short ones.
const BLOCK_SIZE: usize = 256 << 10;
/// With fewer, one is always being read and one being written, and nothing is left for a delay.
const BLOCKS_MIN: usize = 4;
/// A block that is not full is handed over after this time. Live output may be 10 ms late: this leaves time for the
/// merge to wake up.
const RETIRE_AFTER_MS: u32 = 2;
/// More sockets than this only multiply the threads that read them; several CPUs then share one.
pub const SOCKETS_MAX: usize = 16;

/// What is to be captured, and how.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The interface's number.
    pub interface: u32,
    /// Its name, for messages.
    pub name: &'a str,
    /// Leave out the link layer: packets begin at the network header.
    pub network_layer: bool,
    pub sockets: usize,
    /// Memory of each socket's ring.
    pub ring_size: usize,
    /// The kernel copies no more bytes of a packet than this.
    pub snaplen: u32,
    pub received: bool,
    pub sent: bool,
    /// Ask for the network card's time stamps where it made one.
    pub hardware_time: bool,
    pub filter: Option<Filter<'a>>,
    /// A table of `InterfaceKey` and `InterfacePlace`: packets of those interfaces are wanted, and what is rejected
    /// counts by their points. The sockets are bound to no interface then.
    pub places: Option<BorrowedFd<'a>>,
}

/// Only packets that are received or sent by this queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    pub number: u32,
    /// What the kernel adds to the number where it notes it on a received packet. A packet without a note counts to
    /// queue 0, as it does for the kernel's generic XDP.
    pub received_offset: u32,
}

/// Which packets are wanted. What is in them is asked by an eBPF program that counts those it rejects or, where there
/// is none or the kernel does not take it, by a classic one whose rejections are in no figure.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    pub queue: Option<Queue>,
    /// Only packets that this CPU handles.
    pub cpu: Option<u32>,
    /// Instructions as crates/filter lowers them for a socket: see there for what they find in which register. None
    /// at all: every packet matches.
    pub block: Option<&'a [trawl_ebpf::Insn]>,
    pub classic: Option<&'a [Instruction]>,
}

/// The sockets of a request.
#[derive(Debug)]
pub struct Opened {
    pub sockets: Vec<PacketSocket>,
    /// What the filter rejects, where it is counted.
    pub rejected: Option<Rejected>,
    /// Why it is not counted, where it ought to be.
    pub refusal: Option<Error>,
}

/// A socket and the ring that the kernel fills.
#[derive(Debug)]
pub struct PacketSocket {
    descriptor: OwnedFd,
    ring: Mapping,
    blocks: usize,
    /// The block that is handed over next.
    current: usize,
}

/// Whether there is still something to capture from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    There,
    /// The interface is gone from the namespace.
    Gone,
}

/// Opens the sockets, and has all of them begin to receive when the last one is ready. On an interface that is down
/// the kernels before 6.12 allow one socket only, so there may be fewer than asked for.
pub fn open(namespace: Option<&Namespace>, request: &Request<'_>) -> Result<Opened> {
    let fail = |e| explain(request.name, e);
    let (mut counting, mut refusal) = (None, None);
    let filter = request.filter.unwrap_or_default();
    let everything = request.places.map(|_| &[][..]);
    if let Some(block) = filter.block.or(everything) {
        match program::load(request, &filter, block) {
            Ok(loaded) => counting = Some(loaded),
            Err(error) if filter.classic.is_none() || request.places.is_some() => {
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
                match option::join_fanout(&socket.descriptor, group, request.sent) {
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
        // The filter takes the place of the one that let nothing in: it never sees what came before.
        let classic = filter::program(request);
        for socket in &sockets {
            match &counting {
                Some((program, _)) => option::attach_program(&socket.descriptor, program)?,
                None => option::attach_filter(&socket.descriptor, &classic)?,
            }
        }
        Ok(sockets)
    };
    let sockets = run_maybe_in(namespace, open_all)?.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOMEM) => too_large(request).unwrap_or_else(|| fail(e)),
        _ => fail(e),
    })?;
    Ok(Opened {
        sockets,
        rejected: counting.map(|(_, rejected)| rejected),
        refusal,
    })
}

/// Puts an interface into promiscuous mode for as long as the descriptor is open.
pub fn promiscuous(namespace: Option<&Namespace>, interface: u32) -> Result<OwnedFd> {
    let set = || -> io::Result<OwnedFd> {
        let socket = raw_socket(libc::SOCK_RAW)?;
        option::be_promiscuous(&socket, interface)?;
        Ok(socket)
    };
    run_maybe_in(namespace, set)?.map_err(|e| {
        let what = format!("cannot put interface number {interface} into promiscuous mode");
        match e.raw_os_error() {
            Some(libc::EPERM) => Error::os(what, e)
                .fix("run as root, or with CAP_NET_RAW; or leave the mode as it is: -p"),
            _ => Error::os(what, e).fix("leave the mode as it is: -p"),
        }
    })
}

/// Has such a descriptor keep another interface of its namespace promiscuous as well, or no longer.
pub fn promiscuous_too(socket: &OwnedFd, interface: u32, on: bool) -> io::Result<()> {
    match on {
        true => option::be_promiscuous(socket, interface),
        false => option::be_selective(socket, interface),
    }
}

impl PacketSocket {
    /// A bound socket that lets no packet in yet.
    fn open(request: &Request<'_>) -> io::Result<Self> {
        let kind = if request.network_layer {
            libc::SOCK_DGRAM
        } else {
            libc::SOCK_RAW
        };
        let descriptor = raw_socket(kind)?;
        let blocks = (request.ring_size / BLOCK_SIZE).max(BLOCKS_MIN);
        option::attach_filter(&descriptor, &filter::NOTHING)?;
        if request.hardware_time {
            option::prefer_hardware_time(&descriptor)?;
        }
        if !request.sent {
            // Spares the kernel a copy of what the filter would reject; kernels before 4.20 cannot.
            let _ = option::ignore_sent(&descriptor);
        }
        option::make_ring(&descriptor, BLOCK_SIZE, blocks, RETIRE_AFTER_MS)?;
        let ring = Mapping::of_map(descriptor.as_fd(), BLOCK_SIZE * blocks)
            .map_err(|e| io::Error::from_raw_os_error(e.errno().unwrap_or(libc::ENOMEM)))?;
        option::bind(&descriptor, request.interface)?;
        Ok(Self {
            descriptor,
            ring,
            blocks,
            current: 0,
        })
    }

    /// The next block that the kernel has handed over. It goes back to the kernel when it is dropped.
    pub fn next_block(&mut self) -> Option<Block<'_>> {
        let offset = self.current * BLOCK_SIZE;
        let block = Block::take(&self.descriptor, &mut self.ring, offset, BLOCK_SIZE)?;
        self.current = (self.current + 1) % self.blocks;
        Some(block)
    }

    /// Whether no packet lies in the block that the kernel is filling. To be asked when `next_block` had none.
    pub fn is_empty(&self) -> bool {
        block::is_open_and_empty(&self.ring, self.current * BLOCK_SIZE)
    }

    /// Lets no more packets in, and counts none as rejected. What is in the ring stays there to be read.
    pub fn close(&self) -> Result<()> {
        option::attach_filter(&self.descriptor, &filter::NOTHING)
            .map_err(|e| Error::os("cannot close a packet socket's filter", e))
    }

    /// How many packets were dropped for want of room since this or a block was last asked.
    pub fn take_drops(&self) -> Result<u64> {
        option::drops(&self.descriptor)
    }

    /// Sleeps until a block is handed over or the time is up.
    pub fn wait(&self, at_most: Duration) -> Result<Source> {
        let fail = |e| Error::os("cannot wait for packets", e);
        let mut set = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: at_most.as_secs() as i64,
            tv_nsec: i64::from(at_most.subsec_nanos()) as _,
        };
        match poll(&mut set, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(fail(e.into())),
        }
        if !set[0].revents().contains(PollFlags::ERR) {
            return Ok(Source::There);
        }
        match rustix::net::sockopt::socket_error(&self.descriptor).map_err(|e| fail(e.into()))? {
            // It went down. It may come up again, unless it is no more.
            Err(rustix::io::Errno::NETDOWN) => {
                let gone = option::is_unbound(&self.descriptor).map_err(fail)?;
                Ok(if gone { Source::Gone } else { Source::There })
            }
            Err(e) => Err(fail(e.into())),
            Ok(()) => Ok(Source::There),
        }
    }
}

/// Opens a socket without a ring on an interface of the calling thread's namespace: each read returns one packet. Only
/// the benchmark reads one like this, to compare it.
pub fn without_ring(interface: u32) -> Result<File> {
    let open = || {
        let socket = raw_socket(libc::SOCK_RAW | libc::SOCK_NONBLOCK)?;
        option::ignore_sent(&socket)?;
        option::bind(&socket, interface)?;
        Ok(File::from(socket))
    };
    open().map_err(|e| explain(&format!("interface number {interface}"), e))
}

/// Protocol 0: no packet comes in before the socket is bound to an interface.
fn raw_socket(kind: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let descriptor = unsafe { libc::socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor.as_raw_fd()) })
}

/// If it is the filter for which there is no memory: a socket's filter counts against its options' memory.
fn too_large(request: &Request<'_>) -> Option<Error> {
    /// What else a socket keeps there.
    const OTHER: usize = 4096;
    let block = request.filter.and_then(|filter| filter.block)?;
    let (instructions, size) = (block.len(), size_of_val(block) + OTHER);
    let most = std::fs::read_to_string("/proc/sys/net/core/optmem_max").ok()?;
    let most: usize = most.trim().parse().ok()?;
    (size > most).then(|| {
        Error::failed(
            format!("cannot filter on a packet socket on {}", request.name),
            format!("the filter becomes {instructions} eBPF instructions, and the {most} bytes that a socket may have for it are less"),
        )
        .fix(format!("sysctl -w net.core.optmem_max={}, or use --tap tc", (2 * size).next_power_of_two()))
    })
}

fn explain(name: &str, error: io::Error) -> Error {
    let fix: Advice = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "this requires root (CAP_NET_RAW)".into(),
        Some(libc::ENOMEM) => "choose a smaller --ring-size".into(),
        Some(libc::EAFNOSUPPORT) => {
            "the kernel lacks packet sockets (CONFIG_PACKET): modprobe af_packet".into()
        }
        Some(libc::ENODEV | libc::ENXIO) => {
            "the interface was removed; ip link lists the others".into()
        }
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files: ulimit -n".into(),
        _ => return Error::os(format!("cannot open a packet socket on {name}"), error),
    };
    Error::os(format!("cannot open a packet socket on {name}"), error).fix(fix)
}

#[cfg(test)]
mod tests;
