//! `trawl top` on a running lab: once and as JSON, and in a terminal with its keys.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use trawl_lab::Station;
use trawl_lab::program::{Does, Loaded};
use trawl_sys::netns::run_in;
use trawl_tests::bundled::done;
use trawl_tests::lab::place;
use trawl_tests::programs::object_file;
use trawl_tests::stage::Stage;
use trawl_tests::tmux::Tmux;
use trawl_tests::traffic::converse;
use trawl_tests::witness::run;
use trawl_tests::xdp::{CleanUp, succeeds};
use trawl_tests::{Lab, LineLab, Running, args, binary, frames, skip, tools_or_skip, trawl, wait_until};

#[test]
fn top_once_as_json_has_rates_verdicts_and_flows() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let receiver = lab.receiver();
    let running = Running::start(&args!("top -i {receiver} --once --json --interval 2s"), "capturing on");
    lab.send(&[frames::udp(b"hello")], 1000);
    let look = running.wait().json();
    assert_eq!(look["captured"]["packets"], 1000, "{look}");
    assert_eq!(look["captured"]["verdicts"][0]["verdict"], "DROP");
    assert_eq!(look["captured"]["flows"][0]["dst_port"], 9);
    let rate = look["interfaces"][0]["rx_packets_per_second"].as_f64();
    assert!(rate.is_some_and(|rate| rate > 100.0), "{look}");
    assert!(look["softnet"]["processed"].is_u64());
    let text = trawl(&["top", "--once", "--interval", "50ms"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("softnet:") && text.contains("\nlo "), "{text}");
}

#[test]
fn top_in_a_terminal_obeys_its_keys() {
    let command = format!("{} top --interval 100ms; echo the end; sleep 60", binary::path().display());
    let Some(tmux) = Tmux::start("keys", &command) else {
        return;
    };
    tmux.wait_shows("sorted by rate");
    tmux.wait_shows("softnet:");
    for (key, shown) in [
        ("s", "sorted by bits"),
        ("s", "sorted by drops"),
        ("s", "sorted by name"),
        ("r", "sorted by name, reversed"),
        ("p", "paused"),
        ("p", "live"),
        ("h", "show or hide this help"),
    ] {
        tmux.run(&["send-keys", key]);
        tmux.wait_shows(shown);
    }
    tmux.run(&["send-keys", "h"]);
    for (keys, shown) in [
        (&["x"][..], "cpumap kthread"),
        (&["x"], "softnet:"),
        (&["w"], "container"),
        (&["w"], "softnet:"),
        (&["/", "l", "o"], "filter: lo_"),
        (&["Enter"], "filter: lo "),
    ] {
        tmux.run(&[&["send-keys"][..], keys].concat());
        tmux.wait_shows(shown);
    }
    tmux.run(&["send-keys", "q"]);
    tmux.wait_shows("the end");
}

/// Returns the frames of the client's namespace while the server thinks so long before each answer, and of two looks more.
fn frames_during(stage: &Stage, think: u64, options: &[&str]) -> String {
    let all = args!("top --netns {} --interval 500ms", stage.client.name);
    let top = Running::start(&[&all[..], options].concat(), "");
    let frames = || top.shown().matches("softnet").count();
    wait_until("the measures", || frames() > 0);
    let ends = stage
        .servers()
        .map(|server| converse(stage.connect(server), 5, Duration::from_millis(think), Duration::from_millis(20)));
    let before = frames();
    wait_until("two looks", || frames() >= before + 5);
    let done = top.stop();
    drop(ends);
    done.stdout
}

/// A server that answers slowly is the worst connection of its client, in a line of 80 columns at most. Nothing is said of
/// connections whose server answers at once.
#[test]
fn top_shows_the_worst_connection() {
    let Some(stage) = Stage::open() else { return };
    let last = |think| -> Value {
        let text = frames_during(&stage, think, &["--json"]);
        serde_json::from_str(text.lines().next_back().expect("a frame")).expect("JSON")
    };
    let found = last(200)["worst_connection"].clone();
    assert!(found["cause"] == "slow_answer" && found["by"] == "server" && found["side"] == "client", "{found}");
    assert!(found["pid"] == std::process::id() && found["answers"] == 5 && found["connections"] == 1, "{found}");
    // The connection is idle after the last answer.
    assert!(found["share"].as_f64().is_some_and(|share| share > 0.1), "{found}");
    let healthy = last(0);
    assert!(healthy["worst_connection"].is_null() && healthy["seconds"].is_number(), "{healthy}");
    let text = frames_during(&stage, 200, &[]);
    let line = text.lines().rfind(|line| line.starts_with("slow: ")).unwrap_or_else(|| panic!("{text}"));
    let name = std::fs::read_to_string("/proc/self/comm").expect("a name");
    let begins = format!("slow: {}[{}] ", name.trim(), std::process::id());
    assert!(line.starts_with(&begins) && line.contains("peer answers slowly"), "{line}");
    assert!(line.chars().count() <= 80, "{line}");
    assert!(!frames_during(&stage, 0, &[]).contains("\nslow: "));
}

/// One key sorts the tables of flows and protocols as well as the table of interfaces.
#[test]
fn top_sorts_all_tables_by_one_key() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    // Closed ports would cause answers, which `top` would count because it also sees sent packets.
    let bind = |port| UdpSocket::bind((lab.pair.b.ipv4, port)).expect("a port");
    let _listening = run_in(&lab.pair.b.namespace, || [1, 2, 3].map(bind)).expect("the namespace");
    let top = |key: &str| {
        let running = Running::start(
            &args!("top -i {receiver} --once --json --interval 2s --sort {key} --top 2"),
            "capturing on",
        );
        // The first flow has the most packets, the second the most bytes, and the third neither.
        let all = [
            vec![frames::udp_to(1, &[0; 10]); 30],
            vec![frames::udp_to(2, &[0; 1000]); 10],
            vec![frames::udp_to(3, &[0; 10]); 5],
            vec![frames::silent(64); 100],
        ];
        lab.send(&all.concat(), 145);
        let look = running.wait().json();
        let flows = look["captured"]["flows"].as_array().expect("a list").iter();
        let flows: Vec<u64> = flows.filter_map(|flow| flow["dst_port"].as_u64()).collect();
        let protocols = look["captured"]["protocols"].as_array().expect("a list");
        let protocols = protocols.iter().filter_map(|one| one["name"].as_str());
        let protocols: Vec<String> = protocols.map(str::to_owned).collect();
        (flows, protocols)
    };
    let (flows, by_rate) = top("rate");
    assert_eq!(flows, [1, 2]);
    let (flows, by_bits) = top("bits");
    assert_eq!(flows, [2, 1]);
    assert_ne!(by_rate, by_bits);
    let (flows, by_name) = top("name");
    assert_eq!(flows, [1, 2]);
    assert!(by_name.is_sorted(), "{by_name:?}");
}

#[test]
fn top_in_a_small_terminal_cuts_and_scrolls() {
    let command = format!("{} top --interval 100ms", binary::path().display());
    let Some(tmux) = Tmux::start("small", &command) else {
        return;
    };
    tmux.wait_shows("softnet:");
    tmux.run(&["resize-window", "-x", "30", "-y", "4"]);
    // The first line remains the state, cut and not wrapped, with the beginning of the page below it.
    let is_cut = |second: &str| {
        let pane = tmux.run(&["capture-pane", "-p"]);
        let mut lines = pane.lines();
        lines.next() == Some("trawl top  live  sorted by rat")
            && lines.next().is_some_and(|line| line.starts_with(second))
    };
    wait_until("the page is cut", || is_cut("received packets/s"));
    tmux.run(&["send-keys", "j", "Down"]);
    wait_until("it is scrolled", || is_cut("interface "));
    tmux.run(&["send-keys", "Up"]);
    tmux.run(&["send-keys", "g"]);
    wait_until("the beginning is back", || is_cut("received packets/s"));
}

#[test]
fn top_of_a_pattern_shows_matching_interfaces() {
    let Some(lab) = Lab::open() else { return };
    let namespace = lab.pair.b.name.clone();
    for pattern in ["veth*", "any"] {
        let look = ["top", "--once", "--json", "--netns", &namespace];
        let look = trawl(&[&look[..], &["--interval", "50ms", "-i", pattern]].concat());
        let look: Value = serde_json::from_slice(&look.stdout).expect("JSON");
        let names = look["interfaces"].as_array().expect("a list").iter();
        let names: Vec<&Value> = names.map(|one| &one["interface"]).collect();
        assert!(names.iter().any(|name| *name == "veth0"), "{look}");
    }
}

/// Interfaces of several namespaces are named in the syntax of `-i`.
#[test]
fn top_shows_interfaces_of_several_namespaces() {
    let Some(lab) = Lab::open() else { return };
    let (sender, receiver) = (lab.sender(), lab.receiver());
    let look = ["top", "--once", "--json", "--interval", "50ms"];
    let look = trawl(&[&look[..], &["-i", &sender, "-i", &receiver]].concat());
    assert!(look.status.success(), "{look:?}");
    let look: Value = serde_json::from_slice(&look.stdout).expect("JSON");
    let names = look["interfaces"].as_array().expect("a list").iter();
    let mut names: Vec<&str> = names.filter_map(|one| one["interface"].as_str()).collect();
    names.sort_unstable();
    let mut wanted = [sender.as_str(), receiver.as_str()];
    wanted.sort_unstable();
    assert_eq!(names, wanted);
}

/// Sums the `rows` of a list in the reports of `trawl top` while these frames arrive, until the sum reaches `enough`.
fn reported(namespace: &str, list: &str, send: &dyn Fn(), rows: &dyn Fn(&Value) -> u64, enough: u64) -> u64 {
    let page = match list {
        "redirects" => list,
        _ => "processes",
    };
    let mut child = Command::new(binary::path())
        .args(args!("top --json --interval 200ms --netns {namespace} --page {page}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("trawl starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut look = || -> Value {
        let line = lines.next().expect("a look").expect("text");
        serde_json::from_str(&line).expect("JSON")
    };
    // Packets are counted from the first report on.
    look();
    send();
    let mut packets = 0;
    for _ in 0..50 {
        let look = look();
        let found = look[list].as_array().expect("a list").iter();
        packets += found
            .map(|row| {
                let mut row = row.clone();
                row["seconds"] = look["seconds"].clone();
                rows(&row)
            })
            .sum::<u64>();
        if packets >= enough {
            break;
        }
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    packets
}

fn count(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or(0)
}

#[test]
fn top_counts_successful_and_failed_redirects() {
    let Some(lab) = LineLab::open() else { return };
    let (left, right) = (place(&lab.line.left), &lab.line.right);
    let turn = |state| run("ip", &["-n", &right.name, "link", "set", "right", state]);
    let load = ["xdp", "load", &left, "redirect", "--to", "right", "--by", "devmap"];
    done(&load);
    let look = |event: &str, wanted: &dyn Fn(&Value) -> bool| {
        let rows = |row: &Value| if row["event"] == event && wanted(row) { count(row, "packets") } else { 0 };
        let send = || lab.send(&[frames::udp(b"hello")], 100);
        reported(&right.name, "redirects", &send, &rows, 100)
    };
    let passed =
        look("devmap", &|row| row["interface"] == "left" && row["target_interface"] == "right" && row["drops"] == 0);
    assert_eq!(passed, 100);
    turn("down");
    let failed = look("redirect_error", &|row| {
        row["interface"] == "left" && row["error"] == "ENETDOWN" && !row["cpus"].is_null()
    });
    assert_eq!(failed, 100);
    turn("up");
    done(&["xdp", "unload", &left]);
}

/// The drops equal the kernel's own count. A queue for one packet drops most packets of batches of eight.
#[test]
fn top_counts_drops_of_a_cpumap() {
    if !tools_or_skip(&["bpftool"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    done(&["xdp", "load", &place, &object_file(&lab, "to_cpu")]);
    let maps = succeeds(&["xdp", "maps", "-i", &place, "--json"]);
    let maps: Value = serde_json::from_str(&maps).expect("JSON");
    let cpus = maps["maps"].as_array().expect("a list").iter();
    let mut cpus = cpus.filter(|map| map["name"] == "cpus");
    let map = cpus.next().expect("the map")["id"].to_string();
    let queue = ["map", "update", "id", &map, "key", "0", "0", "0", "0", "value", "1", "0", "0", "0"];
    run("bpftool", &queue);
    let mut sums = [0; 4];
    let namespace = lab.pair.b.name.clone();
    let send = || lab.send(&[frames::udp(b"hello")], 1000);
    let sums = RefCell::new(&mut sums);
    let rows = |row: &Value| {
        let mut sums = sums.borrow_mut();
        if row["map_id"].as_u64() != map.parse().ok() {
            return 0;
        }
        let (packets, drops) = (count(row, "packets"), count(row, "drops"));
        match row["event"].as_str() {
            Some("cpumap_enqueue") => {
                sums[0] += packets;
                sums[1] += drops;
                sums[3] += count(row, "bulks");
                drops
            }
            Some("cpumap_kthread") => {
                sums[2] += packets;
                packets
            }
            _ => 0,
        }
    };
    assert_eq!(reported(&namespace, "redirects", &send, &rows, 1000), 1000);
    let [put, dropped, taken, bulks] = **sums.borrow();
    assert_eq!(put, 1000);
    assert!(dropped > 0);
    assert_eq!(taken, put - dropped);
    // The kernel passes on at most 8 at a time.
    assert!((125..=1000).contains(&bulks), "{bulks}");
}

/// Packets are counted for the processes and containers that own their sockets, and the kernel's own answers for none.
#[test]
fn top_counts_packets_of_processes_and_containers() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let group = format!("/sys/fs/cgroup/unified/trawl-top-{}", std::process::id());
    let has_groups = std::fs::create_dir(&group).is_ok();
    let listen = |station: &Station| {
        let bound = run_in(&station.namespace, || UdpSocket::bind((station.ipv4, 9)));
        bound.expect("the namespace").expect("a port")
    };
    let _listening = [a, b].map(listen);
    let counts = |list: &str, send: &dyn Fn(), is_wanted: &dyn Fn(&Value) -> bool, field: &str| {
        let rows = |row: &Value| {
            let rate = row[format!("{field}_packets_per_second")].as_f64();
            let count = rate.unwrap_or(0.0) * row["seconds"].as_f64().unwrap_or(0.0);
            if is_wanted(row) { count.round() as u64 } else { 0 }
        };
        reported(&b.name, list, send, &rows, 100)
    };
    let own = |row: &Value| row["pid"] == std::process::id();
    let send = || lab.send(&[frames::udp(b"hello")], 100);
    assert_eq!(counts("processes", &send, &own, "rx"), 100);
    let ping = || {
        let target = b.ipv4.to_string();
        let ping = args!("netns exec {} ping -q -c 100 -i 0.002 {target}", a.name);
        run("ip", &ping);
    };
    assert_eq!(counts("processes", &ping, &|row| row["pid"].is_null(), "tx"), 100);
    if !has_groups {
        skip("no cgroups of version 2 at /sys/fs/cgroup/unified");
        return;
    }
    let send = || {
        let script = format!("exec 3<>/dev/udp/{}/9; for i in $(seq 100); do echo >&3; done", a.ipv4);
        // The cgroup is entered before the namespace, where /sys is a different mount.
        let inside = format!("exec ip netns exec {} bash -c '{script}'", b.name);
        let enter = format!("echo $$ >{group}/cgroup.procs; {inside}");
        run("bash", &["-c", &enter]);
    };
    let name = group.rsplit('/').next().unwrap_or_default();
    let of_group = |row: &Value| row["container"] == name;
    assert_eq!(counts("containers", &send, &of_group, "tx"), 100);
    std::fs::remove_dir(&group).expect("an empty cgroup");
}
