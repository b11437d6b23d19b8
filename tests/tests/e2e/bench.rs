//! `trawl bench run`, `resume`, `list`, `peers`: figures depend on the machine, but must be complete.

use std::path::{Path, PathBuf};

use serde_json::Value;
use trawl_tests::{args, root_or_skip, trawl};

/// A directory that is removed at the end.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trawl-bench-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("it can be made");
        Self(path)
    }

    pub fn text(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn results(directory: &Path) -> Value {
    let text = std::fs::read(directory.join("results.json")).expect("results.json");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn tiny_run_has_a_figure_for_every_point_and_resumes_without_repeats() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new("tiny");
    let output = trawl(&args!(
        "bench run capture-bandwidth xdp-offload --repeat 2 --peers tcpdump \
         --taps hook --set rates=5 --set seconds=0.05 -o {}",
        directory.text()
    ));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report = results(&directory.0);
    assert_eq!(report["schema"], "trawl-bench/1");
    assert_eq!(report["complete"], true);
    assert!(report["conditions"]["kernel"].as_str().is_some_and(|kernel| kernel.starts_with("Linux")));
    let bandwidth = &report["experiments"][0];
    let runs = bandwidth["runs"].as_array().expect("runs");
    let of = |series: &str| runs.iter().filter(|run| run["series"] == series).count();
    assert_eq!(of("trawl hook, drop"), 2, "{bandwidth}");
    for run in runs.iter().filter(|run| run["series"] == "trawl hook, drop") {
        assert_eq!(run["sent"], run["recorded"], "nothing is lost at so low a rate: {run}");
        assert_eq!(run["claim"]["wrong"], false, "{run}");
        assert_eq!(run["claim"]["recorded"], run["recorded"], "{run}");
        assert!(!run["cpus"].as_array().expect("CPUs").is_empty());
    }
    let offload = &report["experiments"][1];
    assert_eq!(offload["finding"]["agrees"], "not_measured");
    let why = offload["failures"][0]["message"].as_str().expect("a reason");
    assert!(why.contains("no device of this host can offload"), "{why}");
    let csv = std::fs::read_to_string(directory.0.join("results.csv")).expect("results.csv");
    assert_eq!(csv.lines().count(), 1 + 3 * runs.len(), "a line for each metric of each run");
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(csv.contains(",cpu0_user,cpu0_system,cpu0_softirq,cpu0_steal"), "{csv}");
    assert!(columns.iter().min() >= columns.first(), "{csv}");

    let again = trawl(&["bench", "resume", directory.text()]);
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(results(&directory.0)["experiments"][0]["runs"], bandwidth["runs"]);
    let onto = trawl(&["bench", "run", "xdp-offload", "-o", directory.text()]);
    assert_eq!(onto.status.code(), Some(1), "results are never overwritten");
}

/// Reports each kind of disk output next to its ceilings, with a verdict.
#[test]
fn captures_on_the_disk_are_measured_against_their_ceilings() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new("disk");
    let output = trawl(&args!(
        "bench run capture-disk --quick --repeat 1 --peers tcpdump --taps hook \
         --set frames=20000 --set long_seconds=0.1 -o {}",
        directory.text()
    ));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report = results(&directory.0);
    let disk = &report["experiments"][0];
    let runs = disk["runs"].as_array().expect("runs");
    let ours = |run: &&Value| run["series"].as_str().is_some_and(|name| name.starts_with("trawl"));
    // The smallest frames are sent at four loads, and large ones also at full speed.
    assert_eq!(runs.iter().filter(ours).count(), 6, "{disk}");
    for run in runs.iter().filter(ours) {
        assert_eq!(run["claim"]["wrong"], false, "{run}");
        assert_eq!(run["claim"]["recorded"], run["recorded"], "{run}");
        for figure in [
            "of_bare_percent",
            "disk_mbytes",
            "lost_percent",
            "hidden_percent",
            "disorder_percent",
            "of_disk_percent",
            "writer_cpu_percent",
        ] {
            assert!(run["values"][figure].as_f64().is_some(), "{figure}: {run}");
        }
    }
    let shows = disk["finding"]["shows"].as_str().expect("words");
    for aim in [
        "of the bare drop's rate (aim: at least 80)",
        "two senders: 0.000 % out of order",
        "direct rate at 1518 bytes (aim: at least 90)",
    ] {
        assert!(shows.contains(aim), "{shows}");
    }
}

#[test]
fn missing_points_are_measured_when_a_run_is_resumed() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new("resumed");
    let output = trawl(&args!(
        "bench run drop-cores --repeat 2 --peers none --set 'series=DROP \
         native' --set cores=1 --set seconds=0.02 -o {}",
        directory.text()
    ));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut report = results(&directory.0);
    assert_eq!(report["experiments"][0]["runs"].as_array().expect("runs").len(), 2);
    report["complete"] = false.into();
    report["experiments"][0]["runs"].as_array_mut().expect("runs").pop();
    std::fs::write(directory.0.join("results.json"), report.to_string()).expect("it can be written");
    let again = trawl(&["bench", "resume", directory.text()]);
    assert_eq!(again.status.code(), Some(0));
    let report = results(&directory.0);
    assert_eq!(report["complete"], true);
    assert_eq!(report["experiments"][0]["runs"].as_array().expect("runs").len(), 2);
}

#[test]
fn missing_peer_is_shown_as_missing() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new("missing");
    let broken = directory.0.join("broken-peer");
    std::fs::write(&broken, "#!/bin/sh\necho it does not work here >&2\nexit 3\n").expect("it can be written");
    std::fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    let peer = format!("tcpdump={}", broken.display());
    let out = directory.0.join("out");
    let output = trawl(&args!(
        "bench run capture-bandwidth --repeat 3 --peers tcpdump --taps none \
         --peer {peer} --set rates=5 --set seconds=0.02 -o {}",
        out.to_str().expect("UTF-8")
    ));
    assert_eq!(output.status.code(), Some(1), "nothing at all was measured");
    let report = results(&out);
    let failures = report["experiments"][0]["failures"].as_array().expect("failures");
    let own = failures.iter().find(|one| one["series"] == "tcpdump").expect("tcpdump's");
    assert!(own["message"].as_str().is_some_and(|why| why.contains("it does not work here")), "{own}");
    assert_eq!(own["runs"], 1, "it is not tried again for each repetition");
}

#[test]
fn unknown_names_keys_and_peers_are_wrong_usage() {
    for arguments in [
        &["run", "capture-bandwith"][..],
        &["run"],
        &["run", "drop-cores", "--set", "speed=1"],
        &["run", "drop-cores", "--set", "cores=many"],
        &["run", "drop-cores", "--peers", "tcpdumb"],
        &["run", "drop-cores", "--peer", "tcpdump=/no/such/file"],
        &["run", "--study", "Z"],
        &["run", "drop-cores", "--set", "series=XDP"],
    ] {
        let output = trawl(&[&["bench"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let list = trawl(&["bench", "list", "--json"]);
    let list: Value = serde_json::from_slice(&list.stdout).expect("JSON");
    assert!(list.as_array().is_some_and(|all| all.len() >= 13));
    let peers = trawl(&["bench", "peers", "--json"]);
    let peers: Value = serde_json::from_slice(&peers.stdout).expect("JSON");
    assert!(peers.as_array().expect("peers").iter().all(|one| one["how_to_get"].is_string()));
}

/// Storing, indexing and searching are measured; losses are reported, and the needle is found.
#[test]
fn store_is_measured() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new("of-store");
    let set = [
        "seconds=0.02",
        "sizes=64",
        "packets=0.005",
        "flows=50",
        "made=0.002",
        "rows=0.01",
        "store-capture.series=directory at 50 kpps",
    ];
    let set: Vec<&str> = set.iter().flat_map(|pair| ["--set", pair]).collect();
    let scratch = ["--scratch", directory.text()];
    let out = directory.0.join("out");
    let out = ["-o", out.to_str().expect("UTF-8")];
    let base = ["bench", "store", "--repeat", "1"];
    let output = trawl(&[&base[..], &set, &scratch, &out].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report = results(Path::new(out[1]));
    let value = |experiment: usize, figure: &str| {
        let run = &report["experiments"][experiment]["runs"][0];
        run["values"][figure].as_f64().unwrap_or_else(|| panic!("{figure}: {run}"))
    };
    assert_eq!(value(0, "hidden_percent"), 0.0);
    assert_eq!(value(0, "stored_percent"), 100.0);
    assert!(value(0, "of_file_percent") > 0.0);
    assert!(value(1, "mpps") > 0.0);
    let bytes = value(1, "bytes_per_packet");
    assert!(bytes > 0.0 && bytes < 21.0, "{bytes}");
    // No generated data is left.
    let left = std::fs::read_dir(&directory.0).expect("a directory").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["out"]);
    if !trawl_tests::fleet_or_skip() {
        return;
    }
    let search = report["experiments"][2]["runs"].as_array().expect("runs");
    assert_eq!(search.len(), 3, "{search:?}");
    assert!(search.iter().all(|run| run["recorded"] == 1), "{search:?}");
}
