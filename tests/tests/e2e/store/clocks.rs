//! A wall clock that is set an hour forward and back while captures run.

use std::time::Duration;

use trawl_tests::{args, frames, trawl};

use super::{Places, good, json, lab};
use crate::clock::{Step, own_or_skip};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn steps_of_the_clock_lose_no_packet() {
    let Some(lab) = own_or_skip().then(lab).flatten() else {
        return;
    };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    let mut sent = 0;
    let mut send = || {
        lab.send(&[frames::ipv4_udp(0)], 100);
        sent += 100;
        capture.wait_recorded(sent);
    };
    send();
    let step = Step::by(HOUR).expect("the clock may be set");
    send();
    drop(step);
    send();
    capture.stop_well();
    assert_eq!(places.account(), [300, 300, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
    let step = Step::by(HOUR).expect("the clock may be set");
    good(trawl(&args!("store index {} --json", places.url)));
    drop(step);
    good(trawl(&args!("store index {} --json", places.url)));
    let query = args!("store query --store {} --spool {} --json", places.url, places.spool);
    let counted = trawl(&[&query[..], &["SELECT count(*) AS rows FROM packets"]].concat());
    assert_eq!(good(counted)["rows"][0]["rows"], 300);
    let listed = good(places.command("ls", &[]));
    assert_eq!(listed["not_recording"].as_array().map(Vec::len), Some(0), "{listed}");
    assert_eq!(places.problems(), Vec::<String>::new());
}

/// The pause between a killed run and the next one has its real length, even if the clock was set between them.
#[test]
fn steps_of_the_clock_make_no_pauses() {
    let Some(lab) = own_or_skip().then(lab).flatten() else {
        return;
    };
    let places = Places::of(&lab);
    let run = |is_killed: bool| {
        let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
        lab.send(&[frames::ipv4_udp(0)], 100);
        capture.wait_recorded(100);
        if is_killed {
            drop(capture.kill());
        } else {
            drop(capture.stop_well());
        }
        good(places.command("push", &[]));
    };
    let step = Step::by(HOUR).expect("the clock may be set");
    run(true);
    drop(step);
    run(true);
    let step = Step::by(HOUR).expect("the clock may be set");
    run(false);
    drop(step);
    let listed = json(&places.command("ls", &[]));
    let pauses = listed["not_recording"].as_array().expect("a list");
    assert_eq!(pauses.len(), 2, "{listed}");
    for pause in pauses {
        let [from, to] = ["from_ns", "to_ns"].map(|name| pause[name].as_u64().expect("a time"));
        let length = Duration::from_nanos(to - from);
        assert!(length < HOUR / 2, "{pause}");
    }
}
