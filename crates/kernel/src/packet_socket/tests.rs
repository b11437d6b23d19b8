//! Packet sockets on a veth of their own: what they tell of losses, of an interface's end, and of themselves.

use std::fs::File;
use std::io::Write;

use super::*;
use crate::netlink::{Netlink, VethEnd, create_veth};
use crate::netns::run_in;
use crate::send::{PacketSender, Sender};
use crate::testing::{ScratchNamespace, root_or_skip};

const TURN: Duration = Duration::from_millis(10);

struct Veth {
    scratch: ScratchNamespace,
    index: u32,
}

impl Veth {
    fn new() -> Self {
        let scratch = ScratchNamespace::new();
        let end = |name| VethEnd {
            name,
            namespace: Some(&scratch.namespace),
            mac: None,
            mtu: None,
            queues: 1,
            no_link_local: true,
        };
        create_veth(&end("out"), &end("in")).unwrap();
        let mut netlink = Netlink::inside(&scratch.namespace).unwrap();
        let indexes = ["out", "in"].map(|name| netlink.link(name).unwrap().index);
        for index in indexes {
            netlink.set_arp(index, false).unwrap();
            netlink.set_up(index).unwrap();
        }
        Self {
            scratch,
            index: indexes[1],
        }
    }

    fn netlink(&self) -> Netlink {
        Netlink::inside(&self.scratch.namespace).unwrap()
    }

    fn open(&self, sockets: usize, filter: Option<&[Instruction]>) -> Vec<PacketSocket> {
        let request = Request {
            sockets,
            filter,
            ..request(self.index)
        };
        super::open(Some(&self.scratch.namespace), &request).unwrap()
    }

    fn send(&self, frame: &[u8], count: u64) {
        let send = || {
            PacketSender::open("out")
                .unwrap()
                .burst(frame, count)
                .unwrap()
        };
        assert_eq!(run_in(&self.scratch.namespace, send).unwrap().sent, count);
    }
}

fn request(interface: u32) -> Request<'static> {
    Request {
        interface,
        name: "in",
        network_layer: false,
        sockets: 1,
        ring_size: 1 << 20,
        snaplen: 65_536,
        received: true,
        sent: true,
        hardware_time: false,
        filter: None,
    }
}

fn frame(last: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 60];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[59] = last;
    frame
}

/// Closes the socket and reads until nothing is left: the last bytes of the packets, and the losses.
fn read_all(socket: &mut PacketSocket) -> (Vec<u8>, u64) {
    let (mut seen, mut lost) = (Vec::new(), 0);
    socket.close().unwrap();
    loop {
        if let Some(block) = socket.next_block() {
            lost += block.losses_before().unwrap();
            let before = seen.len();
            seen.extend(block.frames().map(|frame| frame.bytes[59]));
            assert_eq!((seen.len() - before) as u32, block.packets());
        } else if socket.is_empty() {
            return (seen, lost + socket.take_drops().unwrap());
        } else {
            socket.wait(TURN).unwrap();
        }
    }
}

#[test]
fn every_packet_is_either_read_or_counted_as_a_loss() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let mut socket = veth.open(1, None).remove(0);
    veth.send(&frame(1), 100);
    let (seen, lost) = read_all(&mut socket);
    assert_eq!((seen, lost), (vec![1; 100], 0));

    let mut socket = veth.open(1, None).remove(0);
    veth.send(&frame(2), 20_000);
    let (seen, lost) = read_all(&mut socket);
    assert!(lost > 0, "the ring was to overflow");
    assert_eq!(seen.len() as u64 + lost, 20_000);
}

#[test]
fn a_filter_rejects_before_the_ring() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let last_byte_is_3 = [
        Instruction {
            code: 0x30,
            jt: 0,
            jf: 0,
            k: 59,
        },
        Instruction {
            code: 0x15,
            jt: 0,
            jf: 1,
            k: 3,
        },
        Instruction {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: 60,
        },
        Instruction {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: 0,
        },
    ];
    let mut socket = veth.open(1, Some(&last_byte_is_3)).remove(0);
    for last in [1, 3, 2, 3] {
        veth.send(&frame(last), 1);
    }
    assert_eq!(read_all(&mut socket), (vec![3, 3], 0));
}

#[test]
fn sockets_of_a_group_share_the_packets() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let mut sockets = veth.open(3, None);
    assert_eq!(sockets.len(), 3);
    veth.send(&frame(7), 500);
    let seen: usize = sockets
        .iter_mut()
        .map(|socket| read_all(socket).0.len())
        .sum();
    assert_eq!(seen, 500);
    // Groups do not see each other: another capture gets all packets as well.
    let (mut first, mut second) = (veth.open(2, None), veth.open(2, None));
    veth.send(&frame(7), 10);
    for group in [&mut first, &mut second] {
        let seen: usize = group
            .iter_mut()
            .map(|socket| read_all(socket).0.len())
            .sum();
        assert_eq!(seen, 10);
    }
}

#[test]
fn an_interface_that_is_down_is_told_from_one_that_is_gone() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let mut socket = veth.open(1, None).remove(0);
    veth.netlink().set_down(veth.index).unwrap();
    assert_eq!(socket.wait(TURN).unwrap(), Source::There);
    veth.netlink().set_up(veth.index).unwrap();
    veth.send(&frame(5), 3);
    veth.netlink().delete_link(veth.index).unwrap();
    assert_eq!(socket.wait(TURN).unwrap(), Source::Gone);
    assert_eq!(read_all(&mut socket), (vec![5; 3], 0));
}

/// Makes a tun interface, which lives as long as the file.
fn open_tun(name: &str) -> File {
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .unwrap();
    // SAFETY: all zeroes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the kernel reads and writes one ifreq.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(made, 0, "{}", io::Error::last_os_error());
    device
}

#[test]
fn packets_without_a_link_layer_begin_at_the_network_header() {
    if !root_or_skip() {
        return;
    }
    let scratch = ScratchNamespace::new();
    let mut tun = run_in(&scratch.namespace, || open_tun("tun0")).unwrap();
    let mut netlink = Netlink::inside(&scratch.namespace).unwrap();
    let index = netlink.link("tun0").unwrap().index;
    netlink.set_up(index).unwrap();
    netlink
        .add_address(index, "10.1.0.1".parse().unwrap(), 24)
        .unwrap();
    let wanted = Request {
        network_layer: true,
        filter: None,
        ..request(index)
    };
    let mut socket = super::open(Some(&scratch.namespace), &wanted)
        .unwrap()
        .remove(0);
    run_in(&scratch.namespace, || {
        let socket = std::net::UdpSocket::bind("10.1.0.1:0").unwrap();
        socket.send_to(b"out", "10.1.0.2:9").unwrap();
    })
    .unwrap();
    // An IPv4 header and nothing else, from the other side.
    let header = [
        0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0, 10, 1, 0, 2, 10, 1, 0, 1,
    ];
    tun.write_all(&header).unwrap();
    socket.close().unwrap();
    let mut seen = Vec::new();
    while !socket.is_empty() {
        let Some(block) = socket.next_block() else {
            socket.wait(TURN).unwrap();
            continue;
        };
        let ipv4 = block.frames().filter(|frame| frame.bytes[0] == 0x45);
        seen.extend(ipv4.map(|frame| (frame.way, frame.bytes[9], frame.original)));
    }
    assert_eq!(seen, [(Way::Sent, 17, 31), (Way::ToUs, 253, 20)]);
}

#[test]
fn promiscuous_mode_lasts_as_long_as_the_descriptor() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    // The interface's flags show only what was set by `ip link`.
    let is_on = || {
        let words = std::process::Command::new("ip")
            .args(["-n", &veth.scratch.name, "-details", "link", "show", "in"])
            .output()
            .unwrap();
        String::from_utf8(words.stdout)
            .unwrap()
            .contains("promiscuity 1")
    };
    assert!(!is_on());
    let held = promiscuous(Some(&veth.scratch.namespace), veth.index).unwrap();
    assert!(is_on());
    drop(held);
    assert!(!is_on());
    let error = promiscuous(Some(&veth.scratch.namespace), 9999).unwrap_err();
    assert!(error.to_string().contains("-p"), "{error}");
}

#[test]
fn errors_say_what_mends_them() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let error = super::open(Some(&veth.scratch.namespace), &request(9999)).unwrap_err();
    assert!(error.to_string().contains("ip link"), "{error}");
    let error = explain("eth0", io::Error::from_raw_os_error(libc::EPERM)).to_string();
    assert!(
        error.contains("run as root, or with CAP_NET_RAW"),
        "{error}"
    );
    let too_large = Request {
        ring_size: 1 << 42,
        ..request(veth.index)
    };
    let error = super::open(Some(&veth.scratch.namespace), &too_large).unwrap_err();
    assert!(error.to_string().contains("packet socket on in"), "{error}");
}
