//! A kernel that refuses the helper by which programs read its memory: typed loads read the same bytes.

use rustix::process::Signal;
use serde_json::Value;
use trawl_packet::build::Template;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::run;
use trawl_tests::xdp::{CleanUp, succeeds};
use trawl_tests::{Capture, Lab, Running, args, feature_or_skip, frames, skip, tracing_or_skip, wait_until};

use crate::drop::nft;
use trawl_bpf::probe::{KernelFeature, kernel_is_at_least};

/// Value of TRAWL_WITHOUT that disables the helper.
const HELPER: &str = "probe-read";

/// Returns datagrams of several lengths, below and above the length that is read at a time.
fn datagrams(lab: &Lab) -> Vec<Vec<u8>> {
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let udp = |length: usize| {
        let payload: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
        let frame = Template::new().ethernet(a.mac, b.mac);
        let frame = frame.ipv4(a.ipv4.octets(), b.ipv4.octets());
        frame.udp(40_000, 5555).payload(payload).build()
    };
    [0, 1, 17, 21, 22, 23, 85, 86, 87, 500, 1471, 1472].map(udp).into()
}

/// Returns true if typed loads can replace the helper.
fn typed_or_skip() -> bool {
    let is_new = kernel_is_at_least(6, 8);
    if !is_new {
        skip("typed loads need Linux 6.8");
    }
    is_new && feature_or_skip(KernelFeature::RawTracepoint)
}

#[test]
fn drops_have_all_bytes_by_typed_loads() {
    let Some(lab) = Lab::open() else { return };
    if !typed_or_skip() {
        return;
    }
    nft(&lab.pair.b, "input", "udp dport 5555 counter drop");
    let sent = datagrams(&lab);
    let (file, count) = (lab.file("file.pcapng"), sent.len());
    let what = args!("--tap drop --netns {} -w {file} -c {count} 'udp port 5555'", lab.pair.b.name);
    let capture = Capture::start_without(HELPER, &lab, &what);
    lab.send_long(&sent);
    capture.wait().summary_of_success();
    let contents = Contents::read(&file);
    frames::assert_same(&contents.frames(), &sent);
    let comment = contents.packets[0].options.text(1).expect("a comment");
    assert!(comment.contains("drop=NETFILTER_DROP at=nft_do_chain+0x"), "{comment}");
}

/// The larger program, which also names processes, fits the verifier's limit with typed loads.
#[test]
fn why_names_reasons_by_typed_loads() {
    let Some(lab) = Lab::open() else { return };
    if !typed_or_skip() {
        return;
    }
    let netns = &lab.pair.b.name;
    let why = Running::start_without(HELPER, &args!("why --json --netns {netns}"), "looking for drops on");
    let sent = datagrams(&lab);
    lab.send_long(&sent);
    wait_until("the stack has dropped them", || {
        let counters = run("ip", &args!("netns exec {netns} cat /proc/net/snmp"));
        let udp = counters.lines().filter(|line| line.starts_with("Udp: ")).nth(1);
        udp.and_then(|values| values.split(' ').nth(2)?.parse().ok()) == Some(sent.len())
    });
    why.signal(Signal::INT);
    let done = why.wait();
    let notice: Value = serde_json::from_str(done.stderr.lines().next().expect("a notice")).expect("JSON");
    assert_eq!(notice["notice"]["mode"], "tp_btf", "{}", done.stderr);
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(report["rows"][0]["reason"], "NO_SOCKET", "{report}");
    assert_eq!(report["rows"][0]["packets"], sent.len(), "{report}");
}

#[test]
fn attached_program_is_traced_by_typed_loads() {
    if !tracing_or_skip() || !typed_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let _clean = CleanUp::of(&lab);
    succeeds(&args!("xdp load {place} pass"));
    let sent = datagrams(&lab);
    let (file, count) = (lab.file("file.pcapng"), sent.len());
    let what = args!("-i {place} --tap xdp -c {count} -w {file} 'udp port 5555'");
    let capture = Capture::start_without(HELPER, &lab, &what);
    lab.send_long(&sent);
    capture.wait().summary_of_success();
    frames::assert_same(&Contents::read(&file).frames(), &sent);
}

#[test]
fn kernel_memory_is_named_where_neither_way_works() {
    if kernel_is_at_least(6, 8) {
        skip("typed loads work here");
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let report = trawl_tests::trawl_in(&[("TRAWL_WITHOUT", HELPER)], &["doctor"]);
    let said = String::from_utf8_lossy(&report.stdout);
    assert!(said.contains("locked down"), "{said}");
    // Tracing itself is allowed, but reads nothing.
    let fexit = said.lines().find(|row| row.contains(" fexit "));
    assert!(fexit.is_some_and(|row| row.contains("refused")), "{said}");
    let name = &lab.pair.b.name;
    let refused = trawl_tests::trawl_in(&[("TRAWL_WITHOUT", HELPER)], &args!("capture --tap drop --netns {name} -c 1"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("locked down"), "{said}");
    assert_eq!(refused.status.code(), Some(1), "{said}");
}

/// Programs of control groups, at XDP and at tc have no typed loads.
#[test]
fn doctor_refuses_processes() {
    let report = trawl_tests::trawl_in(&[("TRAWL_WITHOUT", HELPER)], &["doctor"]);
    let said = String::from_utf8_lossy(&report.stdout);
    let rows: Vec<&str> = said.lines().collect();
    let row = rows.iter().position(|row| row.contains("(--process)"));
    let row = row.unwrap_or_else(|| panic!("{said}"));
    assert!(rows[row].contains("refused"), "{said}");
    assert!(rows[row + 1].contains("locked down"), "{said}");
}
