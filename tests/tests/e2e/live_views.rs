//! `trawl top` and `trawl serve` on a running lab: once and as JSON, in a terminal, for a scraper and for a browser.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use trawl_lab::program::{Does, Loaded};
use trawl_tests::bundled::done;
use trawl_tests::lab::place;
use trawl_tests::tmux::Tmux;
use trawl_tests::witness::run;
use trawl_tests::{Lab, LineLab, Running, binary, frames, skip, trawl, wait_until};

#[test]
fn top_once_as_json_tells_rates_verdicts_and_flows() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let receiver = lab.receiver();
    let running = Running::start(
        &[
            "top",
            "-i",
            &receiver,
            "--once",
            "--json",
            "--interval",
            "2s",
        ],
        "capturing on",
    );
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
    assert!(
        text.contains("softnet:") && text.contains("\nlo "),
        "{text}"
    );
}

#[test]
fn top_in_a_terminal_obeys_its_keys() {
    let command = format!(
        "{} top --interval 100ms; echo the end; sleep 60",
        binary::path().display()
    );
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
        (&["/", "l", "o"], "filter: lo_"),
        (&["Enter"], "filter: lo "),
    ] {
        tmux.run(&[&["send-keys"][..], keys].concat());
        tmux.wait_shows(shown);
    }
    tmux.run(&["send-keys", "q"]);
    tmux.wait_shows("the end");
}

/// Flows and protocols as well as interfaces (issue 17, Showing).
#[test]
fn top_sorts_all_tables_by_one_key() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let top = |key: &str| {
        let running = Running::start(
            &[
                "top",
                "-i",
                &receiver,
                "--once",
                "--json",
                "--interval",
                "2s",
                "--sort",
                key,
                "--top",
                "2",
            ],
            "capturing on",
        );
        // Most packets, most bytes, and neither.
        lab.send(&[frames::udp_to(1, &[0; 10])], 30);
        lab.send(&[frames::udp_to(2, &[0; 1000])], 10);
        lab.send(&[frames::udp_to(3, &[0; 10])], 5);
        lab.send(&[frames::silent(64)], 100);
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
    // The first line is still that of the state, cut and not wrapped, with the page's beginning below it.
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
fn top_of_a_pattern_has_the_interfaces_that_fit() {
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

#[test]
fn top_tells_redirects_that_work_and_that_fail() {
    let Some(lab) = LineLab::open() else { return };
    let (left, right) = (place(&lab.line.left), &lab.line.right);
    let turn = |state| run("ip", &["-n", &right.name, "link", "set", "right", state]);
    let load = [
        "xdp", "load", &left, "redirect", "--to", "right", "--by", "devmap",
    ];
    done(&load);
    let look = |event: &str, wanted: &dyn Fn(&Value) -> bool| {
        let mut child = Command::new(binary::path())
            .args([
                "top",
                "--json",
                "--interval",
                "200ms",
                "--netns",
                &right.name,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("trawl starts");
        let mut lines = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        // From the first look on everything is counted.
        std::io::BufRead::read_line(&mut lines, &mut line).expect("a look");
        lab.send(&[frames::udp(b"hello")], 100);
        let mut packets = 0;
        for _ in 0..50 {
            line.clear();
            std::io::BufRead::read_line(&mut lines, &mut line).expect("a look");
            let look: Value = serde_json::from_str(&line).expect("JSON");
            let rows = look["redirects"].as_array().expect("a list");
            let rows = rows
                .iter()
                .filter(|row| row["event"] == event && wanted(row));
            packets += rows
                .map(|row| row["packets"].as_u64().unwrap_or(0))
                .sum::<u64>();
            if packets >= 100 {
                break;
            }
        }
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        packets
    };
    let passed = look("devmap", &|row| {
        row["interface"] == "left" && row["target_interface"] == "right" && row["drops"] == 0
    });
    assert_eq!(passed, 100);
    turn("down");
    let failed = look("redirect_error", &|row| {
        row["interface"] == "left" && row["error"] == "ENETDOWN" && !row["cpus"].is_null()
    });
    assert_eq!(failed, 100);
    turn("up");
    done(&["xdp", "unload", &left]);
}

fn get(address: &str, target: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    text
}

/// Prometheus' own judgement, where promtool is installed or was unpacked by scripts/install.
#[track_caller]
fn lint(metrics: &str) {
    let target = binary::path().parent().and_then(Path::parent);
    let unpacked = target
        .expect("a target directory")
        .join("prometheus/usr/bin/promtool");
    let tool = match unpacked.is_file() {
        true => unpacked,
        false => "promtool".into(),
    };
    let started = Command::new(tool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        return skip("promtool is not there: the metrics were not checked");
    };
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(metrics.as_bytes()).expect("it reads");
    drop(stdin);
    let judged = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&[judged.stdout, judged.stderr].concat()).into_owned();
    assert!(
        judged.status.success() && said.is_empty(),
        "{said}\n{metrics}"
    );
}

#[test]
fn serve_gives_metrics_json_and_a_page() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let receiver = lab.receiver();
    let namespace = receiver.split(':').next().expect("a namespace").to_owned();
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--netns",
        &namespace,
        "-i",
        "veth0",
    ];
    let mut child = Command::new(binary::path())
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("trawl starts");
    let mut said = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
    let mut address = String::new();
    let mut line = String::new();
    while !line.contains("capturing on") {
        line.clear();
        let count = std::io::BufRead::read_line(&mut said, &mut line).expect("it says something");
        assert!(count > 0, "trawl ended");
        if let Some((_, rest)) = line.split_once("http://") {
            address = rest.trim().trim_end_matches('/').to_owned();
        }
    }
    lab.send(&[frames::udp(b"hello")], 100);
    let line = "trawl_capture_verdict_packets_total{hook=\"xdp exit\",verdict=\"DROP\"} 100\n";
    wait_until("the metrics count 100", || {
        get(&address, "/metrics", "localhost").contains(line)
    });
    let metrics = get(&address, "/metrics", "127.0.0.1:9464");
    assert!(
        metrics.contains("trawl_interface_packets_total{interface=\"veth0\",direction=\"in\"} "),
        "{metrics}"
    );
    lint(metrics.split_once("\r\n\r\n").expect("a body").1);
    let json = get(&address, "/figures.json", "localhost");
    let body = json.split_once("\r\n\r\n").expect("a body").1;
    let figures: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(figures["capture"]["recorded"], 100, "{figures}");
    assert_eq!(figures["capture"]["flows"][0]["dst_port"], 9);
    assert!(get(&address, "/metrics", "evil.example").starts_with("HTTP/1.1 403"));
    assert!(get(&address, "/nothing", "localhost").starts_with("HTTP/1.1 404"));
    let page = get(&address, "/", "localhost");
    assert!(
        page.contains("<title>trawl</title>") && !page.contains("https://"),
        "{page}"
    );
    let chromium = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=4000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", lab.file("chromium")))
        .arg(format!("http://{address}/"))
        .stderr(Stdio::null())
        .output();
    match chromium {
        Ok(output) => {
            let dom = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                dom.contains("<td>veth0</td>") && dom.contains("<td>DROP</td>"),
                "{dom}"
            );
        }
        Err(_) => skip("chromium is not installed: the page was not shown"),
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::INT).expect("trawl runs");
    assert!(child.wait().expect("trawl ends").success());
}

/// A service manager's end of its socket.
fn notified(lab: &Lab, arguments: &[&str], message: &str) -> Vec<String> {
    let path = lab.file("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    let mut child = Command::new(binary::path())
        .args(arguments)
        .env("NOTIFY_SOCKET", &path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("trawl starts");
    let next = || {
        let mut bytes = [0; 512];
        let count = socket.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let mut all = vec![next()];
    assert!(all[0].contains(message), "{all:?}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).expect("trawl runs");
    all.push(next());
    assert!(child.wait().expect("trawl ends").success());
    std::fs::remove_file(&path).expect("the socket's name");
    all
}

#[test]
fn a_service_manager_is_told() {
    let Some(lab) = Lab::open() else { return };
    let (receiver, file) = (lab.receiver(), lab.file("seen.pcapng"));
    let capture = ["capture", "-q", "-i", &receiver, "-w", &file, "-G", "300"];
    let said = notified(&lab, &capture, "READY=1");
    assert!(said[0].contains("STATUS=capturing on"), "{said:?}");
    assert_eq!(said[1], "STOPPING=1");
    for more in [&[][..], &["-i", &receiver]] {
        let serve = ["serve", "--listen", "127.0.0.1:0"];
        let said = notified(&lab, &[&serve[..], more].concat(), "READY=1");
        assert!(said[0].contains("STATUS=serving http://"), "{said:?}");
        assert_eq!(said[1], "STOPPING=1");
    }
}

/// Of a router, and of captures and generators that other commands run.
#[test]
fn serve_tells_of_router_and_running_commands() {
    let Some(lab) = Lab::open() else { return };
    let _clean = trawl_tests::xdp::CleanUp::of(&lab);
    let (sender, receiver) = (lab.sender(), lab.receiver());
    trawl_tests::xdp::succeeds(&["route", "load", &receiver]);
    let namespace = lab.pair.b.name.clone();
    let serve = Running::start(
        &["serve", "--listen", "127.0.0.1:0", "--netns", &namespace],
        "serving http://",
    );
    let address = serve.said();
    let address = address.split_once("http://").expect("an address").1;
    let address = address.split('/').next().expect("an address").to_owned();
    let capture = Running::start(
        &[
            "capture",
            "-i",
            &sender,
            "--tap",
            "packet",
            "-Z",
            "nobody",
            "-w",
            "/dev/null",
        ],
        "capturing on",
    );
    let generator = Running::start(
        &[
            "gen",
            "udp",
            "-i",
            &sender,
            "--dst",
            "10.77.0.2",
            "--rate",
            "1000",
            "--duration",
            "60s",
        ],
        "",
    );
    let metrics = || get(&address, "/metrics", "localhost");
    let pid = generator.id();
    wait_until("the generator's frames are counted", || {
        let frames =
            format!("trawl_generator_frames_total{{pid=\"{pid}\",interface=\"{sender}\"}} ");
        let text = metrics();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&frames).map(str::to_owned));
        line.is_some_and(|count| count != "0")
    });
    let pid = capture.id();
    wait_until("the capture's packets are counted", || {
        let seen = format!("trawl_running_capture_seen_total{{pid=\"{pid}\"}} ");
        let text = metrics();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&seen).map(str::to_owned));
        line.is_some_and(|count| count != "0")
    });
    let text = metrics();
    assert!(
        text.contains("trawl_router_packets_total{interface="),
        "{text}"
    );
    lint(text.split_once("\r\n\r\n").expect("a body").1);
    generator.stop();
    capture.stop();
    // Who could not remove its own file is not told of any more.
    wait_until("those that ended are gone", || {
        let text = metrics();
        !text.contains("trawl_generator_") && !text.contains("trawl_running_capture_")
    });
    let json = get(&address, "/figures.json", "localhost");
    let figures: Value =
        serde_json::from_str(json.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    assert!(figures["router"][0]["packets"].is_u64(), "{figures}");
    serve.stop();
}
