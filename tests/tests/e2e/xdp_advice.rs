//! Errors about programs that the kernel refuses have the line of the source and a fix, in addition to the verifier's
//! log.

use trawl_tests::Lab;
use trawl_tests::args;
use trawl_tests::programs::object_file;
use trawl_tests::witness::run;
use trawl_tests::xdp::{CleanUp, all_gone, fails, succeeds};

#[test]
fn mistakes_are_reported_with_a_fix() {
    let Some(lab) = Lab::open() else { return };
    let (place, file) = (lab.receiver(), object_file(&lab, "refused"));
    // Each case has the program, a part of the reported line, and a part of the advice.
    let cases = [
        ("beyond_the_end", "ethernet->h_proto", "> data_end"),
        ("checked_too_early", "verdict_of(data[3])", "resizes the packet"),
        ("nothing_found", "verdict_of(*value)", "with NULL"),
        ("without_limits", "verdict_of(value[key])", "n &= MASK"),
        ("round_and_round", "for (__u32 round", "bpf_loop()"),
        ("not_given_back", "byte_at(context, 14)", "bpf_ringbuf_submit()"),
        ("not_unlocked", "bpf_spin_", "bpf_spin_unlock()"),
        ("written_to", "rx_queue_index = 1", "struct xdp_md"),
        ("too_much_stack", "stack", "per-CPU array"),
        ("for_others", "bpf_skb_load_bytes", "no such function for XDP"),
        ("without_verdict", "exit", "return XDP_PASS"),
        ("never_set", "= r3", "set it first"),
    ];
    for (program, line, advice) in cases {
        let load = ["xdp", "load", &place, &file, "--prog", program];
        let refused = [program, "the verifier refuses it", line, advice];
        fails(&load, 1, &refused);
        fails(&[&load[..], &["--tappable"]].concat(), 1, &refused);
    }
    let file = object_file(&lab, "wide_keys");
    let load = ["xdp", "load", &place, &file];
    fails(&load, 1, &["wide_keys", "EINVAL", "an array has keys of 4 bytes"]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn programs_of_other_types_are_named() {
    let Some(lab) = Lab::open() else { return };
    let (place, file) = (lab.receiver(), object_file(&lab, "redirecting"));
    let refused = |file: &str, name: &str, words: &[&str]| {
        let load = ["xdp", "load", &place, file, "--prog", name];
        fails(&load, 1, words);
    };
    refused(&file, "at_device", &["at_device", "devmap", "redirecting"]);
    refused(&file, "xdp/cpumap", &["at_cpu", "cpumap", "redirecting"]);
    let several = object_file(&lab, "tail_calls");
    refused(&several, "xdp", &["several of its programs", "second, tail_calls, third"]);
    let mixed = object_file(&lab, "mixed");
    refused(&mixed, "for_tc", &["for_tc (section tc) is not an XDP program", "for_xdp"]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn maps_that_differ_from_the_pinned_ones_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let (place, file) = (lab.receiver(), object_file(&lab, "several"));
    let directory = format!("/sys/fs/bpf/{}-other/deep/er", lab.pair.b.name);
    let pin = format!("{directory}/calls");
    let load = args!("xdp load {place} {file} --prog several_third --pin-maps {directory}");
    // Missing directories are created, and removed with the program.
    succeeds(&load);
    assert!(std::path::Path::new(&pin).exists());
    succeeds(&["xdp", "unload", &place]);
    let first = format!("/sys/fs/bpf/{}-other", lab.pair.b.name);
    assert!(!std::path::Path::new(&first).exists());

    std::fs::create_dir_all(&directory).expect("the BPF file system");
    let create = ["map", "create", &pin, "type", "hash", "key", "8", "value", "2", "entries", "5", "name", "calls"];
    run("bpftool", &create);
    fails(&load, 1, &[&pin, "hash, with 5 entries, keys of 8 and values of 2 bytes", "another directory"]);
    std::fs::remove_file(&pin).expect("a pin");
    run("bpftool", &["prog", "load", &object_file(&lab, "old_section"), &pin, "type", "xdp"]);
    fails(&load, 1, &[&pin, "is not a map"]);
    std::fs::remove_file(&pin).expect("a pin");
    std::fs::create_dir(&pin).expect("the BPF file system");
    fails(&load, 1, &[&pin, "is a directory", "rmdir"]);
    std::fs::remove_dir(&pin).expect("empty");
    for directory in [directory.as_str(), &format!("{first}/deep"), &first] {
        std::fs::remove_dir(directory).expect("empty");
    }
    let dotted = format!("/sys/fs/bpf/{}.maps", lab.pair.b.name);
    let load = args!("xdp load {place} {file} --prog several_third --pin-maps {dotted}");
    fails(&load, 1, &["dot"]);
    all_gone(&lab, &[], &[]);
}

#[test]
fn interface_is_found_by_its_alternative_names() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let station = &lab.pair.b;
    for other in ["short", "a-name-that-is-longer-than-fifteen"] {
        let name = station.interface.as_str();
        run("ip", &args!("-n {} link property add dev {name} altname {other}", station.name));
        let place = format!("{}:{other}", station.name);
        let said = succeeds(&["xdp", "load", &place, "drop"]);
        assert!(said.contains(&lab.receiver()), "{said}");
        let said = succeeds(&["xdp", "status", "-i", &place]);
        assert!(said.contains("trawl_drop"), "{said}");
        succeeds(&["xdp", "unload", &place]);
    }
    all_gone(&lab, &[], &[]);
}
