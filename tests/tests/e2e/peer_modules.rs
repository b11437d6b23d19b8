//! The pcap tap on netmap and PF_RING, in the virtual machine. Package registries do not have them, so the user of the
//! tests names directories with their sources, which scripts/build-peers builds for the machine's kernel
//! (docs/peers.md).

use std::path::{Path, PathBuf};

use trawl_tests::lab::place;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{capinfos, run};
use trawl_tests::{Capture, Lab, args, frames, skip};

const FRAMES: u32 = 400;

/// Returns the directory of a module and its libpcap from scripts/build-peers; reports that the test is skipped if it
/// is missing, or the machine is the wrong one.
fn built_or_skip(variable: &str, sources: &str) -> Option<PathBuf> {
    if std::env::var_os("TRAWL_TESTS_MACHINE").is_none() {
        skip("kernel modules are loaded in the virtual machine only");
        return None;
    }
    let built = std::env::var_os(variable).map(PathBuf::from);
    if built.is_none() {
        skip(&format!("{sources} does not name the sources (docs/peers.md)"));
    }
    built
}

/// Loads a kernel module.
fn load(file: &Path) {
    assert!(file.is_file(), "{} is not built", file.display());
    run("insmod", &[&file.display().to_string()]);
}

fn numbered() -> Vec<Vec<u8>> {
    (0..FRAMES).map(|number| frames::numbered(number, 60 + number as usize)).collect()
}

/// Checks that this library records every frame once, byte for byte.
fn records_all(lab: &Lab, library: &Path, device: &str, more: &[&str]) -> String {
    let sent = numbered();
    let file = lab.file("file.pcapng");
    let library = library.display().to_string();
    let what = args!("--tap pcap --libpcap {library} -i {device} -w {file}");
    let capture = Capture::start(lab, &[&what, more].concat());
    lab.send(&sent, u64::from(FRAMES));
    capture.wait_recorded(u64::from(FRAMES));
    let finished = capture.stop();
    let summary = finished.summary_of_success();
    summary.assert_all_recorded(u64::from(FRAMES));
    let said = &finished.stderr;
    assert!(!said.contains("does not come back"), "{said}");
    let contents = Contents::read(&file);
    let got: Vec<&[u8]> = contents.packets.iter().map(|one| &one.bytes[..]).collect();
    frames::assert_same(&got, &sent);
    capinfos(&file, "Description")
}

/// Netmap in emulated mode records all packets. Their times have microseconds, as the file declares.
#[test]
fn netmap_packets_are_recorded() {
    let Some(built) = built_or_skip("TRAWL_TESTS_NETMAP", "TRAWL_NETMAP_SRC") else {
        return;
    };
    let Some(lab) = Lab::open() else { return };
    load(&built.join("netmap.ko"));
    let device = format!("{}:netmap:{}", lab.pair.b.name, lab.pair.b.interface);
    let description = records_all(&lab, &built.join("libpcap.so"), &device, &["--steal"]);
    assert!(description.contains("in microseconds"), "{description}");
    rejected_are_counted(&lab, &built.join("libpcap.so"), &device);
}

/// Checks that rejected packets are counted at any snap length. trawl filters them, because netmap has no filter.
fn rejected_are_counted(lab: &Lab, library: &Path, device: &str) {
    let library = library.display().to_string();
    let file = lab.file("some.pcapng");
    let what = args!("--tap pcap --libpcap {library} -i {device} --steal");
    let filter = args!("-s 10 -w {file} 'ether proto 0x88b5 and greater 260'");
    let capture = Capture::start(lab, &[&what[..], &filter].concat());
    lab.send(&numbered(), u64::from(FRAMES));
    capture.wait_recorded(200);
    let summary = capture.stop_well();
    assert_eq!((summary.seen, summary.filtered_out, summary.recorded), (400, 200, 200), "{summary:?}");
}

/// PF_RING's own libpcap reads a veth by its kernel module.
#[test]
fn pf_ring_packets_are_recorded() {
    let Some(built) = built_or_skip("TRAWL_TESTS_PF_RING", "TRAWL_PF_RING_SRC") else {
        return;
    };
    let Some(lab) = Lab::open() else { return };
    load(&built.join("pf_ring.ko"));
    let library = built.join("libpcap.so");
    records_all(&lab, &library, &place(&lab.pair.b), &["-Q", "in"]);
}
