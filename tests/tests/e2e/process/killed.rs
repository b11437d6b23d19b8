//! A capture that names processes and is killed at any moment leaves no program, link or map.

use std::collections::HashSet;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use trawl_tests::witness::run;
use trawl_tests::{Capture, Lab, args, binary, wait_until};

use super::{PORT, Server, ask};

/// Variable that marks the processes of a capture in their environment.
const MARK: &str = "TRAWL_TESTS_KILLED";
const KINDS: [&str; 3] = ["prog", "link", "map"];
/// Prefixes of the names of the programs and maps. Objects of other tests may have no owner for a moment, and do not
/// count.
const NAMES: [&str; 12] = [
    "trawl_soft_",
    "trawl_executed",
    "trawl_made",
    "trawl_closed",
    "trawl_bound",
    "trawl_connect",
    "trawl_send",
    "trawl_received",
    "trawl_accept",
    "trawl_tc_p",
    "socket_owners",
    "process_",
];

fn shown(kind: &str) -> Vec<Value> {
    let text = run("bpftool", &["-j", kind, "show"]);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn number(value: &Value, field: &str) -> Option<u64> {
    value.get(field)?.as_u64()
}

/// Returns the numbers of the objects of one kind that processes without the mark hold open.
fn held(kind: &str) -> HashSet<u64> {
    let field = format!("{kind}_id:\t");
    let mut found = HashSet::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(MARK) {
            continue;
        }
        let descriptors = fs::read_dir(process.path().join("fdinfo"));
        for descriptor in descriptors.into_iter().flatten().flatten() {
            let text = fs::read_to_string(descriptor.path()).unwrap_or_default();
            let ids = text.lines().filter_map(|line| line.strip_prefix(&field));
            found.extend(ids.filter_map(|id| id.parse::<u64>().ok()));
        }
    }
    found
}

/// Returns the programs, links and maps for the naming of processes that no other process has.
fn orphans() -> Vec<String> {
    let [programs, links, maps] = KINDS.map(shown);
    let [mut held_programs, held_links, mut held_maps] = KINDS.map(held);
    let is_held = |link: &&Value| number(link, "id").is_some_and(|id| held_links.contains(&id));
    held_programs.extend(links.iter().filter(is_held).filter_map(|link| number(link, "prog_id")));
    for program in &programs {
        if number(program, "id").is_some_and(|id| held_programs.contains(&id)) {
            let ids = program["map_ids"].as_array();
            held_maps.extend(ids.into_iter().flatten().filter_map(Value::as_u64));
        }
    }
    let is_ours = |one: &Value| {
        let name = one["name"].as_str().unwrap_or_default();
        NAMES.iter().any(|begin| name.starts_with(begin))
    };
    let our_programs: HashSet<u64> =
        programs.iter().filter(|one| is_ours(one)).filter_map(|one| number(one, "id")).collect();
    let mut found = Vec::new();
    for (kind, all, held) in [("prog", &programs, &held_programs), ("map", &maps, &held_maps)] {
        let left = all.iter().filter(|one| is_ours(one) && number(one, "id").is_some_and(|id| !held.contains(&id)));
        found.extend(left.map(|one| format!("{kind} {one}")));
    }
    let is_left =
        |link: &&Value| !is_held(link) && number(link, "prog_id").is_some_and(|id| our_programs.contains(&id));
    found.extend(links.iter().filter(is_left).map(|link| format!("link {link}")));
    found
}

fn nothing_is_left(what: &str) {
    let mut left = Vec::new();
    wait_until(&format!("nothing is left of a capture killed {what}: {left:?}"), || {
        left = orphans();
        left.is_empty()
    });
}

#[test]
#[ignore = "make test-long runs it"]
fn killed_captures_leave_no_program_at_the_cgroup() {
    let Some(lab) = Lab::open() else { return };
    nothing_is_left("before this test");
    let arguments = args!("capture -i {} --tap tc --process -w {} udp", lab.receiver(), lab.file("killed.pcapng"));
    let mut seen = 0;
    for moment in (0..1000).step_by(40) {
        let mut child = Command::new(binary::path())
            .args(&arguments)
            .env(MARK, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("trawl starts");
        // The test is about kills at different moments, so it waits for a fixed time.
        sleep(Duration::from_millis(moment));
        seen += usize::from(!orphans().is_empty());
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        nothing_is_left(&format!("after {moment} ms"));
    }
    assert!(seen > 0, "each capture was killed before it had programs");

    let address = lab.pair.b.ipv4.to_string();
    for kill in [Capture::kill, Capture::kill_by_name, Capture::kill_all] {
        let what = args!("-i {} --tap tc --process -w {} port {PORT}", lab.receiver(), lab.file("loaded.pcapng"));
        let capture = Capture::start_with((MARK, "1"), &lab, &what);
        let server = Server::start("fork", &lab.pair.b, &address, PORT);
        std::thread::scope(|scope| {
            scope.spawn(|| ask("each", &lab.pair.a, &address, PORT, 40));
            capture.wait_recorded(50);
            kill(capture);
        });
        drop(server);
        nothing_is_left("under load");
    }
}
