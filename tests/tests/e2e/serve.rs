//! `trawl serve` on a running lab: for a scraper, for a browser and for a service manager.

mod connections;
mod losses;
mod verdicts;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use trawl_lab::program::{Does, Loaded};
use trawl_sys::netns::run_in;
use trawl_tests::witness::run;
use trawl_tests::{Lab, Running, args, binary, frames, skip, wait_until};

pub fn get(address: &str, target: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    text
}

/// Runs promtool, if it is installed or was unpacked by scripts/install. Returns what it printed, and whether it
/// succeeded.
fn promtool(arguments: &[&str], input: &str) -> Option<(String, bool)> {
    let target = binary::path().parent().and_then(Path::parent);
    let unpacked = target.expect("a target directory").join("prometheus/usr/bin/promtool");
    let tool = if unpacked.is_file() { unpacked } else { "promtool".into() };
    let started =
        Command::new(tool).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = started else {
        skip("promtool is not there: nothing was checked");
        return None;
    };
    let mut stdin = child.stdin.take().expect("a pipe");
    // The write may fail, because a command that needs no input may have ended.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let judged = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&[judged.stdout, judged.stderr].concat()).into_owned();
    Some((said, judged.status.success()))
}

#[track_caller]
pub fn lint(metrics: &str) {
    if let Some((said, is_fine)) = promtool(&["check", "metrics"], metrics) {
        assert!(is_fine && said.is_empty(), "{said}\n{metrics}");
    }
}

/// Starts `trawl serve` on a free port. Returns the process and its address.
#[track_caller]
fn serve(arguments: &[&str]) -> (Running, String) {
    let all = [&["serve", "--listen", "127.0.0.1:0"], arguments].concat();
    let running = Running::start(&all, "serving http://");
    let said = running.said();
    let address = said.split_once("http://").expect("an address").1;
    let address = address.split('/').next().expect("an address").to_owned();
    (running, address)
}

/// Returns the metrics without the header of the answer.
fn metrics(address: &str) -> String {
    let answer = get(address, "/metrics", "localhost");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

/// Adds up the series of a metric that have all these labels.
pub fn value(text: &str, name: &str, labels: &[&str]) -> u64 {
    let is_of_metric = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let chosen = text.lines().filter(is_of_metric).filter(|line| labels.iter().all(|label| line.contains(label)));
    chosen.map(|line| line.rsplit_once(' ').expect("a value").1.parse::<u64>().expect("a number")).sum()
}

#[test]
fn serve_gives_metrics_json_and_a_page() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let receiver = lab.receiver();
    let namespace = receiver.split(':').next().expect("a namespace").to_owned();
    let (running, address) = serve(&args!("--netns {namespace} -i veth0"));
    running.wait_said("capturing on");
    lab.send(&[frames::udp(b"hello")], 100);
    let place = format!("interface=\"veth0\",netns=\"{namespace}\"");
    let line = format!("trawl_capture_verdict_packets_total{{{place},hook=\"xdp exit\",verdict=\"DROP\"}} 100\n");
    wait_until("the metrics count 100", || get(&address, "/metrics", "localhost").contains(&line));
    let metrics = get(&address, "/metrics", "127.0.0.1:9464");
    assert!(
        metrics.contains(&format!("trawl_interface_packets_total{{{place},direction=\"in\"}} "))
            && metrics.contains("trawl_build_info{version=")
            && metrics.contains(&format!("trawl_capture_recorded_total{{{place},hook=\"xdp exit\"}} 100\n")),
        "{metrics}"
    );
    lint(metrics.split_once("\r\n\r\n").expect("a body").1);
    // trawl's own programs at tc decide nothing.
    assert!(!metrics.contains("UNSPEC"), "{metrics}");
    let json = get(&address, "/figures.json", "localhost");
    let body = json.split_once("\r\n\r\n").expect("a body").1;
    let figures: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(figures["capture"]["recorded"], 100, "{figures}");
    assert_eq!(figures["capture"]["flows"][0]["dst_port"], 9);
    assert_eq!(figures["capture"]["flows"][0]["name"].as_str().map(|name| name.ends_with(" udp")), Some(true));
    let history = || -> Value {
        let text = get(&address, "/history.json", "localhost");
        serde_json::from_str(text.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
    };
    wait_until("the verdicts are plotted", || {
        let plots = history()["plots"].clone();
        let named = |title: &str| plots.as_array().expect("a list").iter().any(|plot| plot["title"] == title);
        named("Verdicts a second") && named("Packets a second")
    });
    assert!(get(&address, "/metrics", "evil.example").starts_with("HTTP/1.1 403"));
    assert!(get(&address, "/nothing", "localhost").starts_with("HTTP/1.1 404"));
    let page = get(&address, "/", "localhost");
    assert!(page.contains("<title>trawl</title>") && !page.contains("https://"), "{page}");
    let chromium = Command::new("chromium")
        .args(args!(
            "--headless --no-sandbox --disable-gpu --virtual-time-budget=4000 \
             --dump-dom"
        ))
        .arg(format!("--user-data-dir={}", lab.file("chromium")))
        .arg(format!("http://{address}/"))
        .stderr(Stdio::null())
        .output();
    match chromium {
        Ok(output) => {
            let dom = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                dom.contains(&format!("<td>{namespace}:veth0 in</td>"))
                    && dom.contains("<td>DROP</td>")
                    && dom.contains("<polyline"),
                "{dom}"
            );
        }
        Err(_) => skip("chromium is not installed: the page was not shown"),
    }
    assert!(running.stop().status.success());
}

/// Returns the messages at a service manager's end of its socket.
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
fn service_manager_is_notified() {
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

/// Metrics of a router, and of captures and generators run by other commands.
#[test]
fn serve_lists_router_and_running_commands() {
    let Some(lab) = Lab::open() else { return };
    let _clean = trawl_tests::xdp::CleanUp::of(&lab);
    let (sender, receiver) = (lab.sender(), lab.receiver());
    trawl_tests::xdp::succeeds(&["route", "load", &receiver]);
    let namespace = lab.pair.b.name.clone();
    let (serve, address) = serve(&["--netns", &namespace]);
    let capture = Running::start(&args!("capture -i {sender} --tap packet -Z nobody -w /dev/null"), "capturing on");
    let generator = Running::start(&args!("gen udp -i {sender} --dst 10.77.0.2 --rate 1000 --duration 60s"), "");
    let metrics = || metrics(&address);
    let generator_pid = generator.id();
    wait_until("the generator's frames are counted", || {
        let frames = format!("trawl_generator_frames_total{{pid=\"{generator_pid}\",interface=\"{sender}\"}} ");
        let text = metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(&frames).map(str::to_owned));
        line.is_some_and(|count| count != "0")
    });
    let capture_pid = capture.id();
    wait_until("the capture's packets are counted", || {
        let seen = format!("trawl_running_capture_seen_total{{pid=\"{capture_pid}\"}} ");
        let text = metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(&seen).map(str::to_owned));
        line.is_some_and(|count| count != "0")
    });
    let text = metrics();
    assert!(text.contains("trawl_router_packets_total{interface="), "{text}");
    lint(&text);
    generator.stop();
    capture.stop();
    // A process that could not remove its file is no longer listed.
    wait_until("the ended commands are gone", || {
        let text = metrics();
        // Processes of other tests may still be listed.
        ![generator_pid, capture_pid].iter().any(|pid| text.contains(&format!("pid=\"{pid}\"")))
    });
    let json = get(&address, "/figures.json", "localhost");
    let figures: Value = serde_json::from_str(json.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    assert!(figures["router"][0]["packets"].is_u64(), "{figures}");
    serve.stop();
}

/// With several namespaces, all their interfaces are counted, or those that -i names in each.
#[test]
fn namespaces_may_be_named_several_times() {
    let Some(lab) = Lab::open() else { return };
    let names = [&lab.pair.a.name, &lab.pair.b.name];
    let [a, b] = names;
    for (more, is_captured) in [(&[][..], false), (&["-i", "veth0"], true)] {
        let both = args!("--netns {a} --netns {b}");
        let (serve, address) = serve(&[&both[..], more].concat());
        let of_all = |text: &str, metric: &str| {
            names.iter().all(|name| text.contains(&format!("{metric}{{interface=\"veth0\",netns=\"{name}\"")))
        };
        wait_until("both namespaces are counted", || {
            let text = metrics(&address);
            of_all(&text, "trawl_interface_packets_total")
                && (!is_captured || of_all(&text, "trawl_capture_recorded_total"))
        });
        serve.stop();
    }
}

/// The packets of this process's socket are counted under its name, and the kernel's answers under none.
#[test]
fn serve_counts_packets_of_processes() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let socket = run_in(&b.namespace, || UdpSocket::bind((b.ipv4, 9)));
    let _socket = socket.expect("the namespace").expect("a port");
    let namespace = &b.name;
    let (serve, address) = serve(&args!("--process --netns {namespace}"));
    lab.send(&[frames::udp(b"hello")], 100);
    let target = b.ipv4.to_string();
    run("ip", &args!("netns exec {} ping -q -c 10 -i 0.002 {target}", a.name));
    let name = std::fs::read_to_string("/proc/self/comm").expect("a name");
    let count = |process: &str, direction: &str| {
        let text = metrics(&address);
        let line = text.lines().find(|line| {
            line.starts_with(&format!("trawl_process_packets_total{{process=\"{process}\""))
                && line.contains(&format!("direction=\"{direction}\"}}"))
        });
        let value = line.and_then(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        value.unwrap_or(0)
    };
    wait_until("the packets are counted", || count(name.trim(), "in") == 100 && count("unknown", "out") == 10);
    lint(&metrics(&address));
    serve.stop();
}

/// A silent client has two seconds. Other clients are answered in that time.
#[test]
fn idle_connections_delay_no_other() {
    let (running, address) = serve(&[]);
    let idle: Vec<TcpStream> = (0..10).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    let metrics = get(&address, "/metrics", &address);
    assert!(metrics.starts_with("HTTP/1.1 200 OK"), "{metrics}");
    for mut stream in idle {
        stream.set_nonblocking(true).expect("a socket");
        let read = stream.read(&mut [0; 1]);
        let is_open = read.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
        assert!(is_open, "the answer waited for a client that says nothing");
    }
    let many: Vec<TcpStream> = (0..64).filter_map(|_| TcpStream::connect(&address).ok()).collect();
    let metrics = get(&address, "/metrics", &address);
    assert!(metrics.starts_with("HTTP/1.1 200 OK"), "{metrics}");
    drop(many);
    running.signal(Signal::INT);
    assert!(running.wait().status.success());
}
