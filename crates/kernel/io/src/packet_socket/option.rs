//! The system calls on packet sockets: options, binding and figures.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::c_int;
use trawl_sys::socket_option::{get, set};
use trawl_sys::{Error, Result};

use super::filter::Instruction;

const TPACKET_V3: c_int = 2;
const ETH_P_ALL_NETWORK_ORDER: u16 = (libc::ETH_P_ALL as u16).to_be();

fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

pub fn make_ring(
    socket: &OwnedFd,
    block_size: usize,
    blocks: usize,
    retire_after_ms: u32,
) -> io::Result<()> {
    // Packets lie in a block one after the other; the kernel still wants a frame size that divides the block.
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

pub fn attach_filter(socket: &OwnedFd, program: &[Instruction]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len())
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?,
        filter: program.as_ptr().cast_mut(),
    };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Has an eBPF program of the type "socket filter" take the place of the filter there is.
pub fn attach_program(socket: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    let program: c_int = program.as_raw_fd();
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program)
}

pub fn prefer_hardware_time(socket: &OwnedFd) -> io::Result<()> {
    let wanted = libc::SOF_TIMESTAMPING_RAW_HARDWARE as c_int;
    set(socket, libc::SOL_PACKET, libc::PACKET_TIMESTAMP, &wanted)
}

pub fn ignore_sent(socket: &OwnedFd) -> io::Result<()> {
    let on: c_int = 1;
    set(socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on)
}

pub fn be_promiscuous(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    let request = promiscuity_of(interface);
    set(
        socket,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &request,
    )
}

/// The socket wants only what is for this machine again.
pub fn be_selective(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    let request = promiscuity_of(interface);
    set(
        socket,
        libc::SOL_PACKET,
        libc::PACKET_DROP_MEMBERSHIP,
        &request,
    )
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
pub fn join_fanout(socket: &OwnedFd, group: Option<u16>, sent_too: bool) -> io::Result<u16> {
    let mut kind = libc::PACKET_FANOUT_CPU;
    if group.is_none() {
        kind |= libc::PACKET_FANOUT_FLAG_UNIQUEID;
    }
    if !sent_too {
        // The group has its own word on this; kernels that do not know it leave it to the filter.
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

/// The kernel takes a socket off an interface that is deleted or moved away.
pub fn is_unbound(socket: &OwnedFd) -> io::Result<bool> {
    let mut address = no_address();
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes `length` bytes at most to the address.
    check(unsafe {
        libc::getsockname(
            socket.as_raw_fd(),
            (&raw mut address).cast(),
            &raw mut length,
        )
    })?;
    Ok(address.sll_ifindex <= 0)
}

/// How many packets found the ring full. Reading the figures sets them back to zero.
pub fn drops(socket: &OwnedFd) -> Result<u64> {
    let nothing = libc::tpacket_stats_v3 {
        tp_packets: 0,
        tp_drops: 0,
        tp_freeze_q_cnt: 0,
    };
    get(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, nothing)
        .map(|figures| figures.tp_drops.into())
        .map_err(|e| Error::os("cannot read a packet socket's figures", e))
}

fn no_address() -> libc::sockaddr_ll {
    // SAFETY: all zeroes are a valid sockaddr_ll.
    unsafe { std::mem::zeroed() }
}
