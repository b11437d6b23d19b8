//! The router and VLANs: tags are removed and added, frame by frame, with VLAN interfaces if the kernel has them, and
//! with substitutes otherwise.

use std::os::fd::AsFd;

use trawl_bpf::layout::Shared;
use trawl_bpf::layout::bundled::{RouteArrival, RouteArrivalKey, RouteConfig, RouteTags};
use trawl_bpf::table::{ANY, Table};
use trawl_bpf::{info, program, test_run};
use trawl_lab::{Line, LineOptions};
use trawl_packet::build::{Layer, Template, Vlan};
use trawl_sys::netns::run_in;
use trawl_tests::bundled::{Counts, done};
use trawl_tests::lab::{Files, place};
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{output, run, xdp_on};
use trawl_tests::{Capture, LineLab, args, frames, skip};

/// Number of attempts, more than any number of CPUs.
const TRIES: usize = 1000;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
/// `0x8100` and `0x88a8` with a number, as in the program.
const CUSTOMER: u32 = 0x8100 << 16;
const SERVICE: u32 = 0x88a8 << 16;

fn tag(number: u32) -> Vlan {
    Vlan { id: (number & 0xfff) as u16, service: number >> 16 == 0x88a8, ..Vlan::default() }
}

/// Returns a frame from one address to another with these tags.
fn frame(line: &Line, ends: ([u8; 6], [u8; 6]), tags: [u32; 2], ttl: u8, six: bool) -> Vec<u8> {
    let tags = tags.into_iter().filter(|number| *number != 0);
    let tagged =
        tags.fold(Template::new().ethernet(ends.0, ends.1), |frame, number| frame.layer(Layer::Vlan(tag(number))));
    let packet = if six {
        let mut ip = trawl_packet::build::Ipv6::new(line.a.ipv6, line.b.ipv6);
        ip.hop_limit = ttl;
        tagged.layer(Layer::Ipv6(ip))
    } else {
        let mut ip = trawl_packet::build::Ipv4::new(line.a.ipv4, line.b.ipv4);
        ip.ttl = ttl;
        tagged.layer(Layer::Ipv4(ip))
    };
    packet.udp(40_000, 9).payload(b"hello").build()
}

/// Opens a map of the program on an interface, by name.
fn map(program: u32, name: &str) -> Table {
    let fd = program::open_by_id(program).expect("the program");
    let about = info::program(fd.as_fd()).expect("what it is");
    let tables = about.map_ids.iter().map(|id| Table::open_by_id(*id).expect("a map"));
    let mut named = tables.filter(|table| table.about().name == name);
    named.next().unwrap_or_else(|| panic!("there is no map {name}"))
}

/// Each combination of tags at arrival and departure is forwarded correctly. The interfaces left and right stand for
/// the VLANs, and their frames arrive and leave untagged unless configured.
#[test]
fn tags_are_removed_and_added() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    done(&["route", "load", &place(&line.left), &place(&line.right)]);
    let (id, _) = xdp_on(&line.left).expect("the router");
    let id = u32::try_from(id).expect("a program's number");
    let fd = program::open_by_id(id).expect("the program");
    let (arrivals, departures, own) = (map(id, "arrivals"), map(id, "departures"), map(id, "own"));
    let config = own.lookup(&[0; 4]).expect("it can be read").expect("it is there");
    let mut config = RouteConfig::from_bytes(&config).expect("whole");
    config.vlans = 1;
    own.update(&[0; 4], &config.to_bytes(), ANY).expect("it can be written");

    let kinds = [[0, 0], [CUSTOMER | 7, 0], [SERVICE | 8, 0], [SERVICE | 8, CUSTOMER | 4095]];
    for coming in kinds {
        let key = RouteArrivalKey { port: line.left.index, outer: coming[0], inner: coming[1] };
        let arrival = RouteArrival { ifindex: line.left.index, mac_first: config.mac_first, mac_last: config.mac_last };
        if coming[0] != 0 {
            arrivals.update(&key.to_bytes(), &arrival.to_bytes(), ANY).expect("room");
        }
        for leaving in kinds {
            let tags = RouteTags { outer: leaving[0], inner: leaving[1] };
            departures.update(&line.right.index.to_ne_bytes(), &tags.to_bytes(), ANY).expect("room");
            for six in [false, true] {
                let sent = frame(line, (line.a.mac, line.left.mac), coming, 64, six);
                let wanted = frame(line, (line.right.mac, line.b.mac), leaving, 63, six);
                let ask = || {
                    run_in(&line.left.namespace, || test_run::xdp_from(fd.as_fd(), &sent, line.left.index))
                        .expect("the namespace can be entered")
                        .expect("a run")
                };
                // On each CPU, an occasional packet goes unchanged through the stack, which refreshes the neighbour.
                let (mut answer, mut left) = ask();
                for _ in 0..TRIES {
                    if answer.value != XDP_PASS {
                        break;
                    }
                    assert!(left == sent, "what goes to the stack is not changed");
                    (answer, left) = ask();
                }
                assert_eq!(answer.value, XDP_REDIRECT, "{coming:x?} to {leaving:x?}");
                frames::assert_same(&[&left], &[wanted]);
            }
        }
    }
    // Frames with unknown tags go to the stack.
    for unknown in [[CUSTOMER | 9, 0], [SERVICE | 7, 0], [CUSTOMER | 7, CUSTOMER | 7]] {
        let sent = frame(line, (line.a.mac, line.left.mac), unknown, 64, false);
        let (answer, left) = run_in(&line.left.namespace, || test_run::xdp_from(fd.as_fd(), &sent, line.left.index))
            .expect("the namespace can be entered")
            .expect("a run");
        assert_eq!(answer.value, XDP_PASS);
        assert!(left == sent, "what goes to the stack is not changed");
    }
}

/// Real VLAN interfaces: a VLAN on the left, two tags on the right, and the hosts' own stacks at both ends.
#[test]
fn vlan_interfaces_are_routed() {
    let Some(lab) = LineLab::with(&LineOptions { quiet: false, ..LineOptions::default() }) else {
        return;
    };
    let line = &lab.line;
    let ip = |name: &str, arguments: &str| {
        let words: Vec<&str> = arguments.split(' ').collect();
        output("ip", &[&["-n", name][..], &words].concat()).status.success()
    };
    if !ip(&line.a.name, "link add v7 link veth0 type vlan id 7") {
        return skip("this kernel has no VLAN interfaces");
    }
    let ends = [
        (&line.a.name, "v7", "192.0.2.2/24"),
        (&line.left.name, "left.7", "192.0.2.1/24"),
        (&line.right.name, "right.8.9", "198.51.100.1/24"),
        (&line.b.name, "v8.9", "198.51.100.2/24"),
    ];
    for (name, command) in [
        (&line.left.name, "link add left.7 link left type vlan id 7"),
        (&line.right.name, "link add right.8 link right type vlan proto 802.1ad id 8"),
        (&line.right.name, "link add right.8.9 link right.8 type vlan id 9"),
        (&line.b.name, "link add v8 link veth0 type vlan proto 802.1ad id 8"),
        (&line.b.name, "link add v8.9 link v8 type vlan id 9"),
        (&line.right.name, "link set right.8 up"),
        (&line.b.name, "link set v8 up"),
    ] {
        assert!(ip(name, command), "{command}");
    }
    for (name, interface, address) in ends {
        assert!(ip(name, &format!("address add {address} dev {interface}")), "{interface}");
        assert!(ip(name, &format!("link set {interface} up")), "{interface}");
    }
    assert!(ip(&line.a.name, "route add 198.51.100.0/24 via 192.0.2.1"));
    assert!(ip(&line.b.name, "route add 192.0.2.0/24 via 198.51.100.1"));
    let (left, right) = (place(&line.left), place(&line.right));
    let said = done(&["route", "load", &left, &right]);
    for vlan in ["left.7", "right.8.9"] {
        assert!(said.contains(vlan), "{said}");
    }
    let (file, b) = (lab.file("file.pcapng"), place(&line.b));
    let capture = Capture::start(&lab, &["-i", &b, "-Q", "in", "--tap", "xdp", "-w", &file]);
    let namespace = format!("--net=/run/netns/{}", line.a.name);
    let pinged = run("nsenter", &args!("{namespace} ping -c 20 -i 0.05 -s 1400 198.51.100.2"));
    assert!(pinged.contains("20 received"), "{pinged}");
    capture.stop_well();
    let requests = Contents::read(&file);
    let tagged = |frame: &&[u8]| frame[12..18] == [0x88, 0xa8, 0, 8, 0x81, 0] && frame.len() == 1450;
    let arrived = requests.frames().iter().filter(|frame| tagged(frame)).count() as u64;
    // An occasional packet goes through the stack, which keeps the outer tag outside of the packet's bytes.
    let ports = [&left, &right].map(|port| Counts::of_port(port));
    let counts = ports.each_ref().map(|port| port.outcome("forwarded, IPv4"));
    assert!(counts.iter().all(|count| *count >= 10), "{ports:?}");
    assert!(arrived >= counts[0], "{arrived} arrived of {ports:?}");
    done(&["route", "unload", &left, &right]);
}
