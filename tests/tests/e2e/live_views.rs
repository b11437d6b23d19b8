//! `trawl top` and `trawl serve` on a running lab: once and as JSON, in a terminal, for a scraper and for a browser.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use trawl_lab::program::{Does, Loaded};
use trawl_tests::bundled::done;
use trawl_tests::lab::place;
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

/// A terminal of tmux's own, on a server of its own.
struct Tmux(String);

impl Tmux {
    fn start(name: &str, command: &str) -> Option<Self> {
        let socket = format!("trawl-test-{}-{name}", std::process::id());
        let tmux = Self(socket);
        let mut start = Command::new("tmux");
        start.args([
            "-L",
            &tmux.0,
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "120",
            "-y",
            "40",
            command,
        ]);
        match start.status() {
            Ok(status) => {
                assert!(status.success());
                Some(tmux)
            }
            Err(_) => {
                skip("tmux is not installed");
                None
            }
        }
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.0])
            .args(arguments)
            .output();
        String::from_utf8_lossy(&output.expect("tmux runs").stdout).into_owned()
    }

    fn wait_shows(&self, part: &str) {
        wait_until(part, || self.run(&["capture-pane", "-p"]).contains(part));
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
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
        ("s", "sorted by drops"),
        ("s", "sorted by name"),
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
