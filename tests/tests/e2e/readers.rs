//! Readers that connect to a capture (`-w tcp-listen:`).

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use trawl_tests::pcapng::Contents;
use trawl_tests::summary::Summary;
use trawl_tests::tiny::TinyDisk;
use trawl_tests::turn::heavy;
use trawl_tests::witness::{capinfos, packets_in, run, tshark};
use trawl_tests::{Capture, Lab, args, frames, trawl, wait_until};

/// Returns the address that trawl reports.
pub fn address(said: &str) -> SocketAddr {
    let rest = said.split("tcp-listen:").nth(1).expect(said);
    let end = rest.find(": ").expect(said);
    rest[..end].parse().expect(said)
}

/// Waits until this many readers have connected.
pub fn wait_connected(capture: &Capture, readers: usize) {
    wait_until("readers are connected", || capture.said().matches(" connected").count() >= readers);
}

/// Starts tshark as a reader that writes to a file, in a network namespace if one is named.
fn start_tshark(namespace: Option<&str>, address: SocketAddr, file: &str) -> Child {
    let mut command = match namespace {
        Some(_) => Command::new("ip"),
        None => Command::new("tshark"),
    };
    command.args(namespace.map(|name| ["netns", "exec", name, "tshark"]).into_iter().flatten());
    command.args(["-i", &format!("TCP@{address}"), "-w", file]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("tshark")
}

/// A reader that reads to the end in a thread.
struct Reading {
    bytes: Arc<Mutex<Vec<u8>>>,
    count: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl Reading {
    fn start(mut stream: TcpStream) -> Self {
        let (bytes, count) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<AtomicUsize>::default());
        let (all, so_far) = (Arc::clone(&bytes), Arc::clone(&count));
        let thread = std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 20];
            while let Ok(read @ 1..) = stream.read(&mut piece) {
                all.lock().expect("no panic").extend_from_slice(&piece[..read]);
                so_far.fetch_add(read, Ordering::AcqRel);
            }
        });
        Self { bytes, count, thread }
    }

    fn wait(&self, bytes: usize) {
        wait_until("the reader reads", || self.count.load(Ordering::Acquire) >= bytes);
    }

    /// Returns all bytes once the stream has ended.
    fn end(self) -> Vec<u8> {
        self.thread.join().expect("it reads");
        std::mem::take(&mut self.bytes.lock().expect("no panic"))
    }
}

/// Returns a number in the summary of the reader with this address.
#[track_caller]
fn of_reader(summary: &Summary, reader: SocketAddr, key: &str) -> u64 {
    let wanted = reader.to_string();
    let found = summary.readers.iter().find(|one| one["reader"] == wanted);
    let found = found.unwrap_or_else(|| panic!("{wanted} is missing: {summary:#?}"));
    found[key].as_u64().unwrap_or_else(|| panic!("{found}"))
}

/// Two tsharks and a file get the same packets, and a tshark that connects later gets the packets from then on.
#[test]
fn tsharks_read_beside_a_file() {
    let Some(lab) = Lab::open() else { return };
    let [file, one, other, late] = ["a", "b", "c", "d"].map(|name| lab.file(&format!("{name}.pcapng")));
    let receiver = lab.receiver();
    let arguments = args!("-i {receiver} --tap xdp -w {file} -w tcp-listen:0");
    let capture = Capture::start(&lab, &arguments);
    let address = address(&capture.said());
    assert!(address.ip().is_loopback() && address.port() != 0);
    let mut readers = vec![start_tshark(None, address, &one), start_tshark(None, address, &other)];
    wait_connected(&capture, 2);
    lab.send(&[frames::patterned(200)], 1000);
    capture.wait_recorded(1000);
    readers.push(start_tshark(None, address, &late));
    wait_connected(&capture, 3);
    lab.send(&[frames::patterned(200)], 500);
    capture.wait_recorded(1500);
    let summary = capture.stop_well();
    for reader in &mut readers {
        assert!(reader.wait().expect("tshark").success());
    }
    summary.assert_all_recorded(1500);
    for (file, packets) in [(&file, 1500), (&one, 1500), (&other, 1500), (&late, 500)] {
        assert_eq!(packets_in(file), packets, "{file}");
        let interface = tshark(file, &["frame.interface_name"]);
        assert!(interface.iter().all(|row| row[0].contains("veth0")), "{file}");
    }
    let mut sent: Vec<_> = summary.readers.iter().map(|one| one["sent"].as_u64()).collect();
    sent.sort_unstable();
    assert_eq!(sent, [Some(500), Some(1500), Some(1500)]);
    assert!(summary.readers.iter().all(|one| one["lost"] == 0));
    assert_eq!(summary.outputs[0]["recorded"], 1500);
    assert_eq!(summary.outputs[0]["lost"], 0);
}

/// Interfaces that join are described to readers that connected before and after.
#[test]
fn streams_describe_interfaces_that_join() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a.name, &lab.pair.b.name);
    let arguments = args!("-i {b}:[pv]* --tap tc -Q in -w tcp-listen:0 ether proto 0x1111");
    let capture = Capture::start(&lab, &arguments);
    let address = address(&capture.said());
    let connect = || Reading::start(TcpStream::connect(address).expect("a connection"));
    let before = connect();
    wait_connected(&capture, 1);
    run("ip", &args!("-n {a} link add p0 type veth peer name p0 netns {b}"));
    for namespace in [a, b] {
        run("ip", &args!("-n {namespace} link set p0 up"));
    }
    capture.wait_said(&format!("capturing on {b}:p0"));
    let after = connect();
    wait_connected(&capture, 2);
    let sent = args!("gen eth -i {a}:p0 --ethertype 0x1111 --dst-mac ff:ff:ff:ff:ff:ff --count 5");
    let sent = trawl(&sent);
    assert!(sent.status.success(), "{sent:?}");
    capture.wait_recorded(5);
    // The kernel's own packets on the new interface are filtered out.
    assert_eq!(capture.stop_well().recorded, 5);
    for stream in [before.end(), after.end()] {
        let contents = Contents::parse(&stream);
        assert_eq!(contents.packets.len(), 5);
        let last = contents.packets[4].interface as usize;
        assert!(contents.interfaces[last].name().ends_with("p0"));
    }
}

/// A reader in another namespace reads over the captured interface, and its own traffic is not captured.
#[test]
fn tshark_reads_across_namespaces_over_the_captured_interface() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("read.pcapng");
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let (at, interface) = (b.ipv4, &b.interface);
    let arguments = args!("-i {interface} --tap tc -w tcp-listen:{at}:0,plain");
    let capture = Capture::start_inside(b, &lab, &arguments);
    let address = address(&capture.said());
    capture.wait_said("not recording the readers' own traffic");
    let mut reader = start_tshark(Some(&a.name), address, &file);
    wait_connected(&capture, 1);
    lab.send(&[frames::patterned(200)], 1000);
    capture.wait_recorded(1000);
    let summary = capture.stop_well();
    assert!(reader.wait().expect("tshark").success());
    let port = address.port().to_string();
    let own = ["-n", "-r", &file, "-Y", &format!("tcp.port == {port}")];
    assert_eq!(run("tshark", &own), "");
    assert_eq!(packets_in(&file), summary.recorded);
    assert!(summary.recorded >= 1000 && summary.filtered_out > 0);
    assert_eq!(summary.lost_total(), 0);
}

/// A reader that does not read loses its own packets, which the next packet and the statistics report; it takes nothing
/// from a reader that reads.
#[test]
fn slow_reader_loses_its_own_packets() {
    const LENGTH: usize = 1400;
    const ROUND: u64 = 4000;
    const ROUNDS: u64 = 14;
    const LAST: u64 = 10;
    let _heavy = heavy();
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    // Not every host has IPv6.
    let loopback = if TcpListener::bind("[::1]:0").is_ok() { "[::1]" } else { "127.0.0.1" };
    let arguments = args!("-i {receiver} --tap xdp -w tcp-listen:{loopback}:0");
    let capture = Capture::start(&lab, &arguments);
    let address = address(&capture.said());
    let [slow, fast] = [0, 1].map(|others| {
        let stream = TcpStream::connect(address).expect("a connection");
        wait_connected(&capture, others + 1);
        stream
    });
    let [at_slow, at_fast] = [&slow, &fast].map(|one| one.local_addr().expect("an address"));
    let fast = Reading::start(fast);
    let mut expected = 0;
    for _ in 0..ROUNDS {
        lab.send(&[frames::patterned(LENGTH)], ROUND);
        expected += ROUND as usize * LENGTH;
        fast.wait(expected);
    }
    let slow = Reading::start(slow);
    // The next packets are sent once the queue has room again.
    slow.wait(expected / 3);
    lab.send(&[frames::patterned(LENGTH)], LAST);
    let all = ROUNDS * ROUND + LAST;
    capture.wait_recorded(all);
    let finished = capture.stop();
    let summary = finished.summary_of_success();
    summary.assert_all_recorded(all);
    assert_eq!(of_reader(&summary, at_fast, "lost"), 0);
    assert_eq!(of_reader(&summary, at_fast, "sent"), all);
    let (sent, lost) = (of_reader(&summary, at_slow, "sent"), of_reader(&summary, at_slow, "lost"));
    assert!(lost > 0 && sent + lost == all, "{summary:#?}");
    let expected = format!("reader {at_slow}: {sent} sent, {lost} lost: it could not keep up");
    assert!(finished.stderr.contains(&expected), "{}", finished.stderr);
    for (bytes, got) in [(fast.end(), all), (slow.end(), sent)] {
        let contents = Contents::parse(&bytes);
        assert_eq!(contents.packets.len() as u64, got);
        let drops: u64 = contents.packets.iter().map(|one| one.drop_count()).sum();
        assert_eq!(drops, all - got);
        let statistics = &contents.statistics[0].options;
        // The options are isb_ifdrop and isb_usrdeliv.
        assert_eq!(statistics.u64(5), Some(all - got));
        assert_eq!(statistics.u64(8), Some(got));
    }
}

/// A reader that stops reading does not hold up the end of the capture: its stream ends with a whole block, and no
/// packet counts as sent that it cannot get.
#[test]
fn stalled_reader_does_not_delay_the_end() {
    const PACKETS: u64 = 12_000;
    let Some(lab) = Lab::open() else { return };
    make_certificates(&lab);
    let receiver = lab.receiver();
    for length in [1400, 333] {
        for options in [String::new(), tls_options(&lab)] {
            let arguments = args!("-i {receiver} --tap xdp -w tcp-listen:0{options}");
            let capture = Capture::start(&lab, &arguments);
            let address = address(&capture.said());
            let mut stalled = if options.is_empty() {
                Stalled::Socket(TcpStream::connect(address).expect("a connection"))
            } else {
                let mut reader = openssl_reader(&lab, address, Some("reader"));
                Stalled::Process(reader.stdout(Stdio::piped()).spawn().expect("openssl"))
            };
            wait_connected(&capture, 1);
            lab.send(&[frames::patterned(length)], PACKETS);
            capture.wait_recorded(PACKETS);
            let finished = capture.stop();
            let summary = finished.summary_of_success();
            let why = "it did not read the rest in time";
            assert!(finished.stderr.contains(why), "{}", finished.stderr);
            let lost = summary.lost_by("not_read");
            assert!(lost > 0 && summary.recorded + lost == PACKETS, "{summary:#?}");
            assert_eq!(summary.readers[0]["lost"], lost);
            assert_eq!(summary.readers[0]["sent"], summary.recorded);
            let contents = Contents::parse(&stalled.rest());
            assert_eq!(contents.packets.len() as u64, summary.recorded);
        }
    }
}

/// A reader that has not read anything.
enum Stalled {
    Socket(TcpStream),
    Process(Child),
}

impl Stalled {
    /// Reads to the end.
    fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let read = match self {
            Self::Socket(stream) => stream.read_to_end(&mut bytes),
            Self::Process(process) => {
                let stdout = process.stdout.as_mut().expect("a pipe");
                let read = stdout.read_to_end(&mut bytes);
                process.wait().expect("it ends");
                read
            }
        };
        read.expect("the stream ends");
        bytes
    }
}

/// Readers close, are killed, or half-close their connections. The first two are noticed without packets, and disturb
/// no other reader.
#[test]
fn dying_readers_are_noticed() {
    let Some(lab) = Lab::open() else { return };
    let (file, unread) = (lab.file("a.pcapng"), lab.file("b.pcapng"));
    let receiver = lab.receiver();
    let arguments = args!("-i {receiver} --tap xdp -w {file} -w tcp-listen:0");
    let capture = Capture::start(&lab, &arguments);
    let address = address(&capture.said());
    let mut killed = start_tshark(None, address, &unread);
    wait_connected(&capture, 1);
    let closed = TcpStream::connect(address).expect("a connection");
    wait_connected(&capture, 2);
    let half = TcpStream::connect(address).expect("a connection");
    half.shutdown(std::net::Shutdown::Write).expect("it is open");
    let half = Reading::start(half);
    wait_connected(&capture, 3);
    let at_closed = closed.local_addr().expect("an address");
    drop(closed);
    capture.wait_said(&format!("reader {at_closed}: 0 sent, 0 lost; it closed the connection"));
    lab.send(&[frames::silent(64)], 10);
    capture.wait_recorded(10);
    killed.kill().expect("tshark runs");
    killed.wait().expect("a child of ours");
    wait_until("the killed reader is noticed", || capture.said().matches("it closed the connection").count() == 2);
    lab.send(&[frames::silent(64)], 10);
    capture.wait_recorded(20);
    capture.stop_well().assert_all_recorded(20);
    assert_eq!(packets_in(&file), 20);
    assert_eq!(Contents::parse(&half.end()).packets.len(), 20);
}

/// Without a reader, packets are not kept, which the account reports.
#[test]
fn packets_without_a_reader_are_not_kept() {
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("a.pcapng"), lab.receiver());
    for more in [&[][..], &["-w", &file]] {
        let arguments = args!("-i {receiver} --tap xdp");
        let arguments = [&arguments[..], more, &["-w", "tcp-listen:0"]].concat();
        let capture = Capture::start(&lab, &arguments);
        lab.send(&[frames::silent(64)], 100);
        capture.wait_recorded(100);
        let finished = capture.stop();
        let summary = finished.summary_of_success();
        assert_eq!(summary.lost_total(), 0);
        match summary.outputs.first() {
            None => assert_eq!((summary.recorded, summary.not_kept), (0, 100)),
            Some(output) => {
                summary.assert_all_recorded(100);
                assert_eq!((&output["recorded"], &output["not_kept"]), (&0.into(), &100.into()));
                let expected = "100 recorded packets came while no reader was connected";
                assert!(finished.stderr.contains(expected), "{}", finished.stderr);
            }
        }
    }
}

/// The format and the length are the output's own.
#[test]
fn stream_has_the_format_and_length_of_its_output() {
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("read.pcap"), lab.receiver());
    let arguments = args!("-i {receiver} --tap xdp -w tcp-listen:0,format=pcap,snaplen=60");
    let capture = Capture::start(&lab, &arguments);
    let stream = TcpStream::connect(address(&capture.said())).expect("a connection");
    wait_connected(&capture, 1);
    let reading = Reading::start(stream);
    lab.send(&[frames::patterned(200)], 100);
    capture.wait_recorded(100);
    capture.stop_well().assert_all_recorded(100);
    std::fs::write(&file, reading.end()).expect("a file");
    let rows = tshark(&file, &["frame.cap_len", "frame.len"]);
    assert_eq!(rows.len(), 100);
    assert!(rows.iter().all(|row| *row == ["60", "200"]));
    assert!(!capinfos(&file, "File type").contains("pcapng"));
}

/// One reader more than the maximum is refused with a message, and is accepted once another leaves.
#[test]
fn readers_are_limited() {
    const MAX_READERS: usize = 64;
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let arguments = args!("-i {receiver} --tap xdp -w tcp-listen:0");
    let capture = Capture::start(&lab, &arguments);
    let address = address(&capture.said());
    let connect = || TcpStream::connect(address).expect("a connection");
    let mut readers: Vec<TcpStream> = (0..MAX_READERS).map(|_| connect()).collect();
    wait_connected(&capture, MAX_READERS);
    let mut refused = connect();
    capture.wait_said("64 readers are connected already");
    assert_eq!(refused.read(&mut [0; 8]).expect("an end"), 0);
    readers.pop();
    capture.wait_said("it closed the connection");
    readers.push(connect());
    wait_connected(&capture, MAX_READERS + 1);
    capture.stop_well();
}

/// Makes certificates for a server, a reader and a stranger, and their two authorities.
fn make_certificates(lab: &Lab) {
    let directory = lab.path("");
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        command.current_dir(&directory).stderr(Stdio::null());
        let done = command.args(arguments.split(' ')).status();
        assert!(done.expect("openssl").success(), "{arguments}");
    };
    std::fs::write(lab.path("names"), "subjectAltName=DNS:localhost\n").expect("a file");
    for (authority, name) in [("ca", "server"), ("ca", "reader"), ("other", "stranger")] {
        if !lab.path(&format!("{authority}.pem")).exists() {
            openssl(&format!(
                "req -x509 -newkey ed25519 -nodes -keyout {authority}.key -out {authority}.pem -days 2 -subj /CN={authority}"
            ));
        }
        openssl(&format!("req -newkey ed25519 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -out {name}.pem -days 2 -extfile names"
        ));
    }
}

/// Returns the options of an output with trawl's certificate.
fn tls_options(lab: &Lab) -> String {
    let [cert, key, authority] = ["server.pem", "server.key", "ca.pem"].map(|name| lab.file(name));
    format!(",cert={cert},key={key},client-ca={authority}")
}

/// Returns openssl as a reader with a certificate, if any.
fn openssl_reader(lab: &Lab, address: SocketAddr, certificate: Option<&str>) -> Command {
    let mut command = Command::new("openssl");
    let (address, authority) = (address.to_string(), lab.file("ca.pem"));
    command.args(["s_client", "-quiet", "-verify_return_error", "-CAfile", &authority]);
    command.args(["-connect", &address, "-servername", "localhost"]);
    if let Some(name) = certificate {
        let [cert, key] = ["pem", "key"].map(|kind| lab.file(&format!("{name}.{kind}")));
        command.args(["-cert", &cert, "-key", &key]);
    }
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Only readers whose certificate the authority signed get packets.
#[test]
fn tls_admits_readers_with_a_certificate() {
    let Some(lab) = Lab::open() else { return };
    make_certificates(&lab);
    let (file, receiver, tls) = (lab.file("read.pcapng"), lab.receiver(), tls_options(&lab));
    let arguments = args!("-i {receiver} --tap xdp -w tcp-listen:0.0.0.0:0{tls}");
    let capture = Capture::start(&lab, &arguments);
    let address = SocketAddr::from(([127, 0, 0, 1], address(&capture.said()).port()));
    // Readers without a certificate, with a stranger's, and without TLS get nothing.
    for certificate in [None, Some("stranger")] {
        let read = openssl_reader(&lab, address, certificate).output().expect("openssl");
        assert!(read.stdout.is_empty());
    }
    capture.wait_said("peer sent no certificates");
    capture.wait_said("invalid peer certificate");
    let mut plain = TcpStream::connect(address).expect("a connection");
    plain.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("a connection");
    capture.wait_said("corrupt message");
    assert!(!capture.said().contains(" connected"));

    let mut reader = openssl_reader(&lab, address, Some("reader"));
    reader.stdout(File::create(&file).expect("a file"));
    let mut reader = reader.spawn().expect("openssl");
    wait_connected(&capture, 1);
    lab.send(&[frames::patterned(1400)], 5000);
    capture.wait_recorded(5000);
    let summary = capture.stop_well();
    reader.wait().expect("openssl");
    summary.assert_all_recorded(5000);
    assert_eq!(tshark(&file, &["frame.number"]).len(), 5000);
    assert_eq!(Contents::read(&file).packets.len(), 5000);
}

/// Connections that never finish the handshake take no reader's place.
#[test]
fn stalled_handshakes_keep_no_reader_out() {
    let Some(lab) = Lab::open() else { return };
    make_certificates(&lab);
    let (file, receiver, tls) = (lab.file("read.pcapng"), lab.receiver(), tls_options(&lab));
    let arguments = args!("-i {receiver} --tap xdp -w tcp-listen:0{tls}");
    let capture = Capture::start(&lab, &arguments);
    let address = address(&capture.said());
    let stalled: Vec<TcpStream> = (0..70).map(|_| TcpStream::connect(address).expect("a connection")).collect();
    // trawl has closed the oldest connections in favour of newer ones.
    capture.wait_said("it closed the connection during the TLS handshake");
    let mut reader = openssl_reader(&lab, address, Some("reader"));
    reader.stdout(File::create(&file).expect("a file"));
    let mut reader = reader.spawn().expect("openssl");
    wait_connected(&capture, 1);
    assert!(!capture.said().contains("are connected already"));
    drop(stalled);
    lab.send(&[frames::silent(64)], 50);
    capture.wait_recorded(50);
    let summary = capture.stop_well();
    reader.wait().expect("openssl");
    summary.assert_all_recorded(50);
    assert_eq!(Contents::read(&file).packets.len(), 50);
}

/// Only packets that an output has count as recorded.
#[test]
fn full_disk_without_a_reader_records_the_file_alone() {
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    let disk = TinyDisk::mount(&lab, 512 << 10);
    let (file, receiver) = (disk.path("file"), lab.receiver());
    let arguments = args!("-i {receiver} --tap xdp -w {file} -w tcp-listen:0");
    let capture = Capture::start(&lab, &arguments);
    // The packets have four times the size of the disk.
    lab.send(&[frames::patterned(200)], 10_000);
    capture.wait_recorded(10_000);
    let finished = capture.stop();
    let summary = finished.summary();
    let rows = tshark(&file, &["frame.len"]).len() as u64;
    assert!(rows > 1000, "{rows}");
    assert_eq!(summary.recorded, rows, "{summary:?}");
    assert!(summary.lost_by("disk_full") > 0, "{summary:?}");
}

#[test]
fn outputs_for_readers_that_cannot_work_are_refused() {
    let Some(lab) = Lab::open() else { return };
    make_certificates(&lab);
    let receiver = lab.receiver();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = format!("tcp-listen:{}", taken.local_addr().expect("an address"));
    let [cert, key, stranger, missing] =
        ["server.pem", "server.key", "stranger.key", "none.pem"].map(|name| lab.file(name));
    let tls =
        |cert: &str, key: &str, authority: &str| format!("tcp-listen:0,cert={cert},key={key},client-ca={authority}");
    for (output, code, fix) in [
        ("tcp-listen:0.0.0.0:57012", 2, "tcp-listen:0.0.0.0:57012,plain"),
        ("tcp-listen:[::]:57012", 2, "client-ca=FILE"),
        ("tcp-listen:web:57012", 2, "tcp-listen:127.0.0.1:57012"),
        ("tcp-listen:0,compress=zstd", 2, "leave out --compress"),
        ("tcp-listen:192.0.2.1:57012,plain", 1, "ip address"),
        (&taken, 1, "choose another port"),
        (&tls(&missing, &key, &cert), 1, "No such file"),
        (&tls(&key, &key, &cert), 1, "certificates"),
        (&tls(&cert, &stranger, &cert), 1, "stranger.key"),
    ] {
        let refused = trawl(&["capture", "-i", &receiver, "-w", output]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(code), "{output}: {said}");
        assert!(said.contains(fix) && !said.contains("capturing on"), "{said}");
    }
    let refused = trawl(&["capture", "-i", &receiver, "-w", "tcp-listen:0", "-C", "1"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
