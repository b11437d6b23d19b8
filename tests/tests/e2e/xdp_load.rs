//! Loaded programs stay until they are unloaded, and then leave nothing.

use std::path::Path;

use serde_json::Value;
use trawl_tests::programs::object_file;
use trawl_tests::witness::{is_loaded, number_in, output, run, xdp_on};
use trawl_tests::xdp::{CleanUp, all_gone, fails, only_program, pins_of, programs_on, status_of, succeeds};
use trawl_tests::{Lab, args, binary, frames, wait_until};

/// Returns the id of a program's map of that name, by bpftool.
#[track_caller]
fn map_of(program: u64, name: &str) -> u64 {
    let show = |arguments: &[&str]| -> Value {
        let text = run("bpftool", &[&["-j"], arguments].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let about = show(&["prog", "show", "id", &program.to_string()]);
    let ids = about["map_ids"].as_array().cloned().unwrap_or_default();
    let found =
        ids.iter().filter_map(Value::as_u64).find(|id| show(&["map", "show", "id", &id.to_string()])["name"] == name);
    found.unwrap_or_else(|| panic!("program {program} has no map {name}"))
}

#[test]
fn loaded_program_runs_until_it_is_unloaded() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    let said = succeeds(&["xdp", "load", &place, &file, "--prog", "several_third"]);
    assert!(said.contains("several_third") && said.contains("native"), "{said}");
    let (_, mode) = xdp_on(&lab.pair.b).expect("a program");
    assert_eq!(mode, "native");
    let program = only_program(&place);
    assert!(said.contains(&program.to_string()), "{said}");
    let calls = map_of(program, "calls");
    lab.send(&[frames::silent(64)], 5);
    wait_until("five packets are counted", || number_in(calls) == 5);
    let said = succeeds(&["xdp", "unload", &place]);
    assert!(said.contains(&program.to_string()), "{said}");
    all_gone(&lab, &[program], &[calls]);
    fails(&["xdp", "unload", &place], 1, &["no XDP program"]);
}

/// Optional programs of an object, one of which the kernel refuses, are not loaded with the others.
#[test]
fn optional_programs_are_not_loaded_with_the_others() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), lab.file("lab.o"));
    std::fs::write(&file, trawl_bpf::object::LAB_XDP).expect("a file");
    succeeds(&["xdp", "load", &place, &file, "--prog", "lab_drop_hook"]);
    only_program(&place);
    succeeds(&["xdp", "unload", &place]);
}

#[test]
fn programs_are_found_however_the_namespace_is_entered() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (station, file) = (&lab.pair.b, object_file(&lab, "several"));
    // `ip netns exec` mounts another /sys, without a BPF file system, over the real one.
    let trawl = binary::path().to_str().expect("plain");
    let inside = ["netns", "exec", &station.name, trawl, "xdp"];
    let name = station.interface.as_str();
    let maps = format!("/sys/fs/bpf/{}-maps", station.name);
    run("ip", &[&inside[..], &args!("load {name} {file} --prog several_first --pin-maps {maps}")].concat());
    assert!(Path::new(&pins_of(station)).is_dir());
    let program = only_program(&lab.receiver());
    let shown = run("ip", &[&inside[..], &["status", "-i", name, "--json"]].concat());
    assert!(shown.contains(&format!("\"id\":{program}")), "{shown}");
    assert!(Path::new(&maps).join("calls").exists());
    // Printed paths are valid in every process.
    assert!(!shown.contains("/proc/"), "{shown}");
    // The program can also be unloaded from outside the namespace.
    succeeds(&["xdp", "unload", name, "--netns", &station.name]);
    assert!(!Path::new(&maps).exists());
    all_gone(&lab, &[program], &[]);
}

#[test]
fn one_of_several_programs_is_chosen_by_name() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    let names = ["several_first", "several_second", "several_third"];
    fails(&["xdp", "load", &place, &file], 1, &[&["several XDP programs", "--prog"], &names[..]].concat());
    fails(&["xdp", "load", &place, &file, "--prog", "fourth"], 1, &[&["no XDP program fourth"], &names[..]].concat());
    // Only one program is in this section.
    succeeds(&["xdp", "load", &place, &file, "--prog", "xdp.frags"]);
    assert_eq!(programs_on(&place)[0]["name"], "several_second");
    succeeds(&["xdp", "unload", &place]);
    let old = object_file(&lab, "old_section");
    succeeds(&["xdp", "load", &place, &old]);
    assert_eq!(programs_on(&place)[0]["name"], "old_section");
    succeeds(&["xdp", "unload", &place]);
    let elsewhere = ["xdp", "load", &place, &old, "--prog", "on_the_way_out"];
    fails(&elsewhere, 1, &["devmap", "old_section"]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn program_is_replaced_only_on_request() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, station) = (lab.receiver(), &lab.pair.b);
    let file = object_file(&lab, "several");
    // Another tool has attached a program by netlink.
    let theirs = object_file(&lab, "old_section");
    let object =
        args!("-n {} link set dev {} xdpdrv object {theirs} section xdp_filter", station.name, station.interface);
    if !output("ip", &object).status.success() {
        // iproute2 without libbpf accepts only its own kind of map.
        let name = station.interface.as_str();
        let pin = format!("/sys/fs/bpf/{}-theirs", station.name);
        run("bpftool", &["prog", "load", &theirs, &pin, "type", "xdp"]);
        let namespace = format!("--net=/run/netns/{}", station.name);
        let attach = ["bpftool", "net", "attach", "xdpdrv", "pinned", &pin, "dev", name];
        run("nsenter", &[&[namespace.as_str()], &attach[..]].concat());
        std::fs::remove_file(pin).expect("the pin");
    }
    let (first, _) = xdp_on(station).expect("a program");
    let load = ["xdp", "load", &place, &file, "--prog", "several_first"];
    fails(&load, 1, &["old_section", "--replace", "trawl xdp unload"]);
    assert_eq!(xdp_on(station).expect("still there").0, first);
    // trawl did not load the program, so the command must name it.
    fails(&["xdp", "unload", &place], 1, &[&first.to_string(), "--all"]);
    succeeds(&[&load[..], &["--replace"]].concat());
    let second = only_program(&place);
    assert_eq!(programs_on(&place)[0]["name"], "several_first");
    trawl_tests::witness::wait_unloaded(first);
    for mode in ["skb", "native"] {
        succeeds(&[&load[..], &["--replace", "--mode", mode]].concat());
        assert_eq!(xdp_on(station).expect("a program").1, mode);
    }
    let last = only_program(&place);
    assert_ne!(second, last);
    trawl_tests::witness::wait_unloaded(second);
    succeeds(&["xdp", "unload", &place, &last.to_string()]);
    all_gone(&lab, &[first, second, last], &[]);
}

/// A bridge has no native XDP. The attempt in native mode, which is made first, must not end the link of the program in
/// skb mode.
#[test]
fn program_of_a_driver_without_native_xdp_is_replaced() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let station = &lab.pair.b;
    let place = format!("{}:bridge0", station.name);
    run("ip", &args!("-n {} link add bridge0 type bridge", station.name));
    succeeds(&["xdp", "load", &place, "pass", "--mode", "skb"]);
    let mut before = only_program(&place);
    for (name, more) in [("drop", &[][..]), ("pass", &["--tappable"]), ("drop", &["--mode", "skb"]), ("pass", &[])] {
        let said = succeeds(&[&["xdp", "load", &place, name, "--replace"][..], more].concat());
        assert!(said.contains("skb mode"), "{said}");
        let program = only_program(&place);
        assert_ne!(program, before);
        trawl_tests::witness::wait_unloaded(before);
        before = program;
    }
    succeeds(&["xdp", "unload", &place]);
    all_gone(&lab, &[before], &[]);
}

#[test]
fn exclusive_program_explains_how_to_chain_it() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    succeeds(&["xdp", "load", &place, "drop"]);
    let load = ["xdp", "load", &place, &file, "--prog", "several_second"];
    fails(&load, 1, &["trawl_drop", "--prio", "--replace"]);
    succeeds(&["xdp", "load", &place, "drop", "--replace", "--prio", "90"]);
    succeeds(&load);
    let names: Vec<_> =
        programs_on(&place).iter().map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(names, ["several_second", "trawl_drop"]);
    let status = succeeds(&["xdp", "status", "-i", &place]);
    for words in ["1. priority 50", "2. priority 90", "next program runs after pass"] {
        assert!(status.contains(words), "{status}");
    }
    succeeds(&["xdp", "unload", &place, "--all"]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn program_of_another_tool_is_removed_by_its_number() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let held = trawl_lab::program::Loaded::native(trawl_lab::program::Does::Drop, &lab.pair.b).expect("a program");
    let status = status_of(&place);
    let program = &status["programs"][0];
    assert_eq!((&program["kind"], &program["name"]), (&"plain".into(), &"lab_drop".into()));
    let id = program["id"].as_u64().expect("a number");
    fails(&["xdp", "unload", &place, "1"], 1, &["program 1 is not on it", &id.to_string()]);
    succeeds(&["xdp", "unload", &place, &id.to_string()]);
    assert_eq!(xdp_on(&lab.pair.b), None);
    drop(held);
}

#[test]
fn maps_are_pinned_and_shared_by_name() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    let directory = format!("/sys/fs/bpf/{}-maps", lab.pair.b.name);
    let load = args!("xdp load {place} {file} --pin-maps {directory} --prog");
    succeeds(&[&load[..], &["several_third"]].concat());
    let (program, pin) = (only_program(&place), format!("{directory}/calls"));
    let calls = map_of(program, "calls");
    let shown = run("bpftool", &["-j", "map", "show", "pinned", &pin]);
    assert!(shown.contains(&format!("\"id\":{calls},")), "{shown}");
    lab.send(&[frames::silent(64)], 3);
    wait_until("three packets are counted", || number_in(calls) == 3);
    // The next program continues with the existing contents.
    succeeds(&[&load[..], &["several_first", "--replace"]].concat());
    assert_eq!(map_of(only_program(&place), "calls"), calls);
    assert!(Path::new(&pin).exists());
    // A program on another interface uses the same maps. The unload of the last program removes the pins.
    let other = lab.sender();
    let _clean_other = CleanUp(other.clone());
    succeeds(&[&["xdp", "load", &other][..], &load[3..], &["several_third"]].concat());
    assert_eq!(map_of(only_program(&other), "calls"), calls);
    succeeds(&["xdp", "unload", &place]);
    assert!(Path::new(&pin).exists());
    succeeds(&["xdp", "unload", &other]);
    assert!(!Path::new(&directory).exists());
    all_gone(&lab, &[program], &[calls]);
    let elsewhere = lab.file("maps");
    fails(
        &args!("xdp load {place} {file} --pin-maps {elsewhere} --prog several_third"),
        1,
        &[&elsewhere, "/sys/fs/bpf"],
    );
    assert!(!Path::new(&elsewhere).exists());
    all_gone(&lab, &[], &[]);
}

#[test]
fn program_arrays_stay_filled() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "tail_calls"));
    succeeds(&["xdp", "load", &place, &file, "--prog", "tail_calls"]);
    let program = only_program(&place);
    let jumps = map_of(program, "jumps");
    let slots = trawl_tests::witness::slots(jumps as u32);
    assert_eq!(slots.len(), 2);
    assert!(slots.iter().all(|(_, program)| is_loaded(*program)));
    succeeds(&["xdp", "unload", &place]);
    let targets: Vec<u64> = slots.iter().map(|(_, program)| *program).collect();
    all_gone(&lab, &[&targets[..], &[program]].concat(), &[jumps]);
}

/// Program arrays that can only be reached by jumps through other arrays also stay filled.
#[test]
fn program_arrays_reached_by_jumps_stay_filled() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "onwards"));
    for more in [&[][..], &["--tappable"]] {
        let load = ["xdp", "load", &place, &file, "--prog", "onwards"];
        // Behind a dispatcher, the program replaces a function, and a jump to it is impossible.
        if more.is_empty() && trawl_bpf::probe::KernelFeature::Freplace.probe().is_supported() {
            fails(&load, 1, &["onwards", "dispatcher", "--tappable"]);
            continue;
        }
        succeeds(&[&load[..], more].concat());
        let program = only_program(&place);
        let mut last = program;
        for array in ["to_second", "to_third", "to_first"] {
            let slots = trawl_tests::witness::slots(map_of(last, array) as u32);
            assert_eq!(slots.len(), 1, "{array} with {more:?}");
            last = slots[0].1;
        }
        succeeds(&["xdp", "unload", &place]);
        all_gone(&lab, &[program, last], &[]);
    }
}

#[test]
fn leftovers_of_a_vanished_interface_are_removed() {
    let Some(lab) = Lab::open() else { return };
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    succeeds(&["xdp", "load", &place, &file, "--prog", "several_third"]);
    let (program, station) = (only_program(&place), &lab.pair.b);
    let pins = pins_of(station);
    assert!(Path::new(&pins).is_dir());
    run("ip", &["-n", &station.name, "link", "del", &station.interface]);
    // A single program is recognised as a leftover by its link, and one behind a dispatcher only by its namespace.
    if trawl_bpf::probe::KernelFeature::Freplace.probe().is_supported() {
        return;
    }
    wait_until("no other command holds the leftovers, and they are removed", || {
        succeeds(&["doctor", "--clean"]);
        !Path::new(&pins).exists()
    });
    trawl_tests::witness::wait_unloaded(program);
}

#[test]
fn actions_are_reported_as_json_too() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    let json = |arguments: &[&str]| -> Value {
        let text = succeeds(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let loaded = json(&["xdp", "load", &place, &file, "--prog", "several_third"]);
    let id = only_program(&place);
    assert_eq!(loaded["id"], id);
    assert_eq!(loaded["name"], "several_third");
    assert_eq!(loaded["mode"], "native");
    assert_eq!(loaded["interface"], place.as_str());
    assert_eq!(loaded["source"], file.as_str());
    let gone = json(&["xdp", "unload", &place]);
    assert_eq!(gone["unloaded"], serde_json::json!([id]));
    let loaded = json(&["xdp", "load", &place, "tx"]);
    let notices = loaded["notices"].as_array().expect("a list");
    assert!(!notices.is_empty(), "{loaded}");
    json(&["xdp", "unload", &place, "--all"]);
    all_gone(&lab, &[], &[]);
}

/// While a command works on an interface, its pins may look like leftovers to others.
#[test]
fn pins_of_a_running_command_are_kept() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    succeeds(&["xdp", "load", &place, "drop"]);
    let link = status_of(&place)["programs"][0]["link"].to_string();
    let pins = pins_of(&lab.pair.b);
    // During a change of the mode, a program is detached and still pinned.
    let held = std::fs::File::open(&pins).expect("the directory of the pins");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    run("bpftool", &["link", "detach", "id", &link]);
    succeeds(&["doctor", "--clean"]);
    let program = || std::fs::read_dir(&pins).map_or(0, Iterator::count);
    assert_eq!(program(), 1, "another command holds the pins");
    drop(held);
    wait_until("the pins are removed once no command holds them", || {
        succeeds(&["doctor", "--clean"]);
        !Path::new(&pins).exists()
    });
}

/// Each of these commands also accepts the interface after `-i`.
#[test]
fn interfaces_are_accepted_by_i_too() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    succeeds(&["xdp", "load", "-i", &place, "drop"]);
    // Commands of other tests hold each program of the host for a moment, while they list them.
    let printed = |arguments: &[&str]| -> Vec<String> {
        let lines = succeeds(arguments);
        let is_of_this_test = |line: &&str| !line.contains("held by trawl (");
        lines.lines().filter(is_of_this_test).map(str::to_owned).collect()
    };
    for command in ["status", "maps", "stats"] {
        let by_option = printed(&["xdp", command, "-i", &place]);
        assert!(by_option.concat().contains(&place), "{command}: {by_option:?}");
        assert_eq!(printed(&["xdp", command, &place]), by_option, "{command}");
    }
    fails(&["xdp", "load", "-i", &place, &place, "drop"], 2, &["given twice"]);
    fails(&["xdp", "load", &place], 2, &["missing"]);
}

#[test]
fn chain_actions_are_chosen_at_load() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "chosen"));
    let load = ["xdp", "load", &place, &file, "--prio", "10", "--on"];
    fails(&[&load[..], &["pass,none"]].concat(), 2, &["none is not a verdict"]);
    succeeds(&[&load[..], &["pass,drop"]].concat());
    succeeds(&["xdp", "load", &place, "pass", "--prio", "90"]);
    let said = succeeds(&["xdp", "status", &place]);
    assert!(said.contains("next program runs after drop, pass"), "{said}");
}
