//! AF_XDP sockets that send: frames lie in memory that is shared with the kernel, and only their places are passed.
//! Those that receive are in `receive`.

mod receive;
mod ring;
mod socket;

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

pub use receive::{Missed, XskReceiver};
use ring::{Consumer, Producer};

use trawl_sys::error::{Error, Result};
use trawl_sys::memory::Mapping;
use trawl_sys::netlink::Netlink;

/// Room for one frame, its headroom included; the kernel takes 2048 and 4096.
const ROOM: usize = 4096;
/// Slots for frames, and the size of the rings.
const SLOTS: u32 = 2048;

/// How long a queue that is taken is waited for, and how often it is asked for.
const PATIENCE: Duration = Duration::from_secs(1);
const TURN: Duration = Duration::from_millis(10);

/// The longest frame.
pub const LONGEST: usize = ROOM;

/// What a call to the kernel did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kicked {
    /// Frames that the device took.
    pub taken: u32,
    /// Frames that it threw away for want of room: nobody will send them again.
    pub dropped: u32,
    /// It had no room for the next one, and keeps it.
    pub busy: bool,
}

/// A socket bound to one queue of an interface.
#[derive(Debug)]
pub struct XskSender {
    socket: OwnedFd,
    name: String,
    memory: Mapping,
    transmit: Producer<libc::xdp_desc>,
    completed: Consumer<u64>,
    /// Slots that nobody uses.
    free: Vec<u64>,
    zero_copy: bool,
}

impl XskSender {
    /// For an interface of the calling thread's namespace: without copying where the driver can, with it elsewhere.
    pub fn open(name: &str, queue: u32) -> Result<Self> {
        let index = Netlink::here()?.link(name)?.index;
        let fail = |e: std::io::Error| explain("send by AF_XDP out of", name, queue, e);
        let memory = Mapping::anonymous(ROOM * SLOTS as usize)?;
        let socket = socket::open().map_err(fail)?;
        socket::register_memory(&socket, &memory, ROOM as u32).map_err(fail)?;
        let rings = socket::make_sending_rings(&socket, SLOTS).map_err(fail)?;
        let zero_copy = bind_patiently(&socket, index, queue).map_err(fail)?;
        Ok(Self {
            transmit: Producer::new(rings.transmit, SLOTS),
            completed: Consumer::new(rings.completed, SLOTS),
            free: (0..u64::from(SLOTS))
                .map(|slot| slot * ROOM as u64)
                .collect(),
            name: name.to_owned(),
            socket,
            memory,
            zero_copy,
        })
    }

    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Frames that were given to the kernel and that the device has not taken yet.
    pub fn waiting(&self) -> u32 {
        self.transmit.waiting()
    }

    /// Has `write` fill a free slot with a frame of the length that it returns, and queues it. `None` where it wrote
    /// none, or no slot is free.
    pub fn queue<E>(
        &mut self,
        write: impl FnOnce(&mut [u8]) -> Result<Option<usize>, E>,
    ) -> Result<Option<usize>, E> {
        if self.free.is_empty() {
            let completed = &mut self.completed;
            self.free.extend(std::iter::from_fn(|| completed.take()));
        }
        if !self.transmit.has_room() {
            return Ok(None);
        }
        let Some(place) = self.free.pop() else {
            return Ok(None);
        };
        let start = self.memory.at(place as usize);
        // SAFETY: the slot lies within the memory, and nobody but us uses it: the kernel gave it back, or never had it.
        let room = unsafe { std::slice::from_raw_parts_mut(start, ROOM) };
        match write(room) {
            Ok(Some(length)) => {
                self.transmit.put(libc::xdp_desc {
                    addr: place,
                    len: length as u32,
                    options: 0,
                });
                Ok(Some(length))
            }
            other => {
                self.free.push(place);
                other
            }
        }
    }

    /// Shows the queued frames to the kernel, and has it send until the device takes no more.
    pub fn kick(&mut self) -> Result<Kicked> {
        self.transmit.publish();
        let mut kicked = Kicked::default();
        let before = self.transmit.consumed();
        // The kernel sends a few frames a call in copying mode.
        loop {
            let at = self.transmit.consumed();
            if self.transmit.waiting() == 0 {
                break;
            }
            // SAFETY: no data and no address are passed.
            let result = unsafe {
                libc::sendto(
                    self.socket.as_raw_fd(),
                    std::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null(),
                    0,
                )
            };
            if result < 0 {
                let error = std::io::Error::last_os_error();
                match error.raw_os_error() {
                    // The device dropped one frame, and would drop the next ones too.
                    Some(libc::EBUSY) => {
                        kicked.dropped += 1;
                        break;
                    }
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => {}
                    _ => return Err(explain("send by AF_XDP out of", &self.name, 0, error)),
                }
            }
            if self.transmit.consumed() == at {
                kicked.busy = true;
                break;
            }
        }
        let consumed = self.transmit.consumed().wrapping_sub(before);
        kicked.taken = consumed.saturating_sub(kicked.dropped);
        Ok(kicked)
    }

    /// Slots that are in the kernel's hands: sent, or about to be.
    pub fn outstanding(&mut self) -> u32 {
        let completed = &mut self.completed;
        self.free.extend(std::iter::from_fn(|| completed.take()));
        SLOTS - self.free.len() as u32
    }
}

/// A socket that was closed keeps its queue a moment longer: the kernel releases it after the close.
fn bind_patiently(socket: &OwnedFd, index: u32, queue: u32) -> std::io::Result<bool> {
    let start = Instant::now();
    loop {
        match socket::bind(socket, index, queue) {
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
        Some(libc::EAFNOSUPPORT) => {
            Error::failed(what, "the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")
        }
        Some(libc::ENXIO | libc::ENODEV) => Error::failed(what, "the interface is gone"),
        Some(libc::ENETDOWN) => crate::send::down_or_gone(what, name),
        Some(libc::EINVAL) => Error::failed(what, format!("it has no queue {queue}")),
        Some(libc::EBUSY) => Error::failed(what, format!("another socket has its queue {queue}")),
        Some(libc::ENOBUFS | libc::ENOMEM) => Error::os(what, error)
            .fix("the limit of locked memory may be too low: ulimit -l unlimited"),
        _ => Error::os(what, error),
    }
}
