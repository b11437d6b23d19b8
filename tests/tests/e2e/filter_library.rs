//! The libpcap that compiles filters; captures without a filter need none.

use std::path::Path;
use std::process::{Command, Output};

use trawl_tests::binary;
use trawl_tests::{Capture, Lab, frames, trawl};

use crate::pcap_tap::{build, double, other_builds};

/// Runs trawl where no libpcap can be loaded.
fn without_libpcap(arguments: &[&str]) -> Output {
    let script = "for file in $(ldconfig -p | sed -n 's/.*libpcap\\.so.* => //p'); do \
                  mount --bind /dev/null $(readlink -f $file) || exit 99; done; exec \"$@\"";
    Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(binary::path())
        .args(arguments)
        .output()
        .expect("unshare runs")
}

fn said(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// A machine without libpcap captures without a filter; the error for a filter names the package to install.
#[test]
fn libpcap_is_loaded_only_for_filters() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let what = ["capture", "-i", &receiver, "--duration", "50ms"];
    let done = without_libpcap(&what);
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    let with_filter = [&what[..], &["tcp"]].concat();
    let empty = lab.file("empty.pcap");
    let header = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 262_144, 1];
    std::fs::write(&empty, header.map(u32::to_ne_bytes).concat()).unwrap();
    for arguments in [&with_filter[..], &["filter", "tcp"], &["read", &empty, "tcp"]] {
        let done = without_libpcap(arguments);
        let said = said(&done);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("cannot load libpcap: "), "{said}");
        assert!(said.contains("apt install libpcap0.8"), "{said}");
    }
}

/// --libpcap also selects the library that compiles filters, which may have a newer grammar.
#[test]
fn chosen_libpcap_brings_its_grammar() {
    let Some(lab) = Lab::open() else { return };
    let library = double(&lab);
    let (receiver, file) = (lab.receiver(), lab.file("file.pcapng"));
    let newer = ["--libpcap", &library, "newer", "grammar"];
    let done = trawl(&[&["filter", "-d"][..], &newer].concat());
    let listing = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(listing.starts_with("(000) ldb      [1]\n"), "{listing}{}", said(&done));
    let refused = trawl(&["filter", "-d", "newer", "grammar"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));

    let what = ["-i", &receiver, "-w", &file, "-c", "3"];
    let capture = Capture::start(&lab, &[&what[..], &newer].concat());
    let mut wanted = frames::silent(64);
    wanted[1] = 7;
    lab.send(&[frames::silent(64), wanted], 6);
    let summary = capture.wait().summary_of_success();
    assert_eq!((summary.recorded, summary.filtered_out), (3, 3));
    let done = trawl(&[&["stat", "--json", &file][..], &newer].concat());
    assert!(said(&done).is_empty(), "{}", said(&done));

    let Some(directory) = other_builds(&lab) else {
        return;
    };
    let own = build(&directory, std::env::consts::ARCH);
    if Path::new(&own).exists() {
        let code = |library: &[&str]| {
            let done = trawl(&[&["filter", "-d"][..], library, &["tcp port 80"]].concat());
            assert!(done.status.success(), "{}", said(&done));
            done.stdout
        };
        assert_eq!(code(&["--libpcap", &own]), code(&[]));
    }
}

/// Filters with negative offsets select the same packets as tcpdump.
#[test]
fn negative_offsets_match_as_in_tcpdump() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("one.pcap");
    let header = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 262_144, 1, 0, 0, 60, 60];
    let mut bytes = header.map(u32::to_ne_bytes).concat();
    bytes.extend([0; 60]);
    std::fs::write(&file, bytes).unwrap();
    for (expression, matched) in
        [("ether[-31:2] = 0", 0), ("not ether[-1] = 0", 0), ("ether[0] = 0 or ether[-14:4] > 3", 1)]
    {
        let judged = Command::new("tcpdump").args(["-r", &file, expression]).output().expect("tcpdump runs");
        assert!(judged.status.success(), "{}", said(&judged));
        let lines = String::from_utf8_lossy(&judged.stdout).lines().count();
        assert_eq!(lines, matched, "{expression}");
        let done = trawl(&["filter", "--json", "-r", &file, expression]);
        assert_eq!(done.status.code(), Some(0), "{}", said(&done));
        let answer: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
        assert_eq!(answer["read"]["count"], matched, "{expression}");
    }
}
