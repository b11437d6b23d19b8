//! `trawl xdp status` and `trawl xdp maps` agree with other tools.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;
use trawl_lab::program::{Does, Loaded};
use trawl_program::{Installed, Site, status};
use trawl_tests::programs::object_file;
use trawl_tests::witness::{run, xdp_on};
use trawl_tests::xdp::{CleanUp, only_program, programs_on, status_of, succeeds};
use trawl_tests::{Lab, args, binary, frames, tools_or_skip, trawl, wait_until};

#[track_caller]
fn bpftool(arguments: &[&str]) -> Value {
    let text = run("bpftool", &[&["-j"], arguments].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn names_tags_and_maps_agree_with_other_tools() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "members"));
    let load = ["xdp", "load", &place, &file, "--prog"];
    succeeds(&[&load[..], &["copes_with_fragments_too"]].concat());
    let program = &programs_on(&place)[0];
    let id = program["id"].as_u64().expect("a number").to_string();
    let theirs = bpftool(&["prog", "show", "id", &id]);
    assert_eq!(program["tag"], theirs["tag"]);
    // The kernel itself keeps 15 characters.
    assert_eq!(program["name"], "copes_with_fragments_too");
    assert_eq!(program["maps"], theirs["map_ids"]);
    assert_eq!(program["source"], file.as_str());
    assert_eq!(status_of(&place)["programs"][0]["mode"], "native");
    let maps: Value = serde_json::from_str(&succeeds(&["xdp", "maps", "-i", &place, "--json"])).expect("JSON");
    let trail =
        maps["maps"].as_array().expect("a list").iter().find(|one| one["name"] == "trail").expect("the program's map");
    let map = trail["id"].as_u64().expect("a number").to_string();
    let theirs = bpftool(&["map", "show", "id", &map]);
    for (ours, name) in [
        ("type", "type"),
        ("key_size", "bytes_key"),
        ("value_size", "bytes_value"),
        ("max_entries", "max_entries"),
        ("memory", "bytes_memlock"),
    ] {
        assert_eq!(trail[ours], theirs[name], "{ours}");
    }
    let pin = trail["pins"][0].as_str().expect("it is pinned");
    assert_eq!(bpftool(&["map", "show", "pinned", pin])["id"], theirs["id"]);
    assert_eq!(trail["used_by"][0]["name"], "copes_with_fragments_too");
    let text = succeeds(&["xdp", "maps", "--netns", &lab.pair.b.name]);
    assert!(text.contains("trail") && text.contains(pin), "{text}");
}

#[test]
fn runs_are_counted_while_measured() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    succeeds(&["xdp", "load", &place, &file, "--prog", "several_third"]);
    let status = succeeds(&["xdp", "status", "-i", &place]);
    assert!(status.contains("several_third"), "{status}");
    let measured = std::thread::scope(|scope| {
        let measuring = scope.spawn(|| succeeds(&["xdp", "status", "-i", &place, "--measure", "2s", "--json"]));
        while !measuring.is_finished() {
            lab.send(&[frames::silent(64)], 100);
        }
        measuring.join().expect("status")
    });
    let all: Value = serde_json::from_str(&measured).expect("JSON");
    let head = &all["interfaces"][0]["programs"][0];
    let runs = &head["runs"];
    assert!(runs["count"].as_u64() > Some(0), "{measured}");
    assert!(runs["ns_per_packet"].as_f64() > Some(0.0), "{measured}");
    assert_eq!(runs["seconds"], 2.0);
}

#[test]
fn programs_of_other_tools_are_distinguished() {
    let Some(lab) = Lab::open() else { return };
    let program = Loaded::skb(Does::DropLinearWithHook, &lab.pair.b).expect("a program");
    let status = status_of(&lab.receiver());
    let shown = &status["programs"][0];
    assert_eq!(shown["kind"], "plain");
    assert_eq!(shown["mode"], "skb");
    assert_eq!(shown["source"], Value::Null);
    assert_eq!(shown["id"].as_u64(), xdp_on(&lab.pair.b).map(|(id, _)| id));
    assert!(shown["link"].is_u64(), "{shown}");
    // This process holds the link.
    let holder = format!("({})", std::process::id());
    let held = shown["held_by"].as_array().expect("a list");
    assert!(held.iter().any(|one| one.as_str().is_some_and(|one| one.ends_with(&holder))), "{held:?}");
    let text = succeeds(&["xdp", "status", "--netns", &lab.pair.b.name]);
    assert!(text.contains("not loaded by trawl") && text.contains(&holder), "{text}");
    drop(program);
    let text = succeeds(&["xdp", "status", "--netns", &lab.pair.b.name]);
    assert_eq!(text, "no XDP programs\n");
}

#[test]
fn several_interfaces_and_namespaces_are_shown_at_once() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    succeeds(&["xdp", "load", &place, &file, "--prog", "several_third"]);
    let program = only_program(&place);
    let shown = |arguments: &[&str]| -> Vec<String> {
        let text = succeeds(&[&["xdp", "status", "--json"], arguments].concat());
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let interfaces = all["interfaces"].as_array().expect("a list").clone();
        interfaces.iter().map(|one| one["interface"].as_str().expect("a name").to_owned()).collect()
    };
    // Requested interfaces are shown with or without a program.
    assert_eq!(shown(&["-i", &lab.sender(), &place]), [lab.sender(), place.clone()]);
    // For namespaces, only interfaces with a program are shown.
    assert_eq!(shown(&["--netns", &a.name, &b.name]), std::slice::from_ref(&place));
    assert_eq!(shown(&["--netns", &a.name]), Vec::<String>::new());
    assert!(shown(&["--all-namespaces"]).contains(&place));
    assert_eq!(
        shown(&["-i", "lo", "--netns", &a.name, "--netns", &b.name]),
        [format!("{}:lo", a.name), format!("{}:lo", b.name)]
    );
    assert_eq!(program, only_program(&place));
}

/// A read-only command creates no directory, because the command that removes the last program would find it in use.
#[test]
fn read_only_commands_make_no_directory() {
    if !tools_or_skip(&["strace"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (near, far) = (&lab.pair.b, &lab.pair.a);
    succeeds(&["xdp", "load", &lab.receiver(), "drop"]);
    let (trace, trawl) = (lab.file("trace"), binary::path().to_str().expect("plain"));
    let strace = ["-f", "-e", "trace=mkdir,mkdirat,rmdir", "-o", &trace];
    let status = ["xdp", "status", "--netns", &near.name, &far.name];
    run("strace", &[&strace[..], &[trawl], &status].concat());
    let text = std::fs::read_to_string(&trace).expect("strace wrote it");
    assert!(!text.contains("mkdir"), "{text}");
}

/// Commands do not search all processes if names suffice, because the search is slow with thousands of processes.
#[test]
fn processes_are_not_searched_if_names_suffice() {
    if !tools_or_skip(&["strace"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (trace, trawl) = (lab.file("trace"), binary::path().to_str().expect("plain"));
    let place = lab.receiver();
    for command in [&["load", &place, "tx"][..], &["status", "-i", &place], &["unload", &place]] {
        let strace = ["-f", "-e", "trace=readlink,readlinkat,openat"];
        let traced = [&strace[..], &["-o", &trace, trawl, "xdp"], command].concat();
        run("strace", &traced);
        let text = std::fs::read_to_string(&trace).expect("strace wrote it");
        let looks = text.matches("\"/proc/1/ns/net\"").count();
        // The command searches once for leftovers of others, and once for rules.
        assert!(looks <= 2, "{command:?}: {looks} times");
    }
}

#[test]
fn interfaces_of_any_name_are_shown() {
    let Some(lab) = Lab::open() else { return };
    let name = "we.ird@-\u{e9}";
    let station = &lab.pair.b;
    let pair = ["type", "veth", "peer", "name", "other"];
    let add = ["-n", &station.name, "link", "add", "name", name];
    run("ip", &[&add[..], &pair].concat());
    let place = format!("{}:{name}", station.name);
    succeeds(&["xdp", "load", &place, "drop"]);
    let status = status_of(&place);
    assert_eq!(status["interface"], place.as_str());
    assert_eq!(status["programs"][0]["name"], "trawl_drop");
    for what in ["status", "maps", "stats"] {
        let text = succeeds(&["xdp", what, "--netns", &station.name]);
        assert!(text.contains(&place), "{text}");
    }
    succeeds(&["xdp", "unload", &place]);
}

/// An interface that vanishes between the listing and its query is left out.
#[test]
fn interface_that_vanishes_meanwhile_is_left_out() {
    let (Some(lab), Some(other)) = (Lab::open(), Lab::open()) else {
        return;
    };
    let _clean = CleanUp::of(&other);
    for place in [lab.receiver(), other.receiver()] {
        succeeds(&["xdp", "load", &place, "drop"]);
    }
    let find = |lab: &Lab| Site::find(&lab.receiver(), None).expect("it is there");
    let sites = [find(&lab), find(&other)];
    let station = &lab.pair.b;
    run("ip", &["-n", &station.name, "link", "del", &station.interface]);
    let all = status::of(&sites, None).expect("the other one is there");
    let labels: Vec<&str> = all.iter().map(|one| one.interface.as_str()).collect();
    assert_eq!(labels, [other.receiver()]);
    let left = Installed::all(&sites[0]).expect("nothing is there");
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(Installed::all(&sites[1]).expect("a program").len(), 1);
}

#[test]
fn watching_ends_with_its_reader() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    succeeds(&["xdp", "load", &place, "drop"]);
    let mut watching = Command::new(binary::path())
        .args(["xdp", "stats", &place, "--watch=10ms", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("trawl");
    let mut lines = BufReader::new(watching.stdout.take().expect("a pipe")).lines();
    for _ in 0..2 {
        let line = lines.next().expect("a line").expect("text");
        let counts: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(counts["interfaces"][0]["packets"], 0);
    }
    drop(lines);
    let mut status = None;
    wait_until("it ends", || {
        status = watching.try_wait().expect("a child");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
}

/// The status shows the targets of a redirecting program from the kernel's maps.
#[test]
fn redirect_targets_are_shown() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let add = ["link", "add", "out0", "type", "veth", "peer", "name", "out1"];
    run("ip", &[&["-n", lab.pair.b.name.as_str()], &add[..]].concat());
    for link in ["out0", "out1"] {
        let up = ["-n", lab.pair.b.name.as_str(), "link", "set", link, "up"];
        run("ip", &up);
    }
    let redirects = |options: &[&str]| {
        let load = ["xdp", "load", &place, "redirect", "--replace", "--yes"];
        succeeds(&[&load[..], options].concat());
        let text = succeeds(&["xdp", "status", "-i", &place]);
        (programs_on(&place)[0]["redirects"].clone(), text)
    };
    let interfaces = |redirect: &Value| -> Vec<String> {
        let targets = redirect["targets"].as_array().expect("a list").iter();
        let names = targets.filter_map(|one| one["interface"].as_str());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names
    };
    let (found, text) = redirects(&["--to", "out0"]);
    assert_eq!(found[0]["type"], "helper");
    assert_eq!(interfaces(&found[0]), ["out0"]);
    assert!(text.contains("redirects by bpf_redirect() to out0"), "{text}");

    let (found, text) = redirects(&["--to", "out0,out1"]);
    assert_eq!(found[0]["type"], "devmap_hash");
    assert_eq!(interfaces(&found[0]), ["out0", "out1"]);
    assert!(text.contains("devmap_hash targets"), "{text}");
    // bpftool shows the same number of targets in the map.
    let map = found[0]["map_id"].as_u64().expect("a number").to_string();
    let theirs = bpftool(&["map", "dump", "id", &map]);
    assert_eq!(theirs.as_array().map(Vec::len), Some(2), "{theirs}");

    let (found, text) = redirects(&["--to-cpu", "0", "--cpu-queue", "64"]);
    assert_eq!(found[0]["type"], "cpumap");
    let target = &found[0]["targets"][0];
    assert_eq!((&target["cpu"], &target["queue"]), (&0.into(), &64.into()));
    assert!(target["program"].is_u64() || text.contains("CPU 0 (64 may wait)"), "{text}");
}

/// iproute2 cannot replace a program that a link holds, so the status names the command that works.
#[test]
fn command_that_removes_a_program_is_named() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let said = |arguments: &[&str]| {
        let output = trawl(arguments);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    for (load, unload) in [
        (&["xdp", "load", &place, "pass"][..], "trawl xdp unload"),
        (&["guard", "load", &place], "trawl guard unload"),
        (&["route", "load", &place], "trawl route unload"),
        (&["balance", "load", &place], "trawl balance unload"),
    ] {
        succeeds(load);
        let command = format!("{unload} {place}");
        let status = said(&["xdp", "status", "-i", &place]);
        let named = status.lines().find_map(|line| line.trim().strip_prefix("to remove it: "));
        let named = named.unwrap_or_else(|| panic!("{load:?}: {status}")).to_owned();
        assert!(named.starts_with(&command), "{status}");
        assert!(said(&["doctor", "-i", &place]).contains(&command), "{load:?}");
        let refused = said(&["gen", "receive", "-i", &place]);
        assert!(refused.contains("trawl xdp status -i"), "{refused}");
        let words: Vec<&str> = named.split(' ').skip(1).collect();
        succeeds(&words);
        assert_eq!(trawl_tests::witness::xdp_on(&lab.pair.b), None);
    }
}

/// Doctor lists a hook map only for the interface of its program.
#[test]
fn doctor_lists_no_hook_maps_of_other_interfaces() {
    let (Some(one), Some(other)) = (Lab::open(), Lab::open()) else {
        return;
    };
    succeeds(&["xdp", "load", &one.receiver(), "pass", "--tappable"]);
    let doctor = |place: &str| {
        let output = trawl(&["doctor", "-i", place]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(doctor(&one.receiver()).contains("trawl_hook"));
    assert!(!doctor(&other.receiver()).contains("trawl_hook"));
    let capture = args!("capture -i {} --tap xdp --program all --duration 100ms", one.receiver());
    let output = trawl(&capture);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("no hook map") && !said.contains("--tappable"), "{said}");
    succeeds(&["xdp", "unload", &one.receiver()]);
}
