//! Other tools as witnesses.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use trawl_lab::Station;

use crate::args;
use crate::wait_until;

/// Runs a command that has to succeed, and returns its output.
#[track_caller]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    assert!(output.status.success(), "{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command, words separated by spaces, in a station's namespace; returns its output.
#[track_caller]
pub fn inside(station: &Station, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    run("ip", &[&["netns", "exec", &station.name], &words[..]].concat())
}

pub fn output(program: &str, arguments: &[&str]) -> Output {
    let run = Command::new(program).args(arguments).output();
    run.unwrap_or_else(|e| panic!("{program} cannot be run ({e}): it belongs to what the tests need"))
}

/// Returns a row for each packet with the values of these fields. Fails if tshark reports any problem.
#[track_caller]
pub fn tshark(file: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let mut arguments = vec!["-n", "-r", file, "-T", "fields"];
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    let output = output("tshark", &arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints: Vec<&str> = said.lines().filter(|line| !line.starts_with("Running as user")).collect();
    assert!(output.status.success() && complaints.is_empty(), "tshark says of {file}: {said}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Returns capinfos' value for a file under this heading.
#[track_caller]
pub fn capinfos(file: &str, heading: &str) -> String {
    let text = run("capinfos", &[file]);
    let found = text.lines().find_map(|line| line.trim_start().strip_prefix(heading)?.strip_prefix([':', ' ']));
    found.unwrap_or_else(|| panic!("capinfos says no {heading:?}: {text}")).trim_matches([':', ' ', '=']).to_owned()
}

/// Returns the lines that tcpdump prints for a file.
#[track_caller]
pub fn tcpdump(file: &str, options: &[&str]) -> Vec<String> {
    let mut arguments = vec!["-n", "-r", file];
    arguments.extend(options);
    run("tcpdump", &arguments).lines().map(str::to_owned).collect()
}

/// Returns `ip -j -d link show` of a station's interface; `None` if it is gone.
pub fn ip_link(station: &Station) -> Option<Value> {
    let output = output("ip", &args!("-n {} -j -d link show dev {}", station.name, station.interface));
    let all: Value = serde_json::from_slice(&output.stdout).ok()?;
    all.get(0).cloned()
}

/// Returns the id of the XDP program on an interface, and its mode, as shown by ip.
pub fn xdp_on(station: &Station) -> Option<(u64, String)> {
    let link = ip_link(station)?;
    let xdp = link.get("xdp")?;
    let mode = match xdp["mode"].as_u64()? {
        1 => "native",
        2 => "skb",
        other => panic!("XDP mode {other}"),
    };
    Some((xdp["prog"]["id"].as_u64()?, mode.to_owned()))
}

/// Returns the promiscuity count of the interface, of all users.
pub fn promiscuity(station: &Station) -> u64 {
    ip_link(station).and_then(|link| link["promiscuity"].as_u64()).unwrap_or_default()
}

/// Returns `bpftool net`'s list of a station's namespace: all XDP, tc and tcx programs.
#[track_caller]
pub fn attached_in(station: &Station) -> Vec<Value> {
    let namespace = format!("--net=/run/netns/{}", station.name);
    let text = run("nsenter", &[&namespace, "bpftool", "-j", "net", "show"]);
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let kinds = all[0].as_object().expect("an object of kinds");
    kinds.values().filter_map(Value::as_array).flatten().cloned().collect()
}

/// Returns true if a program with this id is loaded.
#[track_caller]
pub fn is_loaded(program: u64) -> bool {
    output("bpftool", &["prog", "show", "id", &program.to_string()]).status.success()
}

/// Returns the occupied slots of a program array, as slot and program id, by bpftool.
#[track_caller]
pub fn slots(map: u32) -> Vec<(u64, u64)> {
    let text = run("bpftool", &["-j", "map", "dump", "id", &map.to_string()]);
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let number = |value: &Value| -> Option<u64> {
        let bytes: Vec<u8> = value
            .as_array()?
            .iter()
            .map(|byte| u8::from_str_radix(byte.as_str()?.trim_start_matches("0x"), 16).ok())
            .collect::<Option<_>>()?;
        Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
    };
    let entries = all.as_array().expect("a list of entries");
    entries.iter().filter_map(|entry| Some((number(&entry["key"])?, number(&entry["value"])?))).collect()
}

/// Returns a counter of nstat since the namespace was made.
#[track_caller]
pub fn nstat(station: &Station, counter: &str) -> u64 {
    let text = inside(station, &format!("nstat -asz {counter}"));
    let line = text.lines().find(|line| line.starts_with(counter));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {counter} in {text}"))
}

/// Returns a value of each connection in a station's namespace, by ss: `rtt` is the mean of the round trip in
/// milliseconds.
#[track_caller]
pub fn connection_values(station: &Station, name: &str) -> Vec<f64> {
    let text = inside(station, "ss -tinmOH");
    let words = text.split([' ', ',', '(']);
    let values = words.filter_map(|word| Some(word.strip_prefix(name)?.trim_start_matches(':')));
    values.filter_map(|value| value.split(['/', 'm']).next()?.parse().ok()).collect()
}

/// Returns the number in a pinned map of one value, by bpftool.
#[track_caller]
pub fn number_at(pin: &str) -> u64 {
    number_of(&["pinned", pin])
}

/// Returns the number in a map of one value, by its id.
#[track_caller]
pub fn number_in(map: u64) -> u64 {
    number_of(&["id", &map.to_string()])
}

#[track_caller]
fn number_of(map: &[&str]) -> u64 {
    let text = run("bpftool", &[&["-j", "map", "dump"], map].concat());
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    all[0]["formatted"]["value"].as_u64().unwrap_or_else(|| panic!("no number in {text}"))
}

/// Checks that ip and bpftool show nothing attached to a station's interface, and its original qdiscs.
#[track_caller]
pub fn nothing_attached(station: &Station) {
    assert_eq!(xdp_on(station), None);
    assert_eq!(attached_in(station), Vec::<Value>::new());
    assert_eq!(promiscuity(station), 0, "{} is still promiscuous", station.interface);
    let qdiscs = run("tc", &args!("-n {} qdisc show dev {}", station.name, station.interface));
    assert!(!qdiscs.contains("clsact"), "{qdiscs}");
}

/// Waits until the kernel has freed a program, which happens a little after its last user.
pub fn wait_unloaded(program: u64) {
    wait_until(&format!("program {program} is unloaded"), || !is_loaded(program));
}

pub fn size_of(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |about| about.len())
}

/// Returns the BPF programs and links that a process holds, as kind and number for `bpftool`.
pub fn bpf_objects(process: u32) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(format!("/proc/{process}/fdinfo"));
    for entry in entries.into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let link = value_of(&text, "link_id");
        match (link, value_of(&text, "prog_id")) {
            (Some(link), _) => found.push(("link", link)),
            (None, Some(program)) => found.push(("prog", program)),
            (None, None) => {}
        }
    }
    found
}

fn value_of(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(":\t"));
    lines.find(|(one, _)| *one == name).map(|(_, value)| value.trim().to_owned())
}

/// Returns whether the kernel still has this object.
pub fn has_bpf_object((kind, number): &(&'static str, String)) -> bool {
    let shown = std::process::Command::new("bpftool").args([kind, "show", "id", number]).output();
    shown.expect("bpftool runs").status.success()
}

/// Returns the number of packets that Wireshark's tools find in a file, compressed or not.
pub fn packets_in(file: &str) -> u64 {
    let program = [(".gz", "gzip"), (".zst", "zstd"), (".lz4", "lz4")];
    let program = program.iter().find(|(end, _)| file.ends_with(end));
    let plain = match program {
        Some((_, program)) => {
            let plain = format!("{file}.plain");
            output("sh", &["-c", &format!("{program} -dc < {file} > {plain}")]);
            plain
        }
        None => file.to_owned(),
    };
    match size_of(plain.as_ref()) {
        0 => 0,
        _ => tshark(&plain, &["frame.len"]).len() as u64,
    }
}
