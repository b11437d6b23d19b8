//! Impossible requests are refused with a clear message and the right exit status, and leave nothing behind.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;
use trawl_bpf::map;
use trawl_bpf::probe::KernelFeature;
use trawl_lab::program::{Does, Loaded};
use trawl_tests::witness::{nothing_attached, output, run, slots, xdp_on};
use trawl_tests::{Capture, Lab, args, binary, frames, trawl, turn};

/// Checks that the command fails with this status and these texts, in one line and without a panic.
#[track_caller]
fn refused(arguments: &[&str], status: i32, words: &[&str]) {
    let output = trawl(&[&["capture"], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(!said.contains("panicked") && !said.contains("capturing on"), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

#[test]
fn unknown_interface_is_refused() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    refused(&["-i", "trawl-nowhere", "-w", &file], 1, &["trawl-nowhere"]);
    refused(&["-i", &format!("{}:nowhere", lab.pair.b.name), "-w", &file], 1, &["nowhere"]);
    refused(&["-i", "nowhere", "--netns", &lab.pair.b.name, "-w", &file], 1, &["nowhere"]);
    assert!(!lab.path("file.pcapng").exists());
    // If one of two interfaces is unknown, the other one stays unchanged.
    refused(&["-i", &lab.receiver(), "-i", "trawl-nowhere"], 1, &["trawl-nowhere"]);
    nothing_attached(&lab.pair.b);
}

#[test]
fn unknown_namespace_is_refused() {
    let missing = "trawl-no-such-namespace";
    let fix = format!("ip netns add {missing}");
    refused(&["-i", &format!("{missing}:veth0")], 1, &[missing, "does not exist", &fix]);
    refused(&["-i", "veth0", "--netns", missing], 1, &[missing, "does not exist", &fix]);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let file = lab.file("file.pcapng");
    let to_file = |arguments: &[&'static str]| [&["-i", place.as_str(), "-w", file.as_str()][..], arguments].concat();
    refused(&to_file(&["--ring-size", "0"]), 2, &["memory", "--memory", "64 KiB"]);
    refused(&to_file(&["--ring-size", "1TiB"]), 2, &["memory", "--memory", "KiB"]);
    refused(&to_file(&["--ring-size=-1"]), 2, &["ring-size", "-1"]);
    refused(&to_file(&["--ring-size", "many"]), 2, &["many"]);
    refused(&to_file(&["-s", "262145"]), 2, &["262145", "262144"]);
    refused(&to_file(&["-s", "99999999999999999999"]), 2, &["99999999999999999999"]);
    refused(&to_file(&["-c", "0"]), 2, &["-c"]);
    refused(&to_file(&["--duration", "0"]), 2, &["duration"]);
    refused(&to_file(&["--verdict", "drop,bananas"]), 2, &["bananas", "redirect"]);
    refused(&to_file(&["--tap", "telepathy"]), 2, &["telepathy"]);
    refused(&["-w", &file], 2, &["--interface"]);
    assert!(!lab.path("file.pcapng").exists());
    nothing_attached(&lab.pair.b);
}

#[test]
fn unsupported_options_of_a_tap_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    for tap in ["xdp", "tailcall"] {
        refused(&["-i", &place, "--tap", tap, "-Q", "out"], 2, &["sent", "--tap tc"]);
    }
    refused(&["-i", &place, "--tap", "tc", "--at", "both"], 2, &["entry", "--at"]);
    refused(&["-i", &place, "--tap", "packet", "--at", "entry"], 2, &["entry", "--at"]);
    refused(&["-i", &place, "--tap", "packet", "--verdict", "drop"], 2, &["verdict", "--tap xdp"]);
    for others in [["--tap", "tc"], ["--tap", "packet"], ["--tap", "tailcall"], ["-Q", "out"]] {
        for program in ["--program", "--prog"] {
            let asked = ["-i", &place, program, "all"];
            refused(&[&asked[..], &others].concat(), 2, &["--program"]);
        }
    }
    nothing_attached(&lab.pair.b);
}

/// If any call meets the limit of open files, the message says how to raise it.
#[test]
fn lack_of_open_files_is_explained() {
    let Some(lab) = Lab::open() else { return };
    let (binary, place) = (binary::path(), lab.receiver());
    for limit in [8, 16, 24] {
        for command in ["capture --tap tc -i", "why -i", "follow icmp -i"] {
            let script = format!("ulimit -n {limit}; exec {} {command} {place} --duration 1s", binary.display());
            let done = output("sh", &["-c", &script]);
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            let last = said.trim_end().lines().last().unwrap_or_default();
            assert!(
                last.ends_with("Too many open files; raise the limit of open files: ulimit -n"),
                "{limit} for {command}: {said}"
            );
        }
    }
}

/// In a pipe, which has no width, lines end between words within 80 columns.
#[test]
fn piped_table_of_taps_fits_80_columns() {
    let shown = String::from_utf8_lossy(&trawl(&["taps"]).stdout).into_owned();
    let long: Vec<&str> = shown.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(shown.contains("needs: a program that ends by a tail call") && long.is_empty(), "{long:?}");
}

/// `trawl taps` and the refusals come from one table.
#[test]
fn taps_refuse_what_their_table_denies() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let table = trawl(&["taps", "--json"]);
    assert!(table.status.success(), "{table:?}");
    let table: Value = serde_json::from_slice(&table.stdout).expect("one document");
    let taps = table["taps"].as_array().expect("a list");
    let asked: [(&str, &[&str]); 6] = [
        ("sent", &["-Q", "out"]),
        ("entry", &["--at", "entry"]),
        ("verdict", &["--verdict", "drop"]),
        ("programs", &["--program", "all"]),
        ("queue", &["--queue", "0"]),
        ("hardware_time", &["--time", "hw"]),
    ];
    let mut names = Vec::new();
    for (name, facts) in taps.iter().filter_map(|tap| Some((tap["name"].as_str()?, tap))) {
        names.push(name);
        let missing = facts["missing"].as_array().expect("a list");
        assert_eq!(facts["available"], Value::Bool(missing.is_empty()));
        for (what, arguments) in asked {
            // Two lines have the name xdp, and only features that neither has are refused.
            let mut lines = taps.iter().filter(|tap| tap["name"] == name);
            if lines.any(|line| line["gives"][what] == Value::Bool(true)) {
                continue;
            }
            // The ports of the dpdk tap are not interfaces. The refusal precedes the search for an application.
            let place = if name == "dpdk" { "dpdk:0" } else { &place };
            let all = ["-i", place, "--tap", name, "--duration", "100ms"];
            let word = if what == "sent" { what } else { arguments[0] };
            refused(&[&all[..], arguments].concat(), 2, &[word, name]);
        }
    }
    assert_eq!(names, ["xdp", "xdp", "tailcall", "tc", "packet", "pcap", "dpdk", "drop"]);
    nothing_attached(&lab.pair.b);
}

/// A map made with bpftool and pinned, unpinned when dropped.
struct PinnedMap(PathBuf);

impl PinnedMap {
    fn new(lab: &Lab, kind: &str, value: &str, entries: &str) -> Self {
        let path = PathBuf::from(format!("/sys/fs/bpf/{}", lab.pair.b.name));
        let map = Self(path);
        let shape = ["type", kind, "key", "4", "value", value, "entries", entries, "name", "trawl_e2e"];
        run("bpftool", &[&["map", "create", map.path()], &shape[..]].concat());
        map
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for PinnedMap {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn hook_of_the_wrong_kind_is_refused() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let file = lab.file("file.pcapng");
    let with = |path: &str, words: &[&str]| {
        let arguments = args!("-i {} --tap tailcall --hook {path} -w {file}", lab.receiver());
        refused(&arguments, 1, &[&[path], words].concat());
    };
    {
        let array = PinnedMap::new(&lab, "array", "4", "5");
        with(array.path(), &["type", "PROG_ARRAY"]);
    }
    {
        let small = PinnedMap::new(&lab, "prog_array", "4", "4");
        with(small.path(), &["4 entries", "5"]);
    }
    with("/sys/fs/bpf/trawl-no-such-pin", &["no such file"]);
    let ordinary = lab.file("ordinary");
    std::fs::write(&ordinary, "x").expect("a file");
    with(&ordinary, &["not a pinned BPF object"]);
    assert!(!lab.path("file.pcapng").exists());
}

#[test]
fn hook_map_is_accepted_by_its_path() {
    let _turn = turn::hooks();
    let Some(lab) = Lab::open() else { return };
    let program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let hook = map::info(program.hook().expect("a hook")).expect("a map");
    let path = format!("/sys/fs/bpf/{}", lab.pair.b.name);
    run("bpftool", &["map", "pin", "id", &hook.id.to_string(), &path]);
    let pin = PinnedMap(path.clone().into());
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--hook", &path, "-c", "3"]);
    assert_eq!(slots(hook.id).len(), 5);
    lab.send(&[frames::silent(64)], 3);
    capture.wait().summary_of_success();
    assert_eq!(slots(hook.id), []);
    drop(pin);
}

#[test]
fn hook_tap_needs_a_program() {
    let Some(lab) = Lab::open() else { return };
    refused(&["-i", &lab.receiver(), "--tap", "tailcall"], 1, &["no XDP program", "--tap xdp"]);
}

#[test]
fn unwritable_files_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let missing = lab.file("no/such/directory.pcapng");
    refused(&["-i", &place, "-w", &missing], 1, &[&missing, "No such file or directory"]);
    let directory = lab.file("");
    refused(&["-i", &place, "-w", &directory], 1, &["directory"]);
    nothing_attached(&lab.pair.b);
}

#[test]
fn program_without_a_hook_is_refused() {
    // On a kernel with tracing programs, a capture needs no hook.
    if KernelFeature::Fexit.probe().is_supported() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::Drop, &lab.pair.b).expect("the program");
    let before = xdp_on(&lab.pair.b);
    let file = lab.file("file.pcapng");
    let arguments = ["-i", &lab.receiver(), "--tap", "xdp", "-w", &file];
    let words = args!("lab_drop tracing --tappable '--tap tailcall' '--tap packet'");
    refused(&arguments, 1, &words);
    assert!(!lab.path("file.pcapng").exists());
    assert_eq!(xdp_on(&lab.pair.b), before);
}

#[test]
fn missing_privileges_are_named() {
    let Some(lab) = Lab::open() else { return };
    // The copy is in a directory that all users may read, whichever user built trawl.
    let copy = lab.file("trawl");
    binary::copy(binary::path(), &copy);
    for path in [copy.as_str(), &lab.file("")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let nobody = args!(
        "--reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
         --no-new-privs"
    );
    for tap in ["auto", "xdp", "tc", "packet"] {
        let command = args!("{copy} capture -i lo --tap {tap} --duration 100ms");
        let output = output("setpriv", &[&nobody[..], &command].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{tap}: {said}");
        assert!(said.contains("root") || said.contains("CAP_"), "{tap}: {said}");
        assert!(!said.contains("capturing on") && !said.contains("panicked"), "{tap}: {said}");
    }
}

#[test]
fn loopback_works_in_skb_mode() {
    let Some(lab) = Lab::open() else { return };
    let place = format!("{}:lo", lab.pair.b.name);
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &place, "--tap", "xdp", "-c", "1", "-w", &file]);
    assert!(capture.said().contains("skb mode"), "{}", capture.said());
    let sent = trawl_sys::netns::run_in(&lab.pair.b.namespace, || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        socket.send_to(b"hello", ("127.0.0.1", 9))
    });
    sent.expect("the namespace").expect("a datagram");
    capture.wait().summary_of_success();
    let rows = trawl_tests::witness::tshark(&file, &["ip.dst", "udp.dstport"]);
    assert_eq!(rows, [["127.0.0.1", "9"]]);
    refused(&["-i", &place, "--tap", "xdp", "--mode", "native"], 1, &["native", "--mode skb"]);
}
