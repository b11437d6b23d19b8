//! `trawl gen rfc2544`: the results depend on the machine, but must be consistent.

use rustix::process::Signal;
use serde_json::{Value, json};
use trawl_lab::program::{Does, Loaded};
use trawl_tests::lab::{LineLab, place};
use trawl_tests::witness::{nothing_attached, run};
use trawl_tests::{Lab, Running, args, trawl};

#[track_caller]
fn measured(tx: &str, rx: &str, arguments: &[&str]) -> Value {
    // The line's ends have a default route, which carries no other traffic.
    let fixed = ["gen", "rfc2544", "--yes", "--json", "--tx", tx, "--rx", rx];
    let output = trawl(&[&fixed[..], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Checks the properties of every trial, good or bad.
#[track_caller]
fn check_trial(trial: &Value) {
    let number = |name: &str| trial[name].as_u64().unwrap_or_else(|| panic!("{name}: {trial}"));
    assert_eq!(number("sent"), number("received") + number("lost"), "{trial}");
    assert_eq!(number("duplicates"), 0, "{trial}");
    let latency = &trial["latency_ns"];
    if number("received") > 0 {
        assert_eq!(latency["count"], trial["received"], "{trial}");
        assert_eq!(latency["negative"], 0, "{trial}");
        let rising = ["min", "p50", "p90", "p99", "p99_9", "p99_99", "max"]
            .map(|name| latency[name].as_u64().expect("a latency"));
        assert!(rising.is_sorted(), "{trial}");
    }
}

#[track_caller]
fn check_result(result: &Value, loss_percent: f64) {
    let trials = result["trials"].as_array().expect("trials");
    assert!((1..=12).contains(&trials.len()), "{result}");
    trials.iter().for_each(check_trial);
    let offered = |trial: &Value| trial["offered_frames_per_second"].as_f64().expect("a rate");
    let fastest = result["sender_frames_per_second"].as_f64().expect("a rate");
    assert!(trials.iter().all(|trial| offered(trial) <= fastest), "{result}");
    if let Some(throughput) = result["throughput_frames_per_second"].as_f64() {
        let best = trials.iter().find(|trial| trial["latency_ns"] == result["latency_ns"]);
        let best = best.expect("the latencies of one of the trials");
        assert!(best["loss_percent"].as_f64() <= Some(loss_percent), "{best}");
        assert!(throughput > 0.0, "{result}");
    }
}

#[test]
fn veth_alone_is_measured() {
    let Some(lab) = Lab::open() else { return };
    let arguments = args!(
        "--sizes 64,1518 --duration 100ms --max-rate 5k --loss 50 --frame-loss \
         --back-to-back"
    );
    let result = measured(&lab.sender(), &lab.receiver(), &arguments);
    let results = result["results"].as_array().expect("results");
    let sizes: Vec<&Value> = results.iter().map(|one| &one["size"]).collect();
    assert_eq!(sizes, [&json!(64), &json!(1518)]);
    for one in results {
        check_result(one, 50.0);
        // At this rate, even a busy machine loses less than half.
        assert!(one["throughput_frames_per_second"].is_f64(), "{one}");
        let steps = one["frame_loss"].as_array().expect("steps");
        assert!((2..=10).contains(&steps.len()), "{one}");
        steps.iter().for_each(check_trial);
        assert!(one["back_to_back_frames"].is_u64(), "{one}");
    }
    assert_eq!(result["conditions"]["receive_mode"], "native");
    assert_eq!(result["conditions"]["trial_seconds"], 0.1);
    nothing_attached(&lab.pair.a);
    nothing_attached(&lab.pair.b);
}

#[test]
fn router_is_measured_for_both_families() {
    for family in [&["--sizes", "64"][..], &["-6", "--sizes", "84"]] {
        let Some(lab) = LineLab::open() else { return };
        let (tx, rx) = (place(&lab.line.a), place(&lab.line.b));
        let fixed = ["--duration", "100ms", "--max-rate", "2k", "--loss", "50"];
        let result = measured(&tx, &rx, &[&fixed[..], family].concat());
        let one = &result["results"][0];
        check_result(one, 50.0);
        assert!(one["throughput_frames_per_second"].is_f64(), "{one}");
    }
}

/// A router rewrites the pages of the live engine's frames, which are sent again.
#[test]
fn router_is_measured_with_the_live_engine() {
    let Some(lab) = LineLab::open() else { return };
    let (tx, rx) = (place(&lab.line.a), place(&lab.line.b));
    let fixed = ["--sizes", "64", "--duration", "1s", "--engine", "live"];
    let rate = ["--max-rate", "50k", "--loss", "50"];
    let result = measured(&tx, &rx, &[&fixed[..], &rate].concat());
    let one = &result["results"][0];
    assert_eq!(result["conditions"]["engine"], "live");
    check_result(one, 50.0);
    assert!(one["throughput_frames_per_second"].is_f64(), "{one}");
}

#[test]
fn narrow_link_limits_the_throughput() {
    let Some(lab) = LineLab::open() else { return };
    let right = &lab.line.right;
    // 0.5 Mbit/s are 1000 frames of 60 bytes per second, below any machine's rate, and the queue is short.
    let shape = ["rate", "500kbit", "burst", "2000", "limit", "3000"];
    let qdisc = args!("-n {} qdisc add dev {} root tbf", right.name, right.interface);
    run("tc", &[&qdisc[..], &shape].concat());
    let (tx, rx) = (place(&lab.line.a), place(&lab.line.b));
    let arguments = args!("--sizes 64 --duration 200ms --max-rate 20k --resolution 5");
    let result = measured(&tx, &rx, &arguments);
    let one = &result["results"][0];
    check_result(one, 0.0);
    let trials = one["trials"].as_array().expect("trials");
    assert!(trials.len() > 1, "{one}");
    assert!(trials[0]["lost"].as_u64() > Some(0), "{one}");
}

#[test]
fn dead_end_is_reported() {
    let Some(lab) = LineLab::open() else { return };
    let _drop = Loaded::native(Does::Drop, &lab.line.left).expect("a program");
    let (tx, rx) = (place(&lab.line.a), place(&lab.line.b));
    let arguments = args!(
        "gen rfc2544 --yes --tx {tx} --rx {rx} --sizes 64 --duration 20ms \
         --max-rate 1k --resolution 50"
    );
    let output = trawl(&arguments);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("none: frames were still lost"), "{printed}");
}

#[test]
fn impossible_measurements_are_refused_before_sending() {
    let Some(lab) = Lab::open() else { return };
    let (tx, rx) = (lab.sender(), lab.receiver());
    for (arguments, words) in [
        (&["--sizes", "63"][..], "require 60"),
        (&["--sizes", "1519"], "exceeds the MTU"),
        (&["--sizes", "3"], "checksum alone"),
        (&["--loss", "100"], "between 0 and 100"),
        (&["--loss", "-1"], "between 0 and 100"),
        (&["--resolution", "0"], "above 0"),
        (&["--max-rate", "0"], ""),
        (&["--duration", "0"], ""),
    ] {
        let fixed = ["gen", "rfc2544", "--tx", &tx, "--rx", &rx];
        let output = trawl(&[&fixed[..], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{arguments:?}: {said}");
    }
    let _program = Loaded::native(Does::Drop, &lab.pair.b).expect("a program");
    let output = trawl(&["gen", "rfc2544", "--tx", &tx, "--rx", &rx]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("lab_drop"), "{said}");
}

#[test]
fn measurement_can_be_interrupted() {
    let Some(lab) = Lab::open() else { return };
    let (tx, rx) = (lab.sender(), lab.receiver());
    let arguments = args!("gen rfc2544 --json --tx {tx} --rx {rx} --max-rate 1k --duration 1h");
    let measuring = Running::start(&arguments, "measuring");
    measuring.signal(Signal::INT);
    let done = measuring.wait();
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("stopped"), "{}", done.stderr);
    let result: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(result["results"], json!([]));
    nothing_attached(&lab.pair.b);
}
