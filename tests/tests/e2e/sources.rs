//! Every output accepts the packets of every source.

use std::io::Read;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;

use trawl_packet::pcapng::block::ISB_USRDELIV;
use trawl_sys::netns::run_in;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{capinfos, packets_in, run, tshark};
use trawl_tests::{Capture, Lab, Running, args, fleet_or_skip, frames, trawl};

/// Connects as a reader to the address that trawl reports. Returns a thread that counts the received packets.
fn reader(lab: &Lab, said: &str) -> std::thread::JoinHandle<u64> {
    let rest = said.split("tcp-listen:").nth(1).expect(said);
    let address: SocketAddr = rest[..rest.find(": ").expect(said)].parse().expect(said);
    let file = lab.file("received.pcapng");
    let mut stream = TcpStream::connect(address).expect("trawl listens");
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("the stream ends");
        std::fs::write(&file, bytes).expect("it can be written");
        packets_in(&file)
    })
}

/// A series, a pcap file, a compressed file of cut packets, a reader on a socket, and lines.
struct Outputs {
    series: String,
    pcap: String,
    packed: String,
}

impl Outputs {
    fn of(lab: &Lab, source: &str) -> Self {
        let [series, pcap, packed] =
            ["s.pcapng", "b.pcap", "c.pcapng.zst"].map(|name| lab.file(&format!("{source}-{name}")));
        Self { series, pcap, packed }
    }

    fn words(&self) -> Vec<&'static str> {
        let Self { series, pcap, packed } = self;
        args!("-w {series} -C 20k -w {pcap} -w {packed},snaplen=60 -w tcp-listen:0 --print")
    }

    /// Checks that each output has all packets. Returns the interfaces' names in the compressed file.
    fn check(&self, printed: &str, received: u64, all: u64) -> Vec<String> {
        let Self { series, pcap, packed } = self;
        assert_eq!(received, all);
        // The bytes of each packet follow in separate lines, which are not counted.
        let lines = printed.lines().filter(|line| !line.starts_with(char::is_whitespace));
        assert_eq!(lines.count() as u64, all, "{printed}");
        assert_eq!(packets_in(pcap), all);
        assert!(capinfos(pcap, "File type").contains("pcap") && !capinfos(pcap, "File type").contains("pcapng"));
        let cut = trawl(&args!("read {packed} -w {packed}.pcapng"));
        assert!(cut.status.success(), "{cut:?}");
        let rows = tshark(&format!("{packed}.pcapng"), &["frame.cap_len", "frame.interface_name"]);
        assert_eq!(rows.len() as u64, all);
        assert!(rows.iter().all(|row| row[0] == "60"), "{rows:?}");
        let name = |number: u32| series.replace(".pcapng", &format!("_{number:05}.pcapng"));
        let files: Vec<String> = (1..).map(name).take_while(|file| std::fs::exists(file).unwrap_or(false)).collect();
        assert!(files.len() > 2, "{files:?}");
        assert_eq!(files.iter().map(|file| packets_in(file)).sum::<u64>(), all);
        rows.into_iter().map(|row| row[1].clone()).collect()
    }
}

const SENT: u64 = 200;

#[test]
fn every_output_has_the_packets_of_interfaces_and_of_files() {
    let Some(lab) = Lab::open() else { return };
    let outputs = Outputs::of(&lab, "interface");
    let interface = args!("-i {} --tap tc -Q in", lab.receiver());
    let capture = Capture::start(&lab, &[interface, outputs.words()].concat());
    let received = reader(&lab, &capture.said());
    capture.wait_said(" connected");
    lab.send(&[frames::patterned(300)], SENT);
    capture.wait_recorded(SENT);
    let finished = capture.stop();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    outputs.check(&finished.printed(), received.join().expect("it reads"), SENT);
    let files = args!("read {} {}", outputs.pcap, outputs.packed);
    outputs_have_all(&lab, &Outputs::of(&lab, "files"), files, 2 * SENT);
}

/// Runs a command that reads packets, which waits for its reader and for slow outputs, and checks them.
fn outputs_have_all(lab: &Lab, outputs: &Outputs, command: Vec<&'static str>, all: u64) {
    let read = Running::start(&[command, outputs.words()].concat(), "waiting for readers");
    let received = reader(lab, &read.said());
    let done = read.wait();
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    outputs.check(&done.stdout, received.join().expect("it reads"), all);
}

#[test]
fn every_output_has_the_packets_of_a_store() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let (store, spool) = (lab.file("store"), lab.file("spool"));
    let stored = args!("-i {} --tap tc -Q in --store file://{store} --spool {spool} --store-index", lab.receiver());
    let capture = Capture::start(&lab, &stored);
    lab.send(&[frames::patterned(300)], SENT);
    capture.wait_recorded(SENT);
    capture.stop_well();
    let query = args!("store query --store file://{store} --spool {spool} 'SELECT * FROM packets'");
    outputs_have_all(&lab, &Outputs::of(&lab, "store"), query, SENT);
}

/// Captures the packets that two hosts receive.
fn capture_on_hosts(lab: &Lab, more: &[&str]) -> Capture {
    // This host stands for both hosts. The script in place of ssh runs its last argument.
    let ssh = lab.file("ssh");
    std::fs::write(&ssh, "#!/bin/sh\nfor last; do :; done\nexec sh -c \"$last\"\n").expect("it can be written");
    std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let directory = trawl_tests::binary::path().parent().expect("a directory");
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    let hosts = args!("--ssh {ssh} --on one --on two -i {} --tap tc -Q in", lab.receiver());
    let capture = Capture::start_with(("PATH", &path), lab, &[&hosts, more].concat());
    for host in ["one", "two"] {
        capture.wait_said(&format!("{host}: capturing on"));
    }
    capture
}

/// The account also includes packets of a host whose connection is cut off.
#[test]
fn every_output_has_the_packets_of_all_hosts() {
    let Some(lab) = Lab::open() else { return };
    let outputs = Outputs::of(&lab, "hosts");
    let capture = capture_on_hosts(&lab, &outputs.words());
    let received = reader(&lab, &capture.said());
    capture.wait_said(" connected");
    lab.send(&[frames::patterned(300)], SENT);
    let finished = capture.stop();
    let said = &finished.stderr;
    assert_eq!(finished.status.code(), Some(0), "{said}");
    let all = 2 * SENT;
    let account = format!("trawl: {all} seen, 0 filtered out, {all} recorded, 0 lost");
    assert!(said.lines().any(|line| line == account), "{said}");
    let names = outputs.check(&finished.printed(), received.join().expect("it reads"), all);
    for host in ["one", "two"] {
        let of_host = names.iter().filter(|name| name.starts_with(&format!("{host}:")));
        assert_eq!(of_host.count() as u64, SENT, "{names:?}");
    }
}

/// Returns the bytes of all packets of a file.
fn bytes_of(file: &str) -> String {
    bytes_shown(&args!("read -t -xx {file}"))
}

/// Returns the bytes of the packets that a command shows.
fn bytes_shown(command: &[&str]) -> String {
    let shown = trawl(command);
    assert!(shown.status.success(), "{shown:?}");
    let lines = String::from_utf8_lossy(&shown.stdout).into_owned();
    lines.lines().filter(|line| line.starts_with(char::is_whitespace)).collect()
}

#[test]
fn packets_are_anonymized_alike_at_interfaces_and_in_files() {
    let Some(lab) = Lab::open() else { return };
    let [key, plain, anonymized, read] =
        ["key", "plain.pcapng", "anonymized.pcapng", "read.pcapng"].map(|name| lab.file(name));
    std::fs::write(&key, [7; 32]).expect("it can be written");
    let interface = lab.receiver();
    let one = Capture::start(&lab, &args!("-i {interface} --tap tc -Q in -w {plain} udp"));
    let other = Capture::start(&lab, &args!("-i {interface} --tap tc -Q in -w {anonymized} --anonymize {key} udp"));
    lab.send(&[frames::ipv4_udp(0)], SENT);
    for capture in [one, other] {
        capture.wait_recorded(SENT);
        capture.stop_well();
    }
    let done = trawl(&args!("read {plain} -w {read} --anonymize {key}"));
    assert!(done.status.success(), "{done:?}");
    assert_eq!(packets_in(&anonymized), SENT);
    assert_eq!(bytes_of(&anonymized), bytes_of(&read));
    assert_ne!(bytes_of(&anonymized), bytes_of(&plain));
    assert_eq!(bytes_shown(&args!("read -t -xx {plain} --anonymize {key}")), bytes_of(&read));
    // The file and the printed lines have the same bytes.
    let cut = bytes_shown(&args!("read -t -xx {plain} --headers -w {read} --print"));
    assert_eq!(cut, bytes_of(&read));
    assert_ne!(cut, bytes_of(&plain));
}

#[test]
fn further_sightings_are_left_out_of_every_source() {
    let Some(lab) = Lab::open() else { return };
    let is_stored = fleet_or_skip();
    let [live, plain, hosts, read] =
        ["live.pcapng", "plain.pcapng", "hosts.pcapng", "read.pcapng"].map(|name| lab.file(name));
    let [pcap, editcap, key] = ["plain.pcap", "editcap.pcap", "key"].map(|name| lab.file(name));
    let [store, spool] = ["store", "spool"].map(|name| lab.file(name));
    let both = args!("-i {} -i {} --tap tc", lab.sender(), lab.receiver());
    let start = |more: Vec<&'static str>| Capture::start(&lab, &[both.clone(), more].concat());
    let first = start(args!("--dedup 60s -w {live} udp"));
    let all = start(args!("-w {plain} udp"));
    let stored = is_stored.then(|| start(args!("--store file://{store} --spool {spool} --store-index udp")));
    let of_hosts = capture_on_hosts(&lab, &args!("--dedup 60s -w {hosts} udp"));
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let socket = run_in(&a.namespace, || UdpSocket::bind((a.ipv4, 4000)).expect("a port")).expect("a namespace");
    for number in 0..50 {
        socket.send_to(&[number; 18], (b.ipv4, 9)).expect("a packet");
    }
    all.wait_recorded(100);
    all.stop_well();
    first.wait_recorded(50);
    let summary = first.stop_well();
    assert_eq!((summary.recorded, summary.merged), (50, 50), "{summary:#?}");
    let said = of_hosts.stop().stderr;
    let account = said.lines().last().expect("an account");
    assert!(account.ends_with(" filtered out, 50 recorded, 50 merged, 0 lost"), "{said}");

    let refused = trawl(&args!("read {plain} --once"));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--dedup"), "{refused:?}");
    let done = trawl(&args!("read {plain} --dedup 60s -w {read}"));
    assert!(String::from_utf8_lossy(&done.stderr).contains("left out 50 packets"), "{done:?}");
    for file in [&live, &hosts] {
        assert_eq!(bytes_of(file), bytes_of(&read));
        let statistics = Contents::read(file).statistics;
        let delivered = statistics.iter().filter_map(|of_interface| of_interface.options.u64(ISB_USRDELIV));
        assert_eq!(delivered.sum::<u64>(), 50, "{file}");
    }
    assert!(trawl(&args!("read {plain} -w {pcap}")).status.success());
    run("editcap", &["-w", "60", &pcap, &editcap]);
    assert_eq!((packets_in(&read), packets_in(&editcap)), (50, 50));
    if let Some(stored) = stored {
        stored.wait_recorded(100);
        stored.stop_well();
        std::fs::write(&key, [7; 32]).expect("it can be written");
        let query = args!("store query --store file://{store} --spool {spool}");
        let shown = args!("--filter udp --dedup 60s --anonymize {key} -t -xx");
        let read = bytes_shown(&args!("read -t -xx {read} --anonymize {key}"));
        assert_eq!(bytes_shown(&[query.clone(), shown].concat()), read);
        // A table has no packets.
        let refused = trawl(&[query, args!("'SELECT * FROM packets' --dedup 60s")].concat());
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}
