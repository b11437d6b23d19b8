//! Live XDP frames: BPF_PROG_TEST_RUN sends the frames that a program answers XDP_TX for.
//!
//! The program is said to run on a frame that came in on the interface, so XDP_TX sends it out there.
//! A veth takes such frames only when its peer has native XDP or GRO.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::{Burst, Sender, check_frame};
use crate::bpf::object::Plain;
use crate::error::{Error, Result};
use crate::ethtool::Ethtool;
use crate::netlink::Netlink;
use crate::probe::insn::{Program, returning};

const XDP_TX: i32 = 3;
/// The kernel's default; a veth queue holds 256 frames, so a batch always fits an empty one.
const BATCH: u32 = 64;
/// Large enough that setting up a run (about 30 µs) does not count.
const LARGEST_BURST: u64 = 1 << 20;

const VARIED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/send.bpf.o"));
const VARIED_PROGRAM: &str = "send_varied";
const VARIED_MAP: &str = "variation";

/// Frames that are not all alike: one in so many has other bytes at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variation {
    /// Where the two bytes are; at most 255.
    pub offset: u8,
    pub usual: [u8; 2],
    pub other: [u8; 2],
    /// The first other frame is the one with this number, then each that many later.
    pub every: u32,
}

impl Variation {
    /// struct variation of bpf/send.bpf.c.
    fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..2].copy_from_slice(&self.usual);
        bytes[2..4].copy_from_slice(&self.other);
        bytes[4..8].copy_from_slice(&u32::from(self.offset).to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.every.to_ne_bytes());
        bytes
    }
}

/// A program and the interface that its frames leave by.
#[derive(Debug)]
pub struct LiveSender {
    program: OwnedFd,
    interface: u32,
    name: String,
    counters: Ethtool,
}

impl LiveSender {
    /// For an interface of the calling thread's namespace.
    pub fn open(name: &str) -> Result<Self> {
        let program = Program::new(libbpf_sys::BPF_PROG_TYPE_XDP, &returning(XDP_TX))
            .load("trawl_send")
            .map_err(|e| {
                Error::os("cannot load the sending program", e)
                    .mend("it takes root (CAP_BPF, CAP_NET_ADMIN)")
            })?;
        Self::with_program(name, program)
    }

    /// The same, where every so many-th frame differs. The count starts anew with each sender.
    pub fn open_varied(name: &str, variation: Variation) -> Result<Self> {
        let what = "cannot load the sending program";
        let object = Plain::load(VARIED, VARIED_PROGRAM)?;
        let map = object
            .map(VARIED_MAP)
            .ok_or_else(|| Error::failed(what, "its map is missing"))?;
        set_first(map, &variation.to_bytes()).map_err(|e| Error::os(what, e))?;
        let program = object.program().try_clone_to_owned();
        Self::with_program(name, program.map_err(|e| Error::os(what, e))?)
    }

    fn with_program(name: &str, program: OwnedFd) -> Result<Self> {
        Ok(Self {
            program,
            interface: Netlink::here()?.link(name)?.index,
            name: name.to_owned(),
            counters: Ethtool::open(None, name)?,
        })
    }

    /// Frames that the driver took from XDP so far; `None` where it does not count them.
    fn taken(&self) -> Option<u64> {
        let statistics = self.counters.statistics().ok()?;
        let mut found = statistics
            .iter()
            .filter(|(name, _)| name.starts_with("tx_queue_") && name.ends_with("_xdp_xmit"))
            .map(|(_, count)| *count)
            .peekable();
        found.peek()?;
        Some(found.sum())
    }

    fn run(&self, frame: &[u8], count: u32) -> io::Result<()> {
        let context = libbpf_sys::xdp_md {
            data_end: frame.len() as u32,
            ingress_ifindex: self.interface,
            ..Default::default()
        };
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of_val(&context) as u32,
            repeat: count as i32,
            flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: BATCH.min(count),
            ..Default::default()
        };
        // SAFETY: frame and context are read only, with their true sizes, and outlive the call.
        let result = unsafe {
            libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut options)
        };
        if result < 0 {
            Err(io::Error::from_raw_os_error(-result))
        } else {
            Ok(())
        }
    }

    fn explain(&self, error: io::Error, length: usize) -> Error {
        let what = format!("cannot send live XDP frames out of {}", self.name);
        match error.raw_os_error() {
            Some(libc::EINVAL) => Error::failed(
                what,
                format!("the kernel has no live frames (before 5.18), or {length} bytes are more than a page holds"),
            )
            .mend("use the packet engine"),
            Some(libc::ENODEV) => Error::failed(what, "the interface is gone"),
            _ => Error::os(what, error),
        }
    }
}

/// Writes the first value of a map whose values have 16 bytes.
fn set_first(map: BorrowedFd<'_>, value: &[u8; 16]) -> io::Result<()> {
    let key = 0u32;
    // SAFETY: keys have four bytes and values sixteen, as bpf/send.bpf.c declares them; both are only read.
    let result = unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            value.as_ptr().cast(),
            0,
        )
    };
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(())
    }
}

impl Sender for LiveSender {
    fn burst(&mut self, frame: &[u8], count: u64) -> Result<Burst> {
        check_frame(frame)?;
        let count = count.min(LARGEST_BURST);
        if count == 0 {
            return Ok(Burst::default());
        }
        let before = self.taken();
        match self.run(frame, count as u32) {
            // A signal ends a run early; the driver's counters know how far it got.
            Err(e) if e.kind() == io::ErrorKind::Interrupted && before.is_some() => {
                let sent = self
                    .taken()
                    .unwrap_or(0)
                    .saturating_sub(before.unwrap_or(0));
                return Ok(Burst { sent, refused: 0 });
            }
            result => result.map_err(|e| self.explain(e, frame.len()))?,
        }
        let (Some(before), Some(after)) = (before, self.taken()) else {
            return Ok(Burst {
                sent: count,
                refused: 0,
            });
        };
        let sent = after.saturating_sub(before).min(count);
        if sent == 0 {
            return Err(Error::failed(
                format!("cannot send live XDP frames out of {}", self.name),
                "its peer takes none: it is down, or has neither an XDP program nor GRO",
            )
            .mend("on the peer: ethtool -K IF gro on, ip link set IF up"));
        }
        Ok(Burst {
            sent,
            refused: count - sent,
        })
    }

    fn largest_burst(&self) -> u64 {
        LARGEST_BURST
    }
}
