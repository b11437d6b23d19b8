//! Sending frames out of an interface: live XDP frames, or a packet socket.
//!
//! Both engines work in the network namespace of the calling thread, so they are opened and used
//! inside [`trawl_sys::netns::run_in`].

mod live;
mod packet;
pub mod tcp;

pub use live::{LARGEST_RUN, LivePlan, LiveSender, made};
pub use packet::{BATCH as PACKET_BATCH, PacketSender};

use std::os::fd::OwnedFd;

use trawl_bpf::program::{HAS_FRAGS, LoadOptions, XDP, returning};
use trawl_sys::error::{Error, Result};
use trawl_sys::netlink::Netlink;

/// The shortest frame there can be: an Ethernet header.
pub const SHORTEST_FRAME: usize = 14;

/// What became of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Burst {
    /// Frames that the interface took.
    pub sent: u64,
    /// Frames that it refused, for want of room at the other end.
    pub refused: u64,
}

/// Keeps the calling thread on one CPU; with a veth that also chooses the receiving queue.
pub fn pin_to_cpu(cpu: usize) -> Result<()> {
    let what = format!("cannot stay on CPU {cpu}");
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Error::failed(what, "there is no such CPU"));
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| match e {
        rustix::io::Errno::INVAL => {
            Error::failed(what, "there is no such CPU, or it is not allowed here")
        }
        e => Error::os(what, e.into()),
    })
}

/// A program that lets every packet pass: on the other end of a veth it makes that take XDP frames.
pub fn passing_program() -> Result<OwnedFd> {
    const XDP_PASS: i32 = 2;
    let instructions = returning(XDP_PASS);
    let program = LoadOptions {
        flags: HAS_FRAGS,
        ..LoadOptions::new("trawl_pass", XDP)
    };
    let loaded = program.load(&instructions);
    loaded.map_err(|e| Error::os("cannot load a program", e).fix("this requires root (CAP_BPF)"))
}

/// An interface that answers ENETDOWN is down, or it was deleted and is down for good.
pub(crate) fn down_or_gone(what: String, name: &str) -> Error {
    match Netlink::here().and_then(|mut netlink| netlink.find_link(name)) {
        Ok(None) => Error::failed(what, "the interface is gone"),
        _ => Error::failed(what, "the interface is down").fix(format!("ip link set {name} up")),
    }
}

fn check_frame(frame: &[u8]) -> Result<()> {
    if frame.len() < SHORTEST_FRAME {
        return Err(Error::usage(
            format!("cannot send a frame of {} bytes", frame.len()),
            format!("an Ethernet frame has at least {SHORTEST_FRAME}"),
        ));
    }
    Ok(())
}
