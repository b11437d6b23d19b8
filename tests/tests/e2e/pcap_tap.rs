//! The pcap tap with Debian's libpcap, with a second build of another version, and with a test double that gives wrong
//! answers.

use std::path::{Path, PathBuf};
use std::process::Command;

use trawl_lab::Station;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{capinfos, run, tshark};
use trawl_tests::{Capture, Lab, Running, args, binary, frames, skip, trawl};

/// Returns the interface descriptions of a file, as shown by Wireshark's tools.
fn description(file: &str) -> String {
    capinfos(file, "Description")
}

/// Compiles the test double.
pub fn double(lab: &Lab) -> String {
    let library = lab.file("libdouble.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/pcap_tap/double.c");
    let source = source.display().to_string();
    run("cc", &["-shared", "-fPIC", "-w", "-o", &library, &source]);
    library
}

/// Returns the directory of the libraries in PyPI's package `libpcap`: one for each of several processors.
pub fn other_builds(lab: &Lab) -> Option<PathBuf> {
    let directory = match std::env::var_os("TRAWL_OTHER_LIBPCAP") {
        Some(directory) => PathBuf::from(directory),
        None => {
            let to = lab.file("wheel");
            let wheel = "libpcap==1.11.0b29";
            let what = ["install", "-q", "--no-deps", "--target", &to, wheel];
            let pip = Command::new("pip3").args(what).output();
            if !pip.is_ok_and(|done| done.status.success()) {
                skip(
                    "no second build of libpcap: pip3 cannot install libpcap 1.11.0b29 (TRAWL_OTHER_LIBPCAP names the directory of one)",
                );
                return None;
            }
            PathBuf::from(to).join("libpcap/_platform/linux")
        }
    };
    Some(directory)
}

pub fn build(directory: &Path, processor: &str) -> String {
    directory.join(processor).join("tcpdump/libpcap.so").display().to_string()
}

fn at(station: &Station) -> String {
    format!("{}:{}", station.name, station.interface)
}

/// Checks that all frames are recorded once, byte for byte, with a filter and without.
fn records_what_comes(lab: &Lab, library: &[&str], version: &str) {
    let sent: Vec<Vec<u8>> = (0..400).map(|number| frames::numbered(number, 60 + number as usize)).collect();
    for filter in ["", "ether proto 0x88b5"] {
        let file = lab.file("file.pcapng");
        let place = at(&lab.pair.b);
        let what = ["--tap", "pcap", "-i", &place, "-Q", "in", "-w", &file, filter];
        let what: Vec<&str> = what.iter().chain(library).copied().filter(|one| !one.is_empty()).collect();
        let capture = Capture::start(lab, &what);
        lab.send(&sent, sent.len() as u64);
        let finished = capture.stop();
        let summary = finished.summary_of_success();
        summary.assert_all_recorded(sent.len() as u64);
        let contents = Contents::read(&file);
        let got: Vec<&[u8]> = contents.packets.iter().map(|one| &one.bytes[..]).collect();
        frames::assert_same(&got, &sent);
        assert!(description(&file).contains(version), "{}", description(&file));
        let figures = summary.interfaces[0].library.as_ref().expect("figures");
        assert!(figures["name"].as_str().is_some_and(|name| name.contains(version)), "{figures}");
        assert_eq!((figures["received"].as_u64(), figures["dropped"].as_u64()), (Some(400), Some(0)));
        assert!(finished.stderr.contains("400 received, 0 dropped"), "{}", finished.stderr);
        let lengths = tshark(&file, &["frame.len"]).concat();
        assert_eq!(lengths.len(), sent.len());
    }
}

/// The system's library records all packets, with nanoseconds.
#[test]
fn system_libpcap_records_all() {
    let Some(lab) = Lab::open() else { return };
    records_what_comes(&lab, &[], "libpcap version 1");
}

/// A second build of another version records all packets, and builds for other processors are refused by name.
#[test]
fn another_build_of_libpcap_records_all() {
    let Some(lab) = Lab::open() else { return };
    let Some(directory) = other_builds(&lab) else {
        return;
    };
    if cfg!(target_arch = "x86_64") {
        let own = build(&directory, "x86_64");
        records_what_comes(&lab, &["--libpcap", &own], "libpcap version 1.10.6");
        for (processor, name) in [("aarch64", "64-bit ARM"), ("x86", "32-bit x86"), ("ppc64le", "64-bit PowerPC")] {
            let other = build(&directory, processor);
            let done = trawl(&["capture", "--tap", "pcap", "-i", "lo", "--libpcap", &other]);
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert_eq!(done.status.code(), Some(1), "{said}");
            assert!(said.contains(&format!("it is for {name}, and trawl is for x86-64")), "{said}");
        }
    }
}

/// The library's device `any` records all interfaces at once, with a link type of its own and the direction.
#[test]
fn any_device_is_recorded_cooked() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let what = args!("--tap pcap --netns {} -i any -w {file} 'ether proto 0x88b5'", lab.pair.b.name);
    let capture = Capture::start(&lab, &what);
    lab.send(&[frames::numbered(7, 60)], 50);
    let summary = capture.stop_well();
    summary.assert_all_recorded(50);
    let contents = Contents::read(&file);
    assert!(contents.packets.iter().all(|one| one.options.u32(2) == Some(1)));
    assert_eq!(tshark(&file, &["sll.etype"]).concat(), vec!["0x88b5"; 50]);
    // Printed packets of this namespace have the names of their interfaces, as in tcpdump.
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", &lab.pair.b.name]);
    inside.arg(binary::path());
    inside.args(args!("capture --tap pcap -i any -c 9 -t 'ether proto 0x88b5'"));
    let lines = Running::of(inside, "capturing on");
    lab.send(&[frames::numbered(7, 60)], 9);
    let shown = lines.wait().stdout;
    assert_eq!(shown.matches("veth0 In ").count(), 9, "{shown}");
}

/// Answers of a library are trusted only as far as they can be verified.
#[test]
fn awkward_answers_are_counted_and_reported() {
    let Some(lab) = Lab::open() else { return };
    let library = double(&lab);
    let file = lab.file("file.pcapng");
    let what = args!("--tap pcap -i awkward -w {file} --libpcap {library}");
    let capture = Capture::start(&lab, &what);
    capture.wait_recorded(4);
    let finished = capture.stop();
    let summary = finished.summary_of_success();
    assert_eq!((summary.seen, summary.recorded), (9, 4), "{summary:?}");
    assert_eq!((summary.lost_by("copy_failed"), summary.lost_by("libpcap")), (2, 3));
    let figures = summary.interfaces[0].library.as_ref().expect("figures");
    assert_eq!(figures["dropped_by_interface"].as_u64(), Some(1));
    assert!(finished.stderr.contains("gave 2 packets an impossible time"), "{}", finished.stderr);
    assert!(!finished.stderr.contains('\u{1b}'), "{}", finished.stderr);
    assert!(description(&file).contains("in microseconds"), "{}", description(&file));
    let lengths: Vec<usize> = Contents::read(&file).packets.iter().map(|one| one.bytes.len()).collect();
    assert_eq!(lengths, [60, 60, 60, 0]);
}

/// Packets rejected by a filter are counted even if the library has no filter in the kernel. One packet of the double
/// has no bytes, so that a filter for its first byte rejects it.
#[test]
fn rejected_packets_of_a_library_are_counted() {
    let Some(lab) = Lab::open() else { return };
    let library = double(&lab);
    let file = lab.file("file.pcapng");
    let what = args!(
        "--tap pcap -i awkward -s 1 -w {file} --libpcap {library} 'first byte \
         2'"
    );
    let capture = Capture::start(&lab, &what);
    capture.wait_recorded(3);
    let finished = capture.stop();
    let summary = finished.summary_of_success();
    assert_eq!((summary.seen, summary.filtered_out, summary.recorded), (9, 1, 3), "{summary:?}");
    assert!(!finished.stderr.contains("are not counted"), "{}", finished.stderr);
    assert!(Contents::read(&file).packets.iter().all(|one| one.bytes.len() == 1));
    // At an interface of the kernel, rejected packets cannot be counted, which is reported.
    let place = at(&lab.pair.b);
    let what = ["--tap", "pcap", "-i", &place, "udp"];
    let finished = Capture::start(&lab, &what).stop();
    finished.summary_of_success();
    assert!(finished.stderr.contains("are not counted"), "{}", finished.stderr);
}

#[test]
fn library_failure_is_reported_with_its_cause() {
    let Some(lab) = Lab::open() else { return };
    let library = double(&lab);
    for (device, options, why) in [
        ("silent-failure", &[][..], "the library gave no reason"),
        ("unknown-status", &[], "the library gave no reason (status -77)"),
        ("no-link-type", &[], "link type 70000"),
        ("idle", &["-Q", "in"], "cannot choose the direction"),
        ("idle", &["--queue", "0"], "libpcap does not report it"),
        ("idle", &["--inner", "tcp"], "libpcap has no such filter"),
        ("idle", &["anything else"], "gave no usable program"),
    ] {
        let what = args!("capture --tap pcap -i {device} --libpcap {library}");
        let done = trawl(&[&what[..], options].concat());
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(matches!(done.status.code(), Some(1 | 2)) && said.contains(why), "{device}: {said}");
    }
    let what = ["--tap", "pcap", "-i", "fails", "--libpcap", &library];
    let finished = Capture::start(&lab, &what).wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("cannot read packets from fails"), "{}", finished.stderr);
    for device in ["boasts", "no-figures"] {
        let what = args!("--tap pcap -i {device} --libpcap {library} --duration 100ms");
        let finished = Capture::start(&lab, &what).wait();
        assert_eq!(finished.summary_of_success().seen, 0);
    }
}

/// A missing module or library is named with its installation; netmap requires consent before it diverts packets.
#[test]
fn missing_modules_and_libraries_are_named() {
    for (arguments, code, why) in [
        (&["-i", "netmap:lo"][..], 2, "add --steal"),
        (&["-i", "netmap:lo", "--steal"], 1, "kernel module netmap"),
        (&["-i", "zc:lo", "--steal"], 1, "kernel module pf_ring"),
        (&["-i", "usbmon99"], 1, "modprobe usbmon"),
        (&["-i", "nowhere0"], 1, "ip link shows the interfaces"),
        (&["-i", "lo", "--libpcap", "/nowhere.so"], 1, "there is no such file"),
        (&["-i", "lo", "--libpcap", "libm.so.6"], 1, "it is not libpcap"),
        (&["-i", "lo", "no such filter"], 2, "syntax error"),
    ] {
        let done = trawl(&[&["capture", "--tap", "pcap"], arguments].concat());
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{said}");
        assert!(said.contains(why), "{said}");
    }
    let done = trawl(&["capture", "--tap", "packet", "-i", "lo", "--steal"]);
    assert_eq!(done.status.code(), Some(2));
}
