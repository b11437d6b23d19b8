//! Every output accepts the packets of every source.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;

use trawl_tests::witness::{capinfos, packets_in, tshark};
use trawl_tests::{Capture, Lab, args, frames, trawl};

/// Connects as a reader of the address that trawl reports, and returns the number of packets received, in a thread.
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

/// A series, pcap, compressed and cut files, a reader on a socket and lines receive the same packets, and packets of a
/// host that are cut off are in the account.
#[test]
fn every_output_has_the_packets_of_all_hosts() {
    const SENT: u64 = 200;
    let Some(lab) = Lab::open() else { return };
    // The hosts are this one: the script for each of them is the last argument.
    let ssh = lab.file("ssh");
    std::fs::write(&ssh, "#!/bin/sh\nfor last; do :; done\nexec sh -c \"$last\"\n").expect("it can be written");
    std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let directory = trawl_tests::binary::path().parent().expect("a directory");
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    let [series, pcap, packed] = ["s.pcapng", "b.pcap", "c.pcapng.zst"].map(|name| lab.file(name));
    let words = args!(
        "--ssh {ssh} --on one --on two -i {} --tap tc -Q in -w {series} -C 20k -w {pcap} -w {packed},snaplen=60 \
         -w tcp-listen:0 --print",
        lab.receiver()
    );
    let capture = Capture::start_with(("PATH", &path), &lab, &words);
    for host in ["one", "two"] {
        capture.wait_said(&format!("{host}: capturing on"));
    }
    let received = reader(&lab, &capture.said());
    capture.wait_said(" connected");
    lab.send(&[frames::patterned(300)], SENT);
    let finished = capture.stop();
    let said = &finished.stderr;
    assert_eq!(finished.status.code(), Some(0), "{said}");
    let all = 2 * SENT;
    let account = format!("trawl: {all} seen, 0 filtered out, {all} recorded, 0 lost");
    assert!(said.lines().any(|line| line == account), "{said}");
    assert_eq!(received.join().expect("it reads"), all);
    // The bytes of each packet follow in lines of their own.
    let printed = finished.printed();
    let lines = printed.lines().filter(|line| !line.starts_with(char::is_whitespace));
    assert_eq!(lines.count() as u64, all, "{printed}");
    assert_eq!(packets_in(&pcap), all);
    assert!(capinfos(&pcap, "File type").contains("pcap") && !capinfos(&pcap, "File type").contains("pcapng"));
    let cut = trawl(&args!("read {packed} -w {packed}.pcapng"));
    assert!(cut.status.success(), "{cut:?}");
    let rows = tshark(&format!("{packed}.pcapng"), &["frame.cap_len", "frame.interface_name"]);
    assert_eq!(rows.len() as u64, all);
    for host in ["one", "two"] {
        let of_host = rows.iter().filter(|row| row[0] == "60" && row[1].starts_with(&format!("{host}:")));
        assert_eq!(of_host.count() as u64, SENT, "{rows:?}");
    }
    let files = (1..).map(|number| lab.file(&format!("s_{number:05}.pcapng")));
    let files: Vec<String> = files.take_while(|file| std::fs::exists(file).is_ok_and(|exists| exists)).collect();
    assert!(files.len() > 4, "{files:?}");
    assert_eq!(files.iter().map(|file| packets_in(file)).sum::<u64>(), all);
}
