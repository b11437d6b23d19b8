//! Captures of interfaces that are named by a pattern, more than one would type (issue 19, large hosts).

use std::io::Write;
use std::process::{Command, Stdio};

use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, frames, trawl};

const PAIRS: usize = 60;

/// More interfaces between the two namespaces of the lab, gone with them.
fn add_pairs(lab: &Lab) {
    let (a, b) = (&lab.pair.a.name, &lab.pair.b.name);
    let batch = |namespace: &str, lines: String| {
        let mut ip = Command::new("ip")
            .args(["-n", namespace, "-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("ip");
        let mut stdin = ip.stdin.take().expect("it is piped");
        stdin.write_all(lines.as_bytes()).expect("ip reads");
        drop(stdin);
        assert!(ip.wait().expect("ip ends").success());
    };
    let lines = |line: &dyn Fn(usize) -> String| (0..PAIRS).map(line).collect::<String>();
    batch(
        a,
        lines(&|number| format!("link add p{number} type veth peer name p{number} netns {b}\n")),
    );
    for namespace in [a, b] {
        batch(
            namespace,
            lines(&|number| format!("link set dev p{number} up\n")),
        );
    }
}

#[test]
fn a_pattern_names_interfaces_of_several_namespaces() {
    let Some(lab) = Lab::open() else { return };
    add_pairs(&lab);
    let name = &lab.pair.b.name;
    // One letter stands for each of the two namespaces.
    let pattern = format!("{}?:[pv]*", &name[..name.len() - 1]);
    let file = lab.file("all.pcapng");
    let capture = Capture::start(&lab, &["-i", &pattern, "-w", &file]);
    lab.send(&[frames::silent(77)], 5);
    capture.wait_recorded(5);
    capture.stop_well();
    let rows = tshark(&file, &["frame.interface_name", "frame.len"]);
    let sent = [lab.receiver(), "77".to_owned()];
    assert_eq!(
        rows.iter().filter(|row| **row == sent).count(),
        5,
        "{rows:?}"
    );
    let about = run("capinfos", &[&file]);
    let count = format!("Number of interfaces in file: {}", 2 * PAIRS + 2);
    assert!(about.contains(&count), "{about}");
    let attached = run("ip", &["-n", name, "-details", "link", "show"]);
    assert!(!attached.contains("prog/xdp"), "{attached}");
}

#[test]
fn a_pattern_that_nothing_matches_is_refused() {
    let Some(lab) = Lab::open() else { return };
    let none = format!("{}:wlan*", lab.pair.b.name);
    let output = trawl(&["capture", "-i", &none]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no interface has such a name"), "{said}");
}
