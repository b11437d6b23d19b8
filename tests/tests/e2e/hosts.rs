//! Other hosts over ssh: `trawl bench run --hosts` and `trawl capture --on`, with two namespaces as hosts, each with an
//! ssh server.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use trawl_tests::{args, fleet_or_skip, root_or_skip, skip, trawl, wait_until};

use crate::bench::{Directory, results};

const NETWORK: &str = r#"
[[node]]
name = "m"
[[node]]
name = "a"
[[node]]
name = "b"
[[link]]
ends = ["m:to-a", "a:ssh"]
[[link]]
ends = ["m:to-b", "b:ssh"]
[[link]]
ends = ["a:data", "b:data"]
"#;

static SETUPS: AtomicU32 = AtomicU32::new(0);

struct Setup {
    lab: String,
    servers: Vec<Child>,
}

impl Drop for Setup {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        trawl(&["lab", "down", &self.lab]);
    }
}

fn keygen(path: &Path) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .status()
        .expect("ssh-keygen");
    assert!(made.success());
}

impl Setup {
    /// Sets up two hosts with an ssh server each, and a third namespace that reaches both.
    fn up(directory: &Directory) -> Option<Self> {
        if !root_or_skip() {
            return None;
        }
        if !Path::new("/usr/sbin/sshd").exists() {
            skip("there is no ssh server (apt-get install openssh-server)");
            return None;
        }
        let at = |name: &str| directory.0.join(name);
        let text = |name: &str| at(name).to_str().expect("UTF-8").to_owned();
        std::fs::write(at("network.toml"), NETWORK).expect("it can be written");
        let number = SETUPS.fetch_add(1, Ordering::Relaxed);
        let mut setup = Self { lab: format!("th{}-{number}", std::process::id()), servers: Vec::new() };
        let up = trawl(&["lab", "up", &setup.lab, "--file", &text("network.toml")]);
        assert_eq!(up.status.code(), Some(0), "{}", String::from_utf8_lossy(&up.stderr));
        keygen(&at("key"));
        keygen(&at("host"));
        std::fs::create_dir_all("/run/sshd").expect("the server wants it");
        for node in ["a", "b"] {
            let mut server = Command::new("ip");
            server.args(args!("netns exec trawl-{}-{node} /usr/sbin/sshd -D -e -f /dev/null", setup.lab));
            for option in [
                format!("HostKey={}", text("host")),
                format!("AuthorizedKeysFile={}", text("key.pub")),
                "StrictModes=no".to_owned(),
                "PermitRootLogin=yes".to_owned(),
                "PidFile=none".to_owned(),
            ] {
                server.args(["-o", &option]);
            }
            setup.servers.push(server.stderr(Stdio::null()).spawn().expect("sshd"));
        }
        let listens = |address: &str| {
            let script = format!("exec 3<>/dev/tcp/{address}/22");
            trawl(&["lab", "exec", &setup.lab, "m", "bash", "-c", &script]).status.success()
        };
        wait_until("the ssh servers listen", || listens("10.77.1.2") && listens("10.77.2.2"));
        Some(setup)
    }

    /// Returns a command that runs in one of the namespaces.
    fn at(&self, node: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        let namespace = format!("trawl-{}-{node}", self.lab);
        command.args(["netns", "exec", &namespace, program]);
        command
    }
}

#[test]
fn traffic_between_hosts_is_counted_at_the_receiver() {
    let directory = Directory::new("hosts");
    let Some(setup) = Setup::up(&directory) else {
        return;
    };
    let at = |name: &str| directory.0.join(name);
    let text = |name: &str| at(name).to_str().expect("UTF-8").to_owned();
    let host = |role: &str, address: &str, data: &str| {
        let directory = at(role);
        std::fs::create_dir(&directory).expect("it can be made");
        format!(
            "[{role}]\nssh = \"root@{address}\"\ninterface = \"data\"\naddress = \"{data}\"\ndirectory = \"{}\"\n\
             options = [\"-i\", \"{}\", \"-o\", \"StrictHostKeyChecking=no\", \"-o\", \"UserKnownHostsFile=/dev/null\", \"-o\", \"LogLevel=ERROR\"]\n",
            directory.display(),
            text("key")
        )
    };
    let hosts = host("sender", "10.77.1.2", "10.77.3.1") + &host("receiver", "10.77.2.2", "10.77.3.2");
    std::fs::write(at("hosts.toml"), hosts).expect("it can be written");
    let output = trawl(&args!(
        "lab exec {} m {} bench run capture-bandwidth --hosts {} --repeat 1 \
         --set series=nonsense --set rates=2 --set seconds=0.1 -o {}",
        setup.lab,
        trawl_tests::binary::path().to_str().expect("UTF-8"),
        text("hosts.toml"),
        text("out")
    ));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // An unknown series is refused before any host is contacted.
    assert_eq!(output.status.code(), Some(2), "{said}");
    let output = trawl(&args!(
        "lab exec {} m {} bench run capture-bandwidth --hosts {} --repeat 1 \
         --set 'series=trawl xdp,trawl tc,tcpdump,xdpdump' --set rates=2 --set \
         seconds=0.1 -o {}",
        setup.lab,
        trawl_tests::binary::path().to_str().expect("UTF-8"),
        text("hosts.toml"),
        text("out")
    ));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report = results(&at("out"));
    let experiment = &report["experiments"][0];
    let runs = experiment["runs"].as_array().expect("runs");
    for series in ["trawl xdp", "trawl tc"] {
        let run = runs.iter().find(|run| run["series"] == series).unwrap_or_else(|| panic!("{series}: {experiment}"));
        assert!(run["sent"].as_u64().is_some_and(|sent| sent >= 390), "{run}");
        assert_eq!(run["recorded"], run["claim"]["recorded"], "{run}");
        assert_eq!(run["recorded"], run["sent"], "{run}");
    }
    assert!(experiment["failures"].to_string().contains("not run on other hosts"), "{experiment}");
    // The binary was copied to both hosts, and no capture is left.
    for role in ["sender", "receiver"] {
        let names: Vec<String> = std::fs::read_dir(at(role))
            .expect("it is there")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["trawl-bench-0"], "{role}");
    }
}

fn capture_on(setup: &Setup, directory: &Directory, words: &[&str]) -> Child {
    capture_by_ssh(setup, directory, &[&["--push"], words].concat())
}

fn capture_by_ssh(setup: &Setup, directory: &Directory, words: &[&str]) -> Child {
    let key = directory.0.join("key");
    let ssh = format!(
        "ssh -i {} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
        key.display()
    );
    let trawl = trawl_tests::binary::path().to_str().expect("UTF-8");
    let home = directory.0.join("home");
    std::fs::create_dir_all(home).expect("it can be made");
    setup
        .at("m", trawl)
        .args(["capture", "--ssh", &ssh])
        .args(["--on", "ssh://root@10.77.1.2:22", "--on", "root@10.77.2.2"])
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("trawl starts")
}

/// Waits until both hosts have reported that they capture. Returns a thread that reads the further output.
fn ready(child: &mut Child) -> std::thread::JoinHandle<String> {
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut said = String::new();
    let captures = |said: &str, host| {
        let mut lines = said.lines();
        lines.any(|line| line.contains(host) && line.contains("capturing on"))
    };
    while !captures(&said, "10.77.1.2") || !captures(&said, "10.77.2.2") {
        let line = lines.next().unwrap_or_else(|| panic!("it ended: {said}"));
        said += &(line.expect("text") + "\n");
    }
    std::thread::spawn(move || said + &lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"))
}

fn pings(setup: &Setup, count: u32) {
    let ping = setup
        .at("a", "ping")
        .args(["-q", "-i", "0.002", "-c", &count.to_string(), "10.77.3.2"])
        .output()
        .expect("ping");
    assert!(ping.status.success(), "{ping:?}");
}

fn fields(file: &str, names: &[&str]) -> Vec<String> {
    let names = names.iter().flat_map(|name| ["-e", name]);
    let output: Output =
        Command::new("tshark").args(["-r", file, "-T", "fields"]).args(names).output().expect("tshark");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

fn interrupt(child: &Child) {
    let process = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it runs");
}

fn no_capture_is_left(setup: &Setup) {
    for node in ["a", "b"] {
        let output = setup.at(node, "bpftool").args(["net", "list"]).output();
        let text = String::from_utf8(output.expect("bpftool").stdout).expect("text");
        assert!(!text.contains("trawl"), "{node}: {text}");
    }
}

#[test]
fn packets_of_two_hosts_form_one_timeline_with_a_row_for_each() {
    let directory = Directory::new("on");
    let Some(setup) = Setup::up(&directory) else {
        return;
    };
    let file = directory.0.join("both.pcapng");
    let file = file.to_str().expect("UTF-8");
    let account = directory.0.join("account.json");
    let mut child = capture_on(
        &setup,
        &directory,
        &args!("-i data --tap tc -w {file} --summary {} icmp", account.to_str().expect("UTF-8")),
    );
    let said = ready(&mut child);
    pings(&setup, 50);
    interrupt(&child);
    let status = child.wait().expect("it ends");
    let said = said.join().expect("text");
    assert_eq!(status.code(), Some(0), "{said}");
    // Both ends record requests and replies.
    let summary: Value = serde_json::from_slice(&std::fs::read(&account).expect("it is there")).expect("JSON");
    assert_eq!(summary["recorded"], 200, "{summary}");
    assert_eq!(summary["unknown_hosts"], 0, "{summary}");
    let hosts = summary["hosts"].as_array().expect("a row for each host");
    assert_eq!(hosts.len(), 2, "{summary}");
    for (host, name) in hosts.iter().zip(["10.77.1.2", "10.77.2.2"]) {
        assert_eq!((&host["host"], &host["recorded"]), (&name.into(), &100.into()), "{summary}");
        // Both hosts have the same clock, and the measured offset is within its error bound.
        let clock = &host["clock"];
        let offset = clock["offset_ns"].as_i64().expect("it was asked").unsigned_abs();
        assert!(offset <= clock["error_ns"].as_u64().expect("a bound"), "{summary}");
        assert!(said.contains(&format!("{name}: ")), "{said}");
        // The hosts' notices arrived as data.
        let notices = host["notices"].as_array().expect("a list");
        assert!(
            notices.iter().any(|notice| notice["kind"] == "capturing"
                && notice["hook"].is_string()
                && notice["interface"] == "data"),
            "{summary}"
        );
    }
    let rows = fields(file, &["frame.interface_name", "frame.time_epoch", "icmp.seq"]);
    assert_eq!(rows.len(), 200);
    for (name, count) in [("10.77.1.2:data", 100), ("10.77.2.2:data", 100)] {
        assert_eq!(rows.iter().filter(|row| row.starts_with(name)).count(), count, "{rows:?}");
    }
    let times: Vec<&str> = rows.iter().filter_map(|row| row.split('\t').nth(1)).collect();
    assert!(times.is_sorted(), "one timeline: {times:?}");
    no_capture_is_left(&setup);
}

#[test]
fn hosts_stop_when_the_requesting_host_is_gone() {
    let directory = Directory::new("on-killed");
    let Some(setup) = Setup::up(&directory) else {
        return;
    };
    let mut child = capture_on(&setup, &directory, &["-i", "data", "--tap", "tc"]);
    let said = ready(&mut child);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    drop(said);
    wait_until("the captures there have ended", || {
        ["a", "b"].iter().all(|node| {
            let output = setup.at(node, "bpftool").args(["net", "list"]).output();
            let text = output.expect("bpftool").stdout;
            !String::from_utf8_lossy(&text).contains("trawl")
        })
    });
}

/// Hosts may have different interfaces, and a later capture finds the copied trawl.
#[test]
fn hosts_have_interfaces_of_their_own() {
    if !fleet_or_skip() {
        return;
    }
    let directory = Directory::new("on-own");
    let Some(setup) = Setup::up(&directory) else {
        return;
    };
    let file = directory.0.join("both.pcapng");
    let file = file.to_str().expect("UTF-8");
    let words = args!("-i data -i 10.77.1.2:ssh --tap tc -w {file} icmp");
    let mut child = capture_on(&setup, &directory, &words);
    let said = ready(&mut child);
    pings(&setup, 10);
    for address in ["10.77.1.2", "10.77.2.2"] {
        let ping = setup.at("m", "ping").args(["-c", "1", address]).output();
        assert!(ping.expect("ping").status.success(), "{address}");
    }
    interrupt(&child);
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", said.join().expect("text"));
    let rows = fields(file, &["frame.interface_name"]);
    for (name, count) in [("10.77.1.2:data", 20), ("10.77.2.2:data", 20), ("10.77.1.2:ssh", 2), ("10.77.2.2:ssh", 0)] {
        let found = rows.iter().filter(|row| *row == name).count();
        assert_eq!(found, count, "{name}: {rows:?}");
    }
    let mut child = capture_by_ssh(&setup, &directory, &["-i", "data", "--tap", "tc"]);
    let said = ready(&mut child);
    interrupt(&child);
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", said.join().expect("text"));
    // The hosts store their own packets by trawl-fleet, which was copied to them, too.
    let at = |name: &str| directory.0.join(name).to_str().expect("UTF-8").to_owned();
    let (store, spool) = (format!("file://{}", at("store")), at("spool"));
    let words = args!("-i data --tap tc --store {store} --spool {spool} icmp");
    let mut child = capture_on(&setup, &directory, &words);
    let said = ready(&mut child);
    pings(&setup, 10);
    interrupt(&child);
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", said.join().expect("text"));
    let listing = trawl(&args!("store ls {store} --spool {spool} --json"));
    let listing: Value = serde_json::from_slice(&listing.stdout).expect("JSON");
    assert_eq!(listing["total"]["stored"], 40, "{listing}");
    let none = capture_by_ssh(&setup, &directory, &["-i", "10.77.1.2:data"]);
    let none = none.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert_eq!(none.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot capture on 10.77.2.2"), "{said}");
    no_capture_is_left(&setup);
}

#[test]
fn failing_host_is_named_and_the_others_go_on() {
    let directory = Directory::new("on-failing");
    let Some(setup) = Setup::up(&directory) else {
        return;
    };
    // One host lacks the interface.
    let child = capture_on(&setup, &directory, &["-i", "ssh", "--on", "root@10.77.9.9", "--duration", "300ms"]);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("10.77.9.9"), "{said}");
}
