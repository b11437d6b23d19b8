//! Links identify an interface by its number, which interfaces in other namespaces share: their programs are not
//! removed by mistake.

use std::os::fd::OwnedFd;

use trawl_bpf::link;
use trawl_bpf::object::{LAB_XDP, Plain};
use trawl_lab::Station;
use trawl_sys::netlink::XdpMode;
use trawl_sys::netns::run_in;
use trawl_tests::Lab;
use trawl_tests::witness::{nothing_attached, run, xdp_on};
use trawl_tests::xdp::{fails, status_of, succeeds};

fn linked(program: &Plain, station: &Station) -> OwnedFd {
    let attach = || link::attach_xdp(program.program(), station.index, XdpMode::Native);
    let attached = run_in(&station.namespace, attach).expect("the namespace");
    attached.expect("a link")
}

/// Interfaces with the same number and the same program are distinguished: in a lab, both ends have the same number.
#[test]
fn interfaces_of_the_same_number_with_one_program_are_distinguished() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    assert_eq!(a.index, b.index);
    let program = Plain::load(LAB_XDP, "lab_drop").unwrap_or_else(|e| panic!("{e}"));
    let (on_a, on_b) = (linked(&program, a), linked(&program, b));
    let (id, place) = (xdp_on(b).expect("a program").0.to_string(), lab.receiver());
    let shown = &status_of(&place)["programs"][0];
    assert!(shown["link"].is_null(), "{shown}");
    assert_eq!(shown["one_of_links"].as_array().map(Vec::len), Some(2), "{shown}");
    let words = ["2 links", "different namespaces"];
    fails(&["xdp", "unload", &place, &id], 1, &words);
    fails(&["xdp", "unload", &place, "--all"], 1, &words);
    fails(&["xdp", "load", &place, "drop", "--replace"], 1, &words);
    for station in [a, b] {
        assert!(xdp_on(station).is_some(), "{}", station.name);
    }
    drop(on_a);
    succeeds(&["xdp", "unload", &place, &id]);
    nothing_attached(b);
    drop(on_b);
}

/// The link of the other interface, which has the same number, is not mistaken for a link of this interface.
#[test]
fn netlink_program_is_not_taken_for_another_namespaces_link() {
    let Some(lab) = Lab::open() else { return };
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let program = Plain::load(LAB_XDP, "lab_drop").unwrap_or_else(|e| panic!("{e}"));
    let on_a = linked(&program, a);
    let id = xdp_on(a).expect("a program").0.to_string();
    let namespace = format!("--net=/run/netns/{}", b.name);
    let attach = ["bpftool", "net", "attach", "xdpdrv", "id", &id, "dev", &b.interface];
    for unload in [vec!["unload"], vec!["load", "drop", "--replace"]] {
        run("nsenter", &[&[namespace.as_str()], &attach[..]].concat());
        let place = lab.receiver();
        match unload.as_slice() {
            ["unload"] => succeeds(&["xdp", "unload", &place, &id]),
            _ => succeeds(&["xdp", "load", &place, "drop", "--replace"]),
        };
        assert!(xdp_on(a).is_some(), "the command was not about this interface");
        succeeds(&["xdp", "status", "-i", &place]);
    }
    succeeds(&["xdp", "unload", &lab.receiver()]);
    nothing_attached(b);
    drop(on_a);
}
