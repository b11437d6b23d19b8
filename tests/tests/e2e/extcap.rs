//! Wireshark's extcap interface to trawl, used by tshark; and figures of a running interface.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use trawl_lab::program::{Does, Loaded};
use trawl_tests::witness::run;
use trawl_tests::{Lab, args, frames, skip, trawl, wait_until};

struct Capturing(Child);

impl Drop for Capturing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns one of tshark's folders by its heading.
fn folder(name: &str) -> Option<String> {
    let folders = Command::new("tshark").args(["-G", "folders"]).output();
    let folders = String::from_utf8_lossy(&folders.ok()?.stdout).into_owned();
    let named = folders.lines().find_map(|line| line.strip_prefix(name))?;
    Some(named.trim().to_owned())
}

/// Returns tshark with trawl installed in a folder of the lab.
fn tshark(lab: &Lab, arguments: &[&str]) -> Option<Command> {
    if Command::new("tshark").arg("--version").output().is_err() {
        skip("tshark is not installed");
        return None;
    }
    let (extcap, profiles, plugins) = (lab.file("extcap"), lab.file("profiles"), lab.file("plugins"));
    let installed = trawl(&args!("extcap install --dir {extcap} --profiles {profiles} --plugins {plugins}"));
    assert!(installed.status.success(), "{installed:?}");
    // As root, tshark reads only the machine's folder, so the lab's folder is mounted over it.
    let shared = folder("Extcap path:").expect("tshark names it");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", "mount --bind \"$0\" \"$1\" && shift && exec tshark \"$@\""])
        .args([&extcap, &shared])
        .args(arguments)
        .stderr(Stdio::null());
    Some(command)
}

/// The entry for interfaces of other namespaces.
const ELSEWHERE: &str = "trawl:another-namespace";

/// The entry for dropped packets.
const DROPPED: &str = "trawl:all-dropped-packets";

/// Returns tshark's argument for an option of that entry.
fn set(option: &str) -> String {
    format!("extcap.trawl_another_namespace.{option}")
}

fn in_namespace(interface: &str) -> String {
    set(&format!("elsewhere:{interface}"))
}

/// Interfaces of other namespaces have entries of their own, but no more than these: Wireshark asks each entry for its
/// options before it shows the list.
const LISTED_MAX: usize = 32;

#[test]
fn interfaces_of_other_namespaces_are_listed() {
    let Some(lab) = Lab::open() else { return };
    let output = trawl(&["extcap", "--extcap-interfaces", "--extcap-version=4.4"]);
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(listed.contains("{value=trawl:lo}"), "{listed}");
    assert!(listed.contains(&format!("{{value={DROPPED}}}")), "{listed}");
    let own = run("ip", &["-o", "link"]).lines().count();
    // The entries for drops, all other interfaces, and stores are more, and so are pods and containers.
    let more = ["all-dropped", "another-", "packets-of-", "pod:", "container:"];
    let is_interface = |line: &&str| line.starts_with("interface ") && !more.iter().any(|part| line.contains(part));
    let others = listed.lines().filter(is_interface).count() - own;
    let is_listed = listed.contains(&format!("{{value=trawl:{}}}", lab.receiver()));
    assert!(others <= LISTED_MAX && (is_listed || others == LISTED_MAX), "{listed}");
    let offered = |interface: &str| {
        let output = trawl(&["extcap", "--extcap-config", "--extcap-interface", interface]);
        String::from_utf8_lossy(&output.stdout).contains(&format!("{{value={}}}", lab.receiver()))
    };
    assert!(offered(ELSEWHERE) && !offered("trawl:lo"));
    let fifo = lab.file("nothing");
    let refused = trawl(&args!("extcap --capture --extcap-interface {ELSEWHERE} --fifo {fifo}"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("elsewhere:NAMESPACE:IF"));
}

#[test]
fn tshark_lists_interfaces_and_captures_dropped_packets() {
    let Some(lab) = Lab::open() else { return };
    let Some(mut list) = tshark(&lab, &["-D"]) else {
        return;
    };
    let listed = list.stderr(Stdio::piped()).output().expect("tshark runs");
    let complaints = String::from_utf8_lossy(&listed.stderr).into_owned();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains(ELSEWHERE), "{listed}");
    assert!(!complaints.contains("invalid type") && !complaints.contains("couldn't find arg"), "{complaints}");

    let _program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let file = lab.file("seen.pcapng");
    let elsewhere = in_namespace(&lab.receiver());
    let options = ["-i", ELSEWHERE, "-o", &elsewhere, "-f", "udp", "-w", &file, "-c", "3"];
    let Some(mut command) = tshark(&lab, &options) else {
        return;
    };
    let mut tshark = Capturing(command.stdout(Stdio::null()).spawn().expect("tshark starts"));
    wait_until("tshark has its three packets", || {
        lab.send(&[frames::udp(b"hello"), frames::echo_request(1)], 2);
        tshark.0.try_wait().expect("a child of ours").is_some()
    });
    let read = trawl(&["read", "-t", &file]);
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.lines().all(|line| line.contains("UDP") && line.ends_with("DROP]")), "{text}");
}

/// The entry for drops has the packets of all namespaces, with their reasons.
#[test]
fn tshark_captures_drops_of_all_namespaces() {
    let Some(lab) = Lab::open() else { return };
    let filter = format!("udp dst port 5557 and dst host {}", lab.pair.b.ipv4);
    let options = ["-i", DROPPED, "-f", &filter, "-c", "1", "-T", "fields", "-e", "frame.comment"];
    let Some(mut command) = tshark(&lab, &options) else {
        return;
    };
    let mut tshark = Capturing(command.stdout(Stdio::piped()).spawn().expect("tshark"));
    let datagram = lab.udp(5557);
    wait_until("tshark has its packet", || {
        lab.send_long(std::slice::from_ref(&datagram));
        tshark.0.try_wait().expect("a child of ours").is_some()
    });
    let mut text = String::new();
    tshark.0.stdout.as_mut().expect("a pipe").read_to_string(&mut text).expect("text");
    let place = format!(" netns={}", lab.pair.b.name);
    assert!(text.starts_with("drop=NO_SOCKET ") && text.contains(&place), "{text}");
    let config = trawl(&["extcap", "--extcap-config", "--extcap-interface", DROPPED]);
    let config = String::from_utf8_lossy(&config.stdout).into_owned();
    assert!(config.contains("{call=--process}") && !config.contains("{call=--tap}"), "{config}");
}

#[test]
fn tshark_shows_processes_as_comments() {
    let Some(lab) = Lab::open() else { return };
    let (process, comm) = (set("process:comment"), set("comm:bash"));
    let elsewhere = in_namespace(&lab.sender());
    let options = ["-i", ELSEWHERE, "-o", &elsewhere, "-o", &process, "-o", &comm, "-c", "1"];
    let shown = ["-T", "fields", "-e", "frame.comment"];
    let Some(mut command) = tshark(&lab, &[&options[..], &shown].concat()) else {
        return;
    };
    let child = command.stdout(Stdio::piped()).spawn().expect("tshark");
    let mut tshark = Capturing(child);
    let send = format!("echo x >/dev/udp/{}/4000", lab.pair.b.ipv4);
    wait_until("tshark has its packet", || {
        lab.send(&[frames::udp(b"hello")], 1);
        let inside = ["netns", "exec", &lab.pair.a.name];
        run("ip", &[&inside[..], &["bash", "-c", &send]].concat());
        tshark.0.try_wait().expect("a child of ours").is_some()
    });
    let mut text = String::new();
    let stdout = tshark.0.stdout.as_mut().expect("a pipe");
    stdout.read_to_string(&mut text).expect("text");
    assert!(text.starts_with("process=bash["), "{text}");
}

/// Wireshark 4.0 passes its version only when it lists interfaces, and knows these types of options.
#[test]
fn options_have_types_known_to_the_wireshark_version() {
    const KNOWN: [&str; 5] = ["selector", "multicheck", "unsigned", "boolean", "string"];
    let types = |more: &[&str]| -> Vec<String> {
        let fixed = ["extcap", "--extcap-config", "--extcap-interface", "trawl:lo"];
        let output = trawl(&[&fixed[..], more].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let types = text.lines().filter_map(|line| line.split_once("{type="));
        let types = types.filter_map(|(_, rest)| rest.split_once('}'));
        types.map(|(name, _)| name.to_owned()).collect()
    };
    for version in [&[][..], &["--extcap-version", "4.0"], &["--extcap-version"]] {
        let types = types(version);
        assert_eq!(types.len(), 13, "{types:?}");
        assert!(types.iter().all(|one| KNOWN.contains(&one.as_str())), "{types:?}");
    }
    assert!(types(&["--extcap-version", "4.4.1"]).contains(&"editselector".to_owned()));
}

/// Wireshark's lists cannot quote braces, so a name with braces would add fields to the list.
#[test]
fn names_with_braces_are_not_listed() {
    let Some(lab) = Lab::open() else { return };
    let name = &lab.pair.b.name;
    let ends = ["plain", "type", "veth", "peer", "name", "a}{b=c"];
    run("ip", &[&["-n", name, "link", "add"][..], &ends].concat());
    let output = trawl(&["extcap", "--extcap-config", "--extcap-interface", ELSEWHERE]);
    let listed = String::from_utf8_lossy(&output.stdout);
    assert!(listed.contains(&format!("{{value={name}:plain}}")), "{listed}");
    assert!(!listed.contains("b=c"), "{listed}");
}

#[test]
fn filters_are_checked_and_options_offered() {
    let check = |filter: &str| {
        let arguments = args!("extcap --extcap-interface trawl:lo --extcap-capture-filter '{filter}'");
        String::from_utf8_lossy(&trawl(&arguments).stdout).into_owned()
    };
    assert_eq!(check("tcp port 80"), "");
    assert!(check("tcp prot 80").contains("syntax error"));
    let config = trawl(&["extcap", "--extcap-interface", "trawl:lo", "--extcap-config"]);
    let config = String::from_utf8_lossy(&config.stdout).into_owned();
    for part in ["{call=--tap}", "{value=tailcall}", "{call=--verdict}", "{type=multicheck}"] {
        assert!(config.contains(part), "{part} in {config}");
    }
    assert_eq!(trawl(&["extcap"]).status.code(), Some(2));
    // Unavailable taps are not offered, in agreement with `trawl taps`.
    let taps: serde_json::Value = serde_json::from_slice(&trawl(&["taps", "--json"]).stdout).expect("JSON");
    let taps = taps["taps"].as_array().expect("a list");
    for tap in taps {
        let name = tap["name"].as_str().expect("a name");
        let offered = config.contains(&format!("{{arg=0}}{{value={name}}}"));
        // Two taps may have the same name.
        let mut ways = taps.iter().filter(|one| one["name"] == name);
        let is_there = ways.any(|one| one["available"] == true);
        assert!(!offered || is_there, "{name} in {config}");
    }
    assert!(config.contains("{validation=^([1-9][0-9]{0,8})?$}"), "{config}");
}

/// The button next to the list of programs reloads the attached ones.
#[test]
fn attached_programs_are_listed_again() {
    let Some(lab) = Lab::open() else { return };
    let interface = format!("trawl:{}", lab.receiver());
    let again = |option: &str| {
        let arguments = args!(
            "extcap --extcap-interface {interface} --extcap-config \
             --extcap-reload-option {option}"
        );
        trawl(&arguments)
    };
    let listed = || String::from_utf8_lossy(&again("program").stdout).into_owned();
    assert_eq!(listed().lines().count(), 1, "{}", listed());
    let _program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let text = listed();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains("(id ") && text.contains("{value=all}"), "{text}");
    assert_eq!(again("tap").status.code(), Some(2));
}

#[test]
fn uninstall_removes_own_files_only() {
    let Some(lab) = Lab::open() else { return };
    let (extcap, profiles, plugins) = (lab.file("extcap"), lab.file("profiles"), lab.file("plugins"));
    let places = ["--dir", &extcap, "--profiles", &profiles, "--plugins", &plugins];
    let run = |command| trawl(&[&["extcap", command][..], &places].concat());
    assert!(run("install").status.success());
    let columns = std::fs::read_to_string(lab.path("profiles/trawl/preferences")).expect("it is there");
    assert!(columns.contains("trawl.drop.reason"));
    let plugin = std::fs::read_to_string(lab.path("plugins/trawl.lua")).expect("it is there");
    assert_eq!(plugin, String::from_utf8_lossy(&trawl(&["extcap", "fields", "--lua"]).stdout));
    // The user's widths of columns outlast a later version of the profile.
    let widths = lab.path("profiles/trawl/recent");
    assert!(std::fs::read_to_string(&widths).expect("it is there").contains("trawl.drop.rule"));
    std::fs::write(&widths, "column.width: %m, 9\n").expect("a file");
    assert!(run("install").status.success());
    assert_eq!(std::fs::read_to_string(&widths).expect("it is there"), "column.width: %m, 9\n");
    assert!(run("remove").status.success());
    for own in ["extcap/trawl", "profiles/trawl", "plugins/trawl.lua"] {
        assert!(!lab.path(own).exists(), "{own}");
    }
    std::fs::write(lab.path("extcap/trawl"), "#!/bin/sh\n").expect("the folder is there");
    assert_eq!(run("install").status.code(), Some(1));
    assert_eq!(run("remove").status.code(), Some(1));
}

/// A user without write access to the machine's folder installs into a personal one, and is shown how Wireshark finds
/// it.
#[test]
fn user_installs_into_a_personal_folder() {
    let Some(lab) = Lab::open() else { return };
    let Some(shared) = folder("Extcap path:") else {
        return skip("tshark is not installed");
    };
    if folder("Personal Extcap path:").is_some() {
        return skip("this Wireshark has a folder for each user");
    }
    let run = |command: &str| {
        let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
        Command::new("unshare")
            .args(["--mount", "sh", "-c", script, &shared])
            .arg(trawl_tests::binary::path())
            .args(["extcap", command])
            .env("HOME", lab.file("home"))
            .env_remove("XDG_CONFIG_HOME")
            .output()
            .expect("unshare runs")
    };
    let done = run("install");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && said.contains("WIRESHARK_EXTCAP_DIR="), "{done:?}");
    let script = lab.path("home/.local/lib/wireshark/extcap/trawl");
    // Wireshark obeys the variable only for users other than root, so the script is run directly here.
    let listed = Command::new(&script).arg("--extcap-interfaces").output();
    let listed = String::from_utf8_lossy(&listed.expect("the script runs").stdout).into_owned();
    assert!(listed.contains("value=trawl:lo"), "{listed}");
    let removed = run("remove");
    assert!(removed.status.success(), "{removed:?}");
    assert!(!script.exists() && !lab.path("home/.config/wireshark/profiles/trawl").exists());
    assert!(!lab.path("home/.local/lib/wireshark/plugins/trawl.lua").exists());
}

#[test]
fn stat_counts_packets_of_an_interface() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let running = trawl_tests::Running::start(
        &args!("stat -i {receiver} -c 10 --duration 30s --json --by verdict"),
        "capturing on",
    );
    lab.send(&[frames::udp(b"hello")], 10);
    let report = running.wait().json();
    assert_eq!(report["packets"], 10);
    assert_eq!(report["groups"][0]["values"][0], "UNSPEC");
    assert_eq!(report["flows"][0]["dst_port"], 9);
}

/// Returns a message of the toolbar's pipes: 'T', the length in three bytes, the control, the command, the text.
fn toolbar_message(control: u8, command: u8, text: &str) -> Vec<u8> {
    let mut message = (text.len() as u32 + 2).to_be_bytes().to_vec();
    message[0] = b'T';
    message.extend([control, command]);
    message.extend(text.as_bytes());
    message
}

fn status_of(pipe: &mut File) -> String {
    let mut header = [0; 6];
    pipe.read_exact(&mut header).expect("a header");
    assert_eq!((header[0], header[5]), (b'T', 6), "a text for the status bar");
    let len = u32::from_be_bytes([0, header[1], header[2], header[3]]);
    let mut text = vec![0; len as usize - 2];
    pipe.read_exact(&mut text).expect("a text");
    String::from_utf8(text).expect("UTF-8")
}

/// A capture as Wireshark starts it, with the pipes of the toolbar.
struct WithToolbar {
    _capturing: Capturing,
    packets: File,
    /// The bytes that the capture has written so far.
    captured: Vec<u8>,
    controls: File,
    statuses: File,
}

impl WithToolbar {
    fn start(lab: &Lab, more: &[&str]) -> Self {
        let pipe = |name: &str| {
            let path = lab.file(name);
            let made = Command::new("mkfifo").arg(&path).status();
            assert!(made.expect("mkfifo runs").success());
            // The pipe is opened for reading and writing, so that neither end waits for the other.
            let file = File::options().read(true).write(true).open(&path);
            (path, file.expect("a pipe"))
        };
        let [(to, packets), (from, controls), (said, statuses)] = ["packets", "controls", "statuses"].map(pipe);
        let receiver = lab.receiver();
        let extcap = args!("extcap --capture --extcap-interface trawl:{receiver} --fifo {to}");
        let pipes = args!("--extcap-control-in {from} --extcap-control-out {said}");
        let mut command = Command::new(trawl_tests::binary::path());
        command.args(extcap).args(pipes).args(more).stderr(Stdio::null());
        let capturing = Capturing(command.spawn().expect("trawl runs"));
        let mut started = Self { _capturing: capturing, packets, captured: Vec::new(), controls, statuses };
        // The file header arrives once the capture is attached.
        started.read_until(b"veth0");
        started
    }

    /// Reads until the capture has written this.
    fn read_until(&mut self, part: &[u8]) {
        while !self.has(part) {
            let mut bytes = [0; 4096];
            let count = self.packets.read(&mut bytes).expect("packets");
            self.captured.extend_from_slice(&bytes[..count]);
        }
    }

    fn has(&self, part: &[u8]) -> bool {
        self.captured.windows(part.len()).any(|window| window == part)
    }

    /// Sets a field of the toolbar; returns the text for the status bar.
    fn set(&mut self, control: u8, text: &str) -> String {
        self.controls.write_all(&toolbar_message(control, 1, text)).expect("the toolbar");
        status_of(&mut self.statuses)
    }
}

/// Sets the filter and the snap length in Wireshark's toolbar, by the protocol of its pipes.
#[test]
fn toolbar_changes_a_running_capture() {
    let Some(lab) = Lab::open() else { return };
    let mut capture = WithToolbar::start(&lab, &[]);
    let send = |payload: &[u8]| lab.send(&[frames::udp(payload)], 1);
    assert!(capture.set(0, "udp prot 9").contains("syntax error"));
    send(b"before any filter");
    capture.read_until(b"before any filter");
    assert_eq!(capture.set(0, "udp[8] == 0x79"), "trawl: filter udp[8] == 0x79");
    send(b"not wanted");
    send(b"yes, wanted");
    capture.read_until(b"yes, wanted");
    assert!(!capture.has(b"not wanted"));
    assert_eq!(capture.set(0, ""), "trawl: no filter");
    send(b"wanted again");
    capture.read_until(b"wanted again");
    // 48 bytes end after six bytes of the payload.
    assert_eq!(capture.set(1, "48"), "trawl: 48 bytes of each packet");
    assert_eq!(capture.set(1, "many"), "trawl: \"many\" is not a number of bytes");
    send(b"short, and no more");
    capture.read_until(b"short,");
    assert_eq!(capture.set(1, ""), "trawl: whole packets");
    send(b"whole again");
    capture.read_until(b"whole again");
    assert!(!capture.has(b"short, and"));
}

/// Sets the verdict in Wireshark's toolbar.
#[test]
fn toolbar_chooses_packets_by_verdict() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::ChosenWithHook, &lab.pair.b).expect("the program");
    let mut capture = WithToolbar::start(&lab, &["--tap", "xdp", "--at", "exit"]);
    let send = |action: u16, text: &[u8]| lab.send(&[[&frames::choosing(action)[..], text].concat()], 1);
    assert_eq!(capture.set(2, "drop"), "trawl: verdict DROP");
    send(2, b"is passed");
    send(1, b"is dropped");
    capture.read_until(b"is dropped");
    assert!(!capture.has(b"is passed"));
    assert_eq!(capture.set(2, "all"), "trawl: all verdicts");
    send(2, b"is passed too");
    capture.read_until(b"is passed too");
}
