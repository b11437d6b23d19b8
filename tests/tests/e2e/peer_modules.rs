//! The pcap tap on netmap and PF_RING, in the virtual machine. Their kernel modules are on no package registry: the person
//! who runs the tests names directories where they lie built for the machine's kernel (docs/peers.md).

use std::path::{Path, PathBuf};

use trawl_tests::lab::place;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{capinfos, run};
use trawl_tests::{Capture, Lab, frames, skip};

const FRAMES: u32 = 400;

/// What a variable names; says that the test is skipped where it names nothing, or this is not the machine for it.
fn named_or_skip(variable: &str, what: &str) -> Option<PathBuf> {
    if std::env::var_os("TRAWL_TESTS_MACHINE").is_none() {
        skip("kernel modules are loaded in the virtual machine only");
        return None;
    }
    let named = std::env::var_os(variable).map(PathBuf::from);
    if named.is_none() {
        skip(&format!("{variable} does not name {what} (docs/peers.md)"));
    }
    named
}

/// A module, loaded.
fn load(file: &Path) {
    assert!(file.is_file(), "{} is not built", file.display());
    run("insmod", &[&file.display().to_string()]);
}

/// Every frame that comes is recorded once, byte for byte, by this library.
fn records_all(lab: &Lab, library: &Path, device: &str, more: &[&str]) -> String {
    let sent: Vec<Vec<u8>> = (0..FRAMES)
        .map(|number| frames::numbered(number, 60 + number as usize))
        .collect();
    let file = lab.file("file.pcapng");
    let library = library.display().to_string();
    let what = [
        "--tap",
        "pcap",
        "--libpcap",
        &library,
        "-i",
        device,
        "-w",
        &file,
    ];
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

/// Issue 14: netmap in emulated mode. Its packets have microseconds, which the file says.
#[test]
fn netmap_is_recorded_from() {
    let Some(source) = named_or_skip(
        "TRAWL_NETMAP_SRC",
        "the directory of netmap, with LINUX/netmap.ko",
    ) else {
        return;
    };
    let Some(library) = named_or_skip("TRAWL_NETMAP_LIBPCAP", "a libpcap.so with netmap") else {
        return;
    };
    let Some(lab) = Lab::open() else { return };
    load(&source.join("LINUX/netmap.ko"));
    let device = format!("{}:netmap:{}", lab.pair.b.name, lab.pair.b.interface);
    let description = records_all(&lab, &library, &device, &["--steal"]);
    assert!(description.contains("in microseconds"), "{description}");
}

/// Issue 14: PF_RING's own libpcap reads a veth by its kernel module.
#[test]
fn pf_ring_is_recorded_from() {
    let Some(source) = named_or_skip(
        "TRAWL_PF_RING_SRC",
        "the directory of PF_RING, with kernel/pf_ring.ko",
    ) else {
        return;
    };
    let Some(lab) = Lab::open() else { return };
    load(&source.join("kernel/pf_ring.ko"));
    let libraries = source.join("userland/libpcap");
    let library = std::fs::read_dir(&libraries)
        .expect("its libpcap")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains("libpcap.so"))
        .expect("its libpcap is built");
    records_all(&lab, &library, &place(&lab.pair.b), &["-Q", "in"]);
}
