//! Frames that are alike go to the kernel as one long frame by the packet engine. What comes out of it is what was
//! asked for, and counted right.

use trawl_kernel::probe;
use trawl_lab::program::{Does, Loaded};
use trawl_tests::generator::{dissect, generate, received, wait_received};
use trawl_tests::{Capture, Lab};

const FIELDS: [&str; 6] = [
    "frame.len",
    "ip.checksum.status",
    "udp.checksum.status",
    "ip.id",
    "udp.checksum",
    "data",
];
const COUNT: usize = 200;

/// What came of frames sent with these arguments. The capture's program at the other end makes the kernel take the
/// long frames apart before the device.
fn sent(lab: &Lab, arguments: &[&str]) -> Vec<Vec<String>> {
    let file = lab.file("file.pcapng");
    let (receiver, count) = (lab.receiver(), COUNT.to_string());
    let capture = Capture::start(lab, &["-i", &receiver, "-c", &count, "-w", &file]);
    let fixed = ["--engine", "packet", "--count", &count];
    let summary = generate(lab, "udp", &[&fixed[..], arguments].concat());
    assert_eq!(summary["frames"], COUNT, "{arguments:?}");
    capture.wait().summary_of_success();
    dissect(&file, &FIELDS)
}

/// How many different values there are of a field.
fn different(rows: &[Vec<String>], field: usize) -> usize {
    let all: std::collections::BTreeSet<_> = rows.iter().map(|row| &row[field]).collect();
    all.len()
}

#[test]
fn they_are_right_on_the_wire() {
    let Some(lab) = Lab::open() else { return };
    for (arguments, length, is_v4) in [
        (&["--size", "60"][..], "60", true),
        (&["--size", "61"], "61", true),
        (&["--size", "1400"], "1400", true),
        (&["-6", "--size", "90"], "90", false),
        (&["--size", "120", "--stamp"], "120", true),
    ] {
        let rows = sent(&lab, arguments);
        assert_eq!(rows.len(), COUNT, "{arguments:?}");
        for row in &rows {
            let sums = if is_v4 { ["1", "1"] } else { ["", "1"] };
            assert_eq!(row[0], length, "{arguments:?}: {row:?}");
            assert_eq!(row[1..3], sums, "{arguments:?}: {row:?}");
        }
        // The sign that they went together: the kernel counts up. Before 6.2 it takes no such frames from anybody.
        let together = is_v4 && probe::kernel_is_at_least(6, 2);
        assert_eq!(different(&rows, 3) > 1, together, "{arguments:?}");
        assert_eq!(different(&rows, 4), 1, "{arguments:?}");
        let stamped = arguments.contains(&"--stamp");
        let payloads = if stamped { COUNT } else { 1 };
        assert_eq!(different(&rows, 5), payloads, "{arguments:?}");
    }
}

#[test]
fn others_go_one_by_one() {
    let Some(lab) = Lab::open() else { return };
    for arguments in [
        &["--size", "60", "--payload", "text:of my own"][..],
        &["--size", "60", "--src-port", "1-200"],
    ] {
        let rows = sent(&lab, arguments);
        assert!(rows.iter().all(|row| row[1..4] == ["1", "1", "0x0000"]));
    }
}

#[test]
fn the_two_bytes_that_make_them_level_are_where_the_live_engine_can_write_them() {
    let Some(lab) = Lab::open() else { return };
    for sizes in ["64,594,1500", "imix", "60-1500"] {
        let arguments = ["--engine", "live", "--size", sizes, "--count", "20"];
        let summary = generate(&lab, "udp", &arguments);
        assert_eq!(summary["frames"], 20, "{sizes}");
    }
}

#[test]
fn each_is_counted() {
    let Some(lab) = Lab::open() else { return };
    // Without a program at the other end the device would take long frames whole.
    for program in [None, Some(Does::Drop)] {
        let _program = program.map(|does| Loaded::native(does, &lab.pair.b).expect("a program"));
        for threads in ["1", "2"] {
            let before = received(&lab);
            let fixed = ["--engine", "packet", "--size", "60", "--count", "100001"];
            let summary = generate(&lab, "udp", &[&fixed[..], &["--threads", threads]].concat());
            assert_eq!(summary["frames"], 100_001, "{program:?}");
            assert_eq!(summary["bytes"], 100_001 * 60);
            wait_received(&lab, before, 100_001);
        }
    }
}
