//! Tests of packet sockets on a veth of their own: counts of losses, the end of an interface, and error messages.

use std::fs::File;
use std::io::Write;

use trawl_ebpf::{Insn, helper, op};
use trawl_sys::netlink::{Netlink, VethEnd, create_veth};
use trawl_sys::netns::run_in;
use trawl_sys::testing::{ScratchNamespace, root_or_skip};

use super::*;
use crate::send::{PACKET_BATCH, PacketSender};

const TURN: Duration = Duration::from_millis(10);

struct Veth {
    scratch: ScratchNamespace,
    index: u32,
}

impl Veth {
    fn new() -> Self {
        let scratch = ScratchNamespace::create();
        let end = |name| VethEnd {
            name,
            index: 0,
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
        Self { scratch, index: indexes[1] }
    }

    fn netlink(&self) -> Netlink {
        Netlink::inside(&self.scratch.namespace).unwrap()
    }

    fn open(&self, sockets: usize, classic: Option<&[Instruction]>) -> Vec<PacketSocket> {
        let filter = classic.map(|_| Filter { classic, ..Filter::default() });
        self.open_with(sockets, filter).sockets
    }

    fn open_with(&self, sockets: usize, filter: Option<Filter<'_>>) -> Opened {
        let request = PacketRequest { sockets, filter, ..request(self.index) };
        super::open(Some(&self.scratch.namespace), &request).unwrap()
    }

    fn send(&self, frame: &[u8], count: u64) {
        let send = || {
            let sender = PacketSender::open("out").unwrap();
            let mut left = count as usize;
            while left > 0 {
                let frames = vec![frame; left.min(PACKET_BATCH)];
                left -= sender.offer(&frames).unwrap();
            }
        };
        run_in(&self.scratch.namespace, send).unwrap();
    }
}

fn request(interface: u32) -> PacketRequest<'static> {
    PacketRequest {
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
        prompt: true,
        interfaces: None,
    }
}

fn frame(last: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 60];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[59] = last;
    frame
}

/// Closes the socket and reads the rest: the last bytes of the packets, and the losses.
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
            socket.wait(TURN, None).unwrap();
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
fn filter_rejects_before_the_ring() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let last_byte_is_3 = [
        Instruction { code: 0x30, jt: 0, jf: 0, k: 59 },
        Instruction { code: 0x15, jt: 0, jf: 1, k: 3 },
        Instruction { code: 0x06, jt: 0, jf: 0, k: 60 },
        Instruction { code: 0x06, jt: 0, jf: 0, k: 0 },
    ];
    let mut socket = veth.open(1, Some(&last_byte_is_3)).remove(0);
    for last in [1, 3, 2, 3] {
        veth.send(&frame(last), 1);
    }
    assert_eq!(read_all(&mut socket), (vec![3, 3], 0));
}

/// Matches packets whose last byte is 3, like a lowered filter: r1 is the context, r5 the scratch.
fn last_byte_is_3() -> Vec<Insn> {
    vec![
        op::mov(6, 5),
        op::load(op::W, 2, 1, 0), // the context's len
        op::alu_imm(op::SUB, 2, 1),
        op::mov(3, 5),
        op::alu_imm(op::MOV, 4, 1),
        op::call(helper::SKB_LOAD_BYTES),
        op::alu_imm(op::MOV, 7, 0),
        op::jump_if(op::JNE, 0, 0, 3),
        op::load(op::B, 1, 6, 0),
        op::jump_if(op::JNE, 1, 3, 1),
        op::alu_imm(op::MOV, 7, 1),
        op::mov(0, 7),
    ]
}

#[test]
fn rejections_of_a_counting_filter_are_counted_while_the_socket_is_open() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let block = last_byte_is_3();
    let filter = Filter { block: Some(&block), ..Filter::default() };
    let mut opened = veth.open_with(2, Some(filter));
    assert!(opened.refusal.is_none());
    let rejected = opened.rejected.take().unwrap();
    assert_eq!(rejected.count(), 0);
    for last in [1, 3, 2, 3, 4] {
        veth.send(&frame(last), 10);
    }
    let mut seen = Vec::new();
    for socket in &mut opened.sockets {
        let (of_socket, lost) = read_all(socket);
        assert_eq!(lost, 0);
        seen.extend(of_socket);
    }
    assert_eq!((seen, rejected.count()), (vec![3; 20], 30));
    // All sockets are closed now.
    veth.send(&frame(1), 10);
    assert_eq!(rejected.count(), 30);
}

#[test]
fn packets_of_the_other_direction_are_not_counted() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let block = last_byte_is_3();
    let filter = Filter { block: Some(&block), ..Filter::default() };
    let only_sent = PacketRequest { received: false, filter: Some(filter), ..request(veth.index) };
    let opened = super::open(Some(&veth.scratch.namespace), &only_sent).unwrap();
    veth.send(&frame(1), 10);
    assert_eq!(opened.rejected.unwrap().count(), 0);
}

#[test]
fn refused_filter_is_replaced_by_the_classic_one() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    // The program ends with a value in r0 that the verifier does not accept.
    let bad = [op::mov(0, 9)];
    let reject_all = [filter::NOTHING[0]];
    let both = Filter { block: Some(&bad), classic: Some(&reject_all), ..Filter::default() };
    let mut opened = veth.open_with(1, Some(both));
    assert!(opened.rejected.is_none());
    assert!(opened.refusal.unwrap().to_string().contains("verifier"));
    veth.send(&frame(1), 10);
    assert_eq!(read_all(&mut opened.sockets[0]), (vec![], 0));

    let request = PacketRequest { filter: Some(Filter { classic: None, ..both }), ..request(veth.index) };
    super::open(Some(&veth.scratch.namespace), &request).unwrap_err();
}

#[test]
fn cpu_filter_works_in_both_kinds_of_program() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let all = [Instruction { code: 0x06, jt: 0, jf: 0, k: 60 }];
    // More CPUs than this kernel can have.
    let nowhere = Some(1 << 20);
    let counting = Filter { cpu: nowhere, block: Some(&[]), ..Filter::default() };
    let mut opened = veth.open_with(1, Some(counting));
    veth.send(&frame(1), 10);
    assert_eq!(read_all(&mut opened.sockets[0]), (vec![], 0));
    assert_eq!(opened.rejected.unwrap().count(), 10);
    let classic = Filter { cpu: nowhere, classic: Some(&all), ..Filter::default() };
    let mut opened = veth.open_with(1, Some(classic));
    veth.send(&frame(1), 10);
    assert_eq!(read_all(&mut opened.sockets[0]), (vec![], 0));
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
    let seen: usize = sockets.iter_mut().map(|socket| read_all(socket).0.len()).sum();
    assert_eq!(seen, 500);
    // Groups do not see each other: another capture receives all packets as well.
    let (mut first, mut second) = (veth.open(2, None), veth.open(2, None));
    veth.send(&frame(7), 10);
    for group in [&mut first, &mut second] {
        let seen: usize = group.iter_mut().map(|socket| read_all(socket).0.len()).sum();
        assert_eq!(seen, 10);
    }
}

#[test]
fn interface_that_is_down_differs_from_a_removed_one() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let mut socket = veth.open(1, None).remove(0);
    veth.netlink().set_down(veth.index).unwrap();
    assert_eq!(socket.wait(TURN, None).unwrap(), PacketSource::There);
    veth.netlink().set_up(veth.index).unwrap();
    veth.send(&frame(5), 3);
    veth.netlink().delete_link(veth.index).unwrap();
    assert_eq!(socket.wait(TURN, None).unwrap(), PacketSource::Gone);
    assert_eq!(read_all(&mut socket), (vec![5; 3], 0));
}

/// Makes a tun interface, which exists as long as the file is open.
fn open_tun(name: &str) -> File {
    let device = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
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
    let scratch = ScratchNamespace::create();
    let mut tun = run_in(&scratch.namespace, || open_tun("tun0")).unwrap();
    let mut netlink = Netlink::inside(&scratch.namespace).unwrap();
    let index = netlink.link("tun0").unwrap().index;
    netlink.set_up(index).unwrap();
    netlink.add_address(index, "10.1.0.1".parse().unwrap(), 24).unwrap();
    let wanted = PacketRequest { network_layer: true, filter: None, ..request(index) };
    let mut socket = super::open(Some(&scratch.namespace), &wanted).unwrap().sockets.remove(0);
    run_in(&scratch.namespace, || {
        let socket = std::net::UdpSocket::bind("10.1.0.1:0").unwrap();
        socket.send_to(b"out", "10.1.0.2:9").unwrap();
    })
    .unwrap();
    // A bare IPv4 header, from the other side.
    let header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0, 10, 1, 0, 2, 10, 1, 0, 1];
    tun.write_all(&header).unwrap();
    socket.close().unwrap();
    let mut seen = Vec::new();
    while !socket.is_empty() {
        let Some(block) = socket.next_block() else {
            socket.wait(TURN, None).unwrap();
            continue;
        };
        let ipv4 = block.frames().filter(|frame| frame.bytes[0] == 0x45);
        seen.extend(ipv4.map(|frame| (frame.packet_type, frame.bytes[9], frame.original)));
    }
    assert_eq!(seen, [(PacketType::Sent, 17, 31), (PacketType::ToUs, 253, 20)]);
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
        String::from_utf8(words.stdout).unwrap().contains("promiscuity 1")
    };
    assert!(!is_on());
    let held = promiscuous(Some(&veth.scratch.namespace), veth.index).unwrap();
    assert!(is_on());
    drop(held);
    assert!(!is_on());
    let error = promiscuous(Some(&veth.scratch.namespace), 9999).unwrap_err();
    assert_eq!(error.how_to_fix(), Some("capture without promiscuous mode: -p"));
}

#[test]
fn errors_say_what_fixes_them() {
    if !root_or_skip() {
        return;
    }
    let veth = Veth::new();
    let error = super::open(Some(&veth.scratch.namespace), &request(9999)).unwrap_err();
    assert!(error.to_string().contains("ip link"), "{error}");
    let error = explain("eth0", io::Error::from_raw_os_error(libc::EPERM));
    let advice = error.how_to_fix().expect("advice");
    assert!(advice.contains("CAP_NET_RAW"), "{advice}");
    let too_large = PacketRequest { ring_size: 1 << 42, ..request(veth.index) };
    let error = super::open(Some(&veth.scratch.namespace), &too_large).unwrap_err();
    assert!(error.to_string().contains("packet socket on in"), "{error}");
}
