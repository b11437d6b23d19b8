//! Experiments that compare the load balancer with IPVS: both forward, or the report gives the reason why not.

use serde_json::Value;
use trawl_tests::lab::Directory;
use trawl_tests::witness::output;
use trawl_tests::{args, root_or_skip, trawl};

/// Returns the runs of an experiment whose series begins like this.
fn runs<'a>(report: &'a Value, experiment: &str, series: &str) -> Vec<&'a Value> {
    let all = report["experiments"].as_array().expect("a list");
    let one = all.iter().find(|one| one["definition"]["name"] == experiment);
    let runs = one.expect("the experiment")["runs"].as_array();
    let is_its = |run: &&Value| run["series"].as_str().expect("a name").starts_with(series);
    runs.expect("a list").iter().filter(is_its).collect()
}

fn value(run: &Value, metric: &str) -> f64 {
    run["values"][metric].as_f64().unwrap_or_else(|| panic!("{metric} of {run}"))
}

#[test]
fn both_forward_and_moved_flows_are_reported() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new();
    let place = directory.path().join("results");
    let place = place.to_str().expect("a plain path");
    let result = trawl(&args!(
        "bench load-balance --repeat 1 --set load-balance.flows=1000 --set \
         load-balance-moves.flows=1000 --set load-balance-moves.backends=5 \
         --json -o {place}"
    ));
    let said = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(result.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&result.stdout).expect("JSON");
    let has_ipvs = output("ipvsadm", &["-L", "-n"]).status.success();
    let of_each = |experiment: &str, series: &str| {
        let runs = runs(&report, experiment, series);
        if series == "IPVS" && !has_ipvs {
            assert!(runs.is_empty(), "{runs:?}");
            assert!(report.to_string().contains("no IPVS (module ip_vs)"), "{report}");
        } else {
            assert!(!runs.is_empty(), "{experiment}, {series}: {report}");
        }
        runs
    };
    for series in ["trawl", "IPVS"] {
        for run in of_each("load-balance", series) {
            let (sent, reached) = (run["sent"].as_u64(), run["recorded"].as_u64());
            // More than a few packets arrived, and no more than were sent.
            assert!(reached > Some(1000) && reached <= sent, "{run}");
            println!("{} {} {}", run["series"], run["x"], run["values"]);
        }
        for run in of_each("load-balance-moves", series) {
            // The backend's own flows, about a fifth, move or are lost.
            let gone = value(run, "moved_percent") + value(run, "lost_percent");
            // IPVS by source hashing alone redistributes all flows.
            let maximum = if series == "trawl" { 60.0 } else { 100.0 };
            assert!((10.0..=maximum).contains(&gone), "{run}");
            println!("{} {} {}", run["series"], run["x"], run["values"]);
        }
    }
    for run in runs(&report, "load-balance-moves", "trawl") {
        let bound = if run["series"] == "trawl established" { 0.0 } else { 5.0 };
        assert!(value(run, "needless_percent") <= bound, "{run}");
        assert_eq!(value(run, "lost_percent"), 0.0, "{run}");
    }
}
