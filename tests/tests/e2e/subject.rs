//! `trawl capture -- COMMAND`, and `why` and `follow` of a command.

use std::fs;
use std::process::{Child, Command, Output};

use trawl_bpf::probe::kernel_is_at_least;
use trawl_lab::Station;
use trawl_sys::process::cgroup::Root;
use trawl_tests::pcapng::{Contents, Packet};
use trawl_tests::wait::wait_until;
use trawl_tests::witness::output;
use trawl_tests::{Lab, args, binary, turn};

/// Runs trawl in a station's namespace, with a command as its last arguments.
fn capture(at: &Station, arguments: &[&str], command: &[&str]) -> Output {
    let trawl = binary::path().to_string_lossy();
    let before = ["netns", "exec", &at.name, &trawl];
    output("ip", &[&before[..], arguments, &["--"], command].concat())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A process that sends the same packets as the command, until it is dropped.
struct Other(Child);

impl Other {
    fn pings(from: &Station, address: &str) -> Self {
        let mut ping = Command::new("ip");
        ping.args(["netns", "exec", &from.name, "ping", "-q", "-i", "0.02", address]);
        Self(ping.stdout(std::process::Stdio::null()).spawn().expect("ip"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the cgroups that captures made.
fn groups_of(process: u32) -> Vec<String> {
    let paths = Root::open().expect("cgroups").paths().into_values();
    let own = format!("trawl-{process}");
    paths.filter(|path| path.ends_with(&own)).collect()
}

/// `-Z USER` also runs the command as USER, without capabilities.
#[test]
fn command_runs_as_the_user_that_the_capture_changes_to() {
    let Some(lab) = Lab::open() else { return };
    let a = &lab.pair.a;
    let script = "id -u; id -G; echo $USER; grep CapEff /proc/self/status";
    let directory = lab.path("nobody");
    fs::create_dir(&directory).expect("a directory");
    std::os::unix::fs::chown(&directory, Some(65_534), Some(65_534)).expect("root");
    let shown = |more: &[&str]| {
        let file = lab.file("nobody/file.pcapng");
        let arguments = [&["capture", "-w", &file][..], more].concat();
        let output = capture(a, &arguments, &["sh", "-c", script]);
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let nobody = shown(&["-Z", "nobody"]);
    let lines: Vec<&str> = nobody.lines().collect();
    assert_eq!((lines[0], lines[1], lines[2]), ("65534", "65534", "nobody"), "{nobody}");
    assert_eq!(lines[3].split_whitespace().last(), Some("0000000000000000"), "{nobody}");
    assert!(shown(&[]).starts_with("0\n"));
}

/// A capture of a command records exactly the command's packets, also those in a namespace that another command
/// entered, from the first one on.
#[test]
fn command_is_captured_in_its_namespaces() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let address = a.ipv4.to_string();
    let _other = Other::pings(b, &address);
    let file = lab.file("entered.pcapng");
    let ping = format!("ip netns exec {} ping -q -c 3 -i 0.05 {address}", b.name);
    let done = capture(a, &args!("capture -w {file}"), &args!("{ping}"));
    assert!(done.status.success(), "{}", said(&done));
    let contents = Contents::read(&file);
    let is_of_b = |packet: &&Packet| {
        let interface = &contents.interfaces[packet.interface as usize];
        interface.name().starts_with(&b.name)
    };
    let of_b: Vec<_> = contents.packets.iter().filter(is_of_b).collect();
    // There are three requests and three answers, each with its process.
    assert_eq!(of_b.len(), 6, "{}", said(&done));
    assert!(of_b.iter().all(|packet| packet.process().is_some()));
    assert_eq!(contents.undescribed, 0);
}

/// The first packet in a namespace that the command made is also recorded.
#[test]
fn new_namespace_is_captured_from_the_first_packet() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("made.pcapng");
    let script = lab.file("script");
    fs::write(&script, "ip link set lo up; exec ping -q -c 1 127.0.0.1").expect("a file");
    let done = capture(&lab.pair.a, &args!("capture -w {file} icmp"), &args!("unshare -n sh {script}"));
    assert!(done.status.success(), "{}", said(&done));
    let contents = Contents::read(&file);
    let requests = contents.packets.iter().filter(|packet| packet.bytes[34] == 8);
    assert!(requests.count() >= 1, "{}", said(&done));
}

/// The command starts even if an interface is named, and even if a process of another user runs it.
#[test]
fn command_begins_whoever_runs_it_and_whatever_is_captured() {
    let Some(lab) = Lab::open() else { return };
    let done_file = lab.file("done");
    fs::write(&done_file, "").expect("a file");
    output("chmod", &args!("a+w {done_file}"));
    let copy = format!("cp /proc/version {done_file}");
    let other_user = "setpriv --reuid=65534 --inh-caps=+sys_admin --ambient-caps=+sys_admin";
    for (arguments, command) in [
        ("capture -i lo", copy.clone()),
        ("capture -i any", format!("unshare -n {copy}")),
        ("capture", format!("{other_user} unshare -n {copy}")),
    ] {
        fs::write(&done_file, "").expect("a file");
        let all = args!("{arguments} --duration 60s");
        let done = capture(&lab.pair.a, &all, &args!("{command}"));
        let is_done = !fs::read(&done_file).expect("the file").is_empty();
        assert!(done.status.success() && is_done, "{arguments}: {}", said(&done));
    }
}

/// The capture ends with its command, and reports how the command ended.
#[test]
fn failure_of_the_command_is_reported() {
    let Some(lab) = Lab::open() else { return };
    let script = lab.file("script");
    fs::write(&script, "exit 3").expect("a file");
    for (command, status, reason) in [
        (format!("sh {script}"), 3, "sh: exit status: 3"),
        ("no-such-command".to_owned(), 1, "cannot run \"no-such-command\": no directory of PATH"),
        (script.clone(), 1, "no program has this path"),
    ] {
        let done = capture(&lab.pair.a, &args!("capture"), &args!("{command}"));
        assert_eq!(done.status.code(), Some(status), "{}", said(&done));
        assert!(said(&done).contains(reason), "{}", said(&done));
    }
}

/// Neither the command nor its cgroup outlives trawl.
#[test]
fn command_ends_with_a_killed_capture() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("killed.pcapng");
    let address = lab.pair.b.ipv4.to_string();
    for signal in ["-KILL", "-INT"] {
        let trawl = binary::path().to_string_lossy();
        let words = format!("netns exec {} {trawl} capture -w {file} -- ping -q {address}", lab.pair.a.name);
        let mut child =
            Command::new("ip").args(words.split(' ')).stdout(std::process::Stdio::null()).spawn().expect("ip");
        let number = child.id();
        let ping = || {
            let children = output("pgrep", &["-P", &number.to_string(), "-x", "ping"]);
            String::from_utf8_lossy(&children.stdout).trim().parse::<u32>().ok()
        };
        wait_until("the command runs", || ping().is_some());
        let ping = ping().expect("it runs");
        output("kill", &[signal, &number.to_string()]);
        child.wait().expect("it ends");
        wait_until("the command and its cgroup are gone", || {
            let state = fs::read_to_string(format!("/proc/{ping}/stat")).unwrap_or_default();
            let is_gone = state.is_empty() || state.contains(") Z ");
            is_gone && groups_of(number).is_empty()
        });
    }
}

/// A capture that has enough packets ends its command.
#[test]
fn enough_packets_end_the_command() {
    let Some(lab) = Lab::open() else { return };
    let address = lab.pair.b.ipv4.to_string();
    let done = capture(&lab.pair.a, &args!("capture -c 2 --json icmp"), &args!("ping -q -i 0.05 {address}"));
    assert!(done.status.success(), "{}", said(&done));
    let shown = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(shown.matches("\"name\":\"ping\"").count(), 2, "{shown}");
}

/// `why` shows only losses of the command's sockets.
#[test]
fn why_shows_losses_of_the_command() {
    let Some(lab) = Lab::open() else { return };
    let a = &lab.pair.a;
    let script = lab.file("script");
    let lines = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)\n\
        s.bind(('127.0.0.1', 4000))\nfor _ in range(50): s.sendto(bytes(1000), ('127.0.0.1', 4000))\n";
    fs::write(&script, lines).expect("a file");
    let done = capture(a, &args!("why --json"), &args!("python3 {script}"));
    assert!(done.status.success(), "{}", said(&done));
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let text = report.to_string();
    assert!(text.contains("SOCKET_RCVBUFF") && text.contains("python3"), "{text}");
}

/// `follow` shows the command's packets and the answers, but not equal packets of another process.
#[test]
fn follow_shows_packets_of_the_command() {
    let _turn = turn::hooks();
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let _other = Other::pings(a, &b.ipv4.to_string());
    // The filter and the choice by process share limited space in the program, so both are tested together.
    for filter in ["", "icmp"] {
        let arguments = args!("follow --json {filter}");
        let done = capture(a, &arguments, &args!("ping -q -c 2 -i 0.1 {}", b.ipv4));
        assert!(done.status.success(), "{}", said(&done));
        assert!(!said(&done).contains("not shown"), "{}", said(&done));
        let shown = String::from_utf8_lossy(&done.stdout).into_owned();
        let count = |what: &str| shown.lines().filter(|line| line.contains(what)).count();
        assert_eq!((count("echo request"), count("echo reply")), (2, 2), "{shown}");
    }
}

/// A command's packets are followed in the namespace that it enters.
#[test]
fn follow_shows_packets_in_other_namespaces() {
    let _turn = turn::hooks();
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let command = format!("ip netns exec {} ping -q -c 2 -i 0.1 {}", b.name, a.ipv4);
    let done = capture(a, &args!("follow --json icmp"), &args!("{command}"));
    assert!(done.status.success(), "{}", said(&done));
    let shown = String::from_utf8_lossy(&done.stdout).into_owned();
    let requests: Vec<&str> = shown.lines().filter(|line| line.contains("echo request")).collect();
    let begins = format!("\"netns\":\"{}\"", b.name);
    assert!(requests.len() == 2 && requests[0].contains(&begins), "{shown}");
    assert_eq!(shown.matches("echo reply").count(), 2, "{shown}");
}

/// `why` and `follow` know a namespace that the command makes before the command continues in it.
#[test]
fn namespaces_made_by_the_command_are_looked_at() {
    let _turn = turn::hooks();
    let Some(lab) = Lab::open() else { return };
    let script = lab.file("script");
    let lines = "ip link set lo up\nnft -f - << END\ntable inet t { chain in { type filter hook input priority 0\n\
        udp dport 9 drop\nudp dport 11 drop\n}\n}\nEND\necho x > /dev/udp/127.0.0.1/9\n";
    fs::write(&script, lines).expect("a file");
    let command = args!("unshare -n bash -e {script}");
    let a = &lab.pair.a;
    let done = capture(a, &args!("why --json"), &command);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 1, "{report}: {}", said(&done));
    assert_eq!(rows[0]["reason"], "NETFILTER_DROP", "{report}");
    let culprits = rows[0]["culprits"].as_array().expect("culprits");
    let names: Vec<&str> = culprits.iter().filter_map(|one| one["name"].as_str()).collect();
    assert!(names.len() == 1 && names[0].ends_with("udp dport 9 drop"), "{report}");
    let advice = rows[0]["advice"].as_str().expect("advice");
    assert!(advice.contains("its network namespace is gone"), "{report}");
    let done = capture(a, &args!("follow --json"), &command);
    let shown = String::from_utf8_lossy(&done.stdout).into_owned();
    let path: serde_json::Value = serde_json::from_str(&shown).expect("one packet");
    let steps = path["steps"].as_array().expect("steps");
    let steps: Vec<&str> = steps.iter().filter_map(|one| one["step"].as_str()).collect();
    let mut expected = vec!["input", "dropped"];
    if kernel_is_at_least(6, 4) {
        expected.splice(0..0, ["output", "postrouting"]);
    }
    for step in expected {
        assert!(steps.contains(&step), "{step} in {shown}");
    }
    assert_eq!(path["end"], "dropped", "{shown}");
}

/// Checks that lines and statistics show that a process only owns the listening socket.
fn readers_name_listener(file: &str) {
    for arguments in [args!("read {file}"), args!("stat --by process {file}")] {
        let shown = output(&binary::path().to_string_lossy(), &arguments).stdout;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        assert!(shown.contains("] (listener)"), "{shown}");
    }
}

/// With --process=full, a connection's packets name their socket, and the first ones the listening socket.
#[test]
fn full_descriptions_name_the_socket() {
    let Some(lab) = Lab::open() else { return };
    let b = &lab.pair.b;
    let file = lab.file("full.pcapng");
    let script = lab.file("script");
    let lines = format!(
        "import os, socket\nr, w = os.pipe()\ns = socket.create_server(('{0}', 4001))\n\
         if os.fork() == 0:\n os.read(r, 1); c = s.accept()[0]; c.recv(9); c.send(b'x'); c.recv(9); os._exit(0)\n\
         c = socket.create_connection(('{0}', 4001)); c.send(b'x'); os.write(w, b'x'); c.recv(9); c.close(); os.wait()\n",
        b.ipv4
    );
    fs::write(&script, lines).expect("a file");
    let done = capture(b, &args!("capture --process=full -w {file} tcp port 4001"), &args!("python3 {script}"));
    assert!(done.status.success(), "{}", said(&done));
    let contents = Contents::read(&file);
    let comment = |packet: &Packet| packet.options.text(1).unwrap_or_default();
    let comments: Vec<String> = contents.packets.iter().map(comment).collect();
    assert!(comments.iter().all(|text| text.contains("socket=")), "{comments:?}");
    assert!(comments.iter().any(|text| text.contains("owner=listener")), "{comments:?}");
    assert!(comments.iter().any(|text| !text.contains("owner=")), "{comments:?}");
    readers_name_listener(&file);
    // Without full descriptions, a comment says only that the process is not certain.
    let plain = lab.file("plain.pcapng");
    let done = capture(b, &args!("capture --process -w {plain} tcp port 4001"), &args!("python3 {script}"));
    assert!(done.status.success(), "{}", said(&done));
    let contents = Contents::read(&plain);
    let comments: Vec<String> = contents.packets.iter().map(comment).collect();
    let uncertain = |one: &&String| ["owner=listener", ""].contains(&one.trim_end());
    assert!(comments.iter().all(|one| uncertain(&one)), "{comments:?}");
    assert!(comments.iter().any(|one| one == "owner=listener"), "{comments:?}");
    assert!(comments.iter().any(String::is_empty), "{comments:?}");
    readers_name_listener(&plain);
}
