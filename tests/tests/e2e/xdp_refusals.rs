//! Programs that cannot be loaded are refused with the reason and the command that fixes it, and leave nothing.

use std::os::unix::fs::PermissionsExt;

use trawl_lab::PairOptions;
use trawl_tests::programs::{object, object_file};
use trawl_tests::witness::{output, run, xdp_on};
use trawl_tests::xdp::{CleanUp, all_gone, fails, programs_on, succeeds};
use trawl_tests::{Lab, args, binary};

#[test]
fn files_that_are_no_objects_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let place = lab.receiver();
    let refused = |file: &str, words: &[&str]| {
        fails(&["xdp", "load", &place, file], 1, &[&[file], words].concat());
    };
    let written = |name: &str, bytes: &[u8]| {
        let path = lab.file(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    refused(&lab.file("missing.o"), &["No such file"]);
    refused(&lab.file(""), &["not a file"]);
    refused(&written("empty.o", b""), &["empty"]);
    refused(&written("text.c", b"#include <linux/bpf.h>\n"), &["source text", "clang"]);
    refused(&written("noise.o", &[7; 500]), &["not an ELF object", "clang"]);
    let several = object("several");
    refused(&written("cut.o", &several[..200]), &["cut.o"]);
    let half = &several[..several.len() / 2];
    refused(&written("half.o", half), &["truncated or damaged", "clang"]);
    let with = |at: usize, value: u8| {
        let mut bytes = several.to_vec();
        bytes[at] = value;
        bytes
    };
    refused(&written("narrow.o", &with(4, 1)), &["32-bit", "clang"]);
    let order = 3 - several[5];
    let words = ["-endian machines, and this one is", "clang"];
    refused(&written("turned.o", &with(5, order)), &words);
    let stripped = without_symbols(several);
    refused(&written("stripped.o", &stripped), &["strip", "clang"]);
    refused("/bin/true", &["not one for BPF", "clang"]);
    refused(&object_file(&lab, "no_xdp"), &["no XDP program", "for_tc", "tc"]);
    refused(&object_file(&lab, "old_maps"), &["its maps are in the old format", "SEC(\".maps\")"]);
    all_gone(&lab, &[], &[]);
}

/// Returns the object without its symbol table, as left by `llvm-strip`: its section header has no data.
fn without_symbols(object: &[u8]) -> Vec<u8> {
    const SYMBOLS: [u8; 4] = 2u32.to_ne_bytes();
    let mut bytes = object.to_vec();
    let number = |at: usize, length: usize| {
        let digits = object[at..at + length].iter().rev();
        digits.fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    // These fields have the offset, the size and the number of the section headers.
    let (headers, size, count) = (number(40, 8), number(58, 2), number(60, 2));
    for header in (0..count).map(|index| headers + index * size) {
        if bytes[header + 4..header + 8] == SYMBOLS {
            bytes[header + 4..header + 8].fill(0);
        }
    }
    bytes
}

#[test]
fn cut_and_changed_objects_cause_no_crash() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let whole = object("several");
    for step in 1..24 {
        let mut bytes = whole.to_vec();
        match step % 2 {
            0 => bytes.truncate(whole.len() * step / 24),
            _ => bytes[whole.len() * step / 24] ^= 0xff,
        }
        let path = lab.file("changed.o");
        std::fs::write(&path, bytes).expect("a file");
        let output = trawl_tests::trawl(&["xdp", "load", &place, &path, "--prog", "several_third"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked"), "{said}");
        match output.status.code() {
            Some(0) => drop(succeeds(&["xdp", "unload", &place])),
            code => assert_eq!(code, Some(1), "{said}"),
        }
    }
    all_gone(&lab, &[], &[]);
}

#[test]
fn verifier_refusal_is_shown_with_its_line() {
    let Some(lab) = Lab::open() else { return };
    let file = object_file(&lab, "out_of_bounds");
    fails(
        &["xdp", "load", &lab.receiver(), &file],
        1,
        &[
            "out_of_bounds",
            "the verifier refuses it",
            "invalid access to packet",
            "return data[3] ? XDP_PASS : XDP_DROP;",
        ],
    );
    all_gone(&lab, &[], &[]);
}

/// Maps with the names of hooks are refused, because captures find the hooks by the names of their maps.
#[test]
fn maps_named_like_hooks_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "own_names"));
    let words = ["own_names", "a map named trawl_hook", "another name"];
    fails(&["xdp", "load", &place, &file, "--tappable"], 1, &words);
    all_gone(&lab, &[], &[]);
    // Without added hooks, the names are unambiguous.
    succeeds(&["xdp", "load", &place, &file]);
    let programs = programs_on(&place);
    assert_eq!(programs[0]["maps"].as_array().map(Vec::len), Some(2));
    fails(&["capture", "-i", &place, "--tap", "tailcall", "-c", "1"], 1, &["own_names"]);
    succeeds(&["xdp", "load", &place, "pass", "--replace"]);
    succeeds(&["xdp", "unload", &place]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn gpl_only_function_is_not_blamed_on_hooks() {
    let Some(lab) = Lab::open() else { return };
    let (place, file) = (lab.receiver(), object_file(&lab, "no_licence"));
    for more in [&[][..], &["--tappable"], &["--prio", "5"]] {
        let load = [&["xdp", "load", &place, &file][..], more].concat();
        fails(&load, 1, &["cannot load no_licence", "GPL", "LICENSE"]);
    }
    all_gone(&lab, &[], &[]);
}

#[test]
fn maps_need_type_information() {
    let Some(lab) = Lab::open() else { return };
    let mut bytes = object("several").to_vec();
    for at in 0..bytes.len() - 4 {
        if &bytes[at..at + 4] == b".BTF" {
            bytes[at + 1] = b'X';
        }
    }
    let file = lab.file("untyped.o");
    std::fs::write(&file, bytes).expect("a file");
    let place = lab.receiver();
    let load = ["xdp", "load", &place, &file, "--prog", "several_third"];
    fails(&load, 1, &["type information", "-g"]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn unknown_interfaces_and_namespaces_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let file = object_file(&lab, "several");
    let station = &lab.pair.b;
    let nowhere = format!("{}:nowhere", station.name);
    for arguments in [
        &["xdp", "load", &nowhere, &file][..],
        &["xdp", "unload", &nowhere],
        &["xdp", "status", "-i", &nowhere],
        &["xdp", "maps", "-i", &nowhere],
    ] {
        fails(arguments, 1, &["nowhere", "does not exist", &station.interface]);
    }
    fails(&["xdp", "status", "--netns", "trawl-no-such"], 1, &["trawl-no-such", "does not exist"]);
    fails(&["xdp", "load", &lab.receiver()], 2, &["FILE.o"]);
    fails(&["xdp", "load", &lab.receiver(), &file, "--mode", "warp"], 2, &["warp", "native"]);
    fails(&["xdp", "unload", &lab.receiver(), "1", "--all"], 2, &["--all"]);
}

#[test]
fn driver_without_xdp_falls_back_to_skb_mode() {
    let Some(lab) = Lab::open() else { return };
    let place = format!("{}:lo", lab.pair.b.name);
    let _clean = CleanUp(place.clone());
    let file = object_file(&lab, "several");
    let load = ["xdp", "load", &place, &file, "--prog", "several_third"];
    fails(&[&load[..], &["--mode", "native"]].concat(), 1, &["native XDP", "--mode skb"]);
    // By default, the load falls back to skb mode.
    let said = succeeds(&load);
    assert!(said.contains("skb mode"), "{said}");
    succeeds(&["xdp", "unload", &place]);
    fails(&args!("xdp load {} {file} --prog several_third --mode hw", lab.receiver()), 1, &["card", "--mode native"]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn mtu_too_large_for_native_mode_is_refused() {
    let options = PairOptions { mtu: 9000, ..PairOptions::default() };
    let Some(lab) = Lab::with(options) else {
        return;
    };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    let load = ["xdp", "load", &place, &file, "--prog"];
    let fix = format!("ip netns exec {} ip link set {} mtu", lab.pair.a.name, lab.pair.a.interface);
    fails(&[&load[..], &["several_third"]].concat(), 1, &["MTU", "9000", &fix, "xdp.frags", "--mode skb"]);
    assert_eq!(xdp_on(&lab.pair.b), None);
    // A program that accepts packets in several pieces can be loaded.
    succeeds(&[&load[..], &["several_second"]].concat());
    assert_eq!(xdp_on(&lab.pair.b).expect("a program").1, "native");
    succeeds(&["xdp", "unload", &place]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn program_on_the_bridge_above_is_a_conflict() {
    let Some(lab) = Lab::open() else { return };
    let (name, interface) = (&lab.pair.b.name, &lab.pair.b.interface);
    let make = ["-n", name, "link", "add", "bridge", "type", "bridge"];
    if !output("ip", &make).status.success() {
        eprintln!("SKIPPED: this kernel has no bridges");
        return;
    }
    run("ip", &["-n", name, "link", "set", interface, "master", "bridge"]);
    let bridge = format!("{name}:bridge");
    let clean = CleanUp(bridge.clone());
    succeeds(&["xdp", "load", &bridge, "pass"]);
    let fix = format!("trawl xdp unload {bridge} --all");
    for load in [&["xdp", "load", &lab.receiver(), "drop"][..], &["guard", "load", &lab.receiver()]] {
        fails(load, 1, &["is above it", &fix]);
    }
    drop(clean);
    succeeds(&["xdp", "load", &lab.receiver(), "drop"]);
    succeeds(&["xdp", "unload", &lab.receiver()]);
    run("ip", &["-n", name, "link", "del", "bridge"]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn too_few_queues_for_native_mode_are_reported() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file, station) = (lab.receiver(), object_file(&lab, "several"), &lab.pair.b);
    let name = station.interface.as_str();
    let ethtool = |queues: &str| run("ip", &args!("netns exec {} ethtool -L {name} rx {queues}", station.name));
    ethtool("1");
    let load = ["xdp", "load", &place, &file, "--prog", "several_third"];
    let fix = format!("ip netns exec {} ethtool -L {name} rx 2", station.name);
    fails(&load, 1, &["1 receive queues", "2 send queues", &fix]);
    ethtool("2");
    succeeds(&load);
}

#[test]
fn missing_privileges_are_named() {
    let Some(lab) = Lab::open() else { return };
    // The copy is in a directory that all users may read, whichever user built trawl.
    let (copy, file) = (lab.file("trawl"), object_file(&lab, "several"));
    binary::copy(binary::path(), &copy);
    for path in [copy.as_str(), &lab.file(""), &file] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let nobody = args!(
        "--reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
         --no-new-privs"
    );
    let load = args!("{copy} xdp load lo {file} --prog several_third");
    let refused = output("setpriv", &[&nobody[..], &load].concat());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("root") || said.contains("CAP_"), "{said}");
    // Reading needs no rights.
    let shown = output("setpriv", &[&nobody[..], &[copy.as_str(), "xdp", "status", "-i", "lo"]].concat());
    assert_eq!(shown.status.code(), Some(0), "{}", String::from_utf8_lossy(&shown.stderr));
    // Programs that only root can see are reported neither as another tool's nor as absent.
    let _clean = CleanUp::of(&lab);
    succeeds(&["xdp", "load", &lab.receiver(), "drop"]);
    let network = format!("--net=/run/netns/{}", lab.pair.b.name);
    let setpriv = [&[network.as_str(), "setpriv"], &nobody[..]].concat();
    for command in [
        &["xdp", "status"][..],
        &["xdp", "maps"],
        &["xdp", "stats"],
        &["xdp", "unload", "veth0"],
        &["guard", "stats"],
        &["route", "stats"],
    ] {
        let asked = output("nsenter", &[&setpriv[..], &[copy.as_str()], command].concat());
        let said = String::from_utf8_lossy(&asked.stderr);
        assert_eq!(asked.status.code(), Some(1), "{command:?}: {said}");
        let words = ["cannot read the program on veth0 (id", "this requires root"];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(asked.stdout.is_empty(), "{command:?}");
    }
}

/// The verifier's whole log is written on request, for refused and for accepted programs.
#[test]
fn whole_verifier_log_is_written_on_request() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, log) = (lab.receiver(), lab.file("verifier.log"));
    let refused = object_file(&lab, "out_of_bounds");
    let options = ["--verifier-log", &log];
    let load = ["xdp", "load", &place];
    fails(&[&load[..], &[&refused], &options].concat(), 1, &["the verifier refuses it"]);
    let text = std::fs::read_to_string(&log).expect("a log");
    // The log has each instruction, and the final count, which the message omits.
    for part in [", refused: Permission denied", "0: (", "processed "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    succeeds(&[&load[..], &["drop"], &options].concat());
    let text = std::fs::read_to_string(&log).expect("a log");
    assert!(text.starts_with("== trawl_drop, accepted") && text.contains("processed "), "{text}");
    succeeds(&["filter", "--check", "--verifier-log", &log, "udp"]);
    let text = std::fs::read_to_string(&log).expect("a log");
    assert!(text.starts_with("== trawl_check, accepted") && text.contains("0: ("), "{text}");
}
