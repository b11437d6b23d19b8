//! What is there before the first interface and after the last.

use super::*;

#[test]
fn rules_before_an_interface_and_nothing_after_the_last() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    assert!(!guarded.directory().exists());
    assert_eq!(guarded.list()["rules"].as_array().map(Vec::len), Some(0));
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    guarded.well(&["remove", "1"]);
    assert!(
        !guarded.directory().exists(),
        "without rules and interfaces there is nothing to keep"
    );
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    guarded.well(&["deny", "--icmp", "echo-request", "--on", "lo"]);
    guarded.well(&["load", "veth0"]);
    guarded.well(&["load", "lo"]);
    guarded.send(&[udp_from(STRANGER, 9), ping_from(A4)], 200);
    assert_eq!((guarded.hits(1), guarded.hits(2)), (100, 0));
    let (program, _) = xdp_on(&lab.pair.b).expect("it is guarded");
    assert!(guarded.directory().exists());
    let about = run(
        "bpftool",
        &["-j", "prog", "show", "id", &program.to_string()],
    );
    let about: Value = serde_json::from_str(&about).expect("JSON");
    let maps = about["map_ids"].as_array().cloned().unwrap_or_default();
    guarded.well(&["unload", "lo"]);
    assert_eq!(guarded.hits(1), 100);
    guarded.well(&["unload", "veth0"]);
    assert_eq!(xdp_on(&lab.pair.b), None);
    assert!(!guarded.directory().exists());
    wait_until("the program is unloaded", || !is_loaded(program));
    guarded.refused(1, &["unload", "veth0"]);
    for map in maps {
        wait_until("its maps are gone", || {
            !output("bpftool", &["map", "show", "id", &map.to_string()])
                .status
                .success()
        });
    }
}

#[test]
fn an_interface_that_vanishes_takes_its_default_along() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    run("ip", &["-n", &lab.pair.b.name, "link", "del", "veth0"]);
    guarded.well(&["remove", "--all"]);
    assert!(!guarded.directory().exists());
}
