//! `trawl doctor`'s findings on real interfaces: faults are found, and the suggested commands fix them.

use std::os::fd::AsFd;
use std::process::Command;

use trawl_bpf::probe::KernelFeature;
use trawl_bpf::program::{ATTACH_TCX_INGRESS, ATTACH_XDP, LoadOptions, SCHED_CLS, XDP, returning};
use trawl_bpf::{link, map, program};
use trawl_capture::doctor::{self, CheckState, Finding};
use trawl_lab::{Pair, PairOptions, Station};
use trawl_sys::netlink::tc::{Direction, FilterHandle};
use trawl_sys::netns;

fn root_or_skip() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root {
        eprintln!("SKIPPED: not root");
    }
    root
}

fn examine(station: &Station) -> Vec<Finding> {
    doctor::interface(Some(&station.namespace), &station.interface).unwrap()
}

fn find<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.subject == subject);
    found.unwrap_or_else(|| panic!("no {subject} in {findings:#?}"))
}

/// Checks that the finding is a warning and that its command fixes it.
fn fixes(station: &Station, subject: &str) {
    let before = examine(station);
    let finding = find(&before, subject);
    assert_eq!(finding.state, CheckState::Warn, "{finding:?}");
    let command = finding.fix.as_deref().unwrap();
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}");
    let after = examine(station);
    assert_eq!(find(&after, subject).state, CheckState::Ok, "after {command}");
}

#[test]
fn fresh_lab_has_nothing_to_fix() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions::default()).unwrap();
    for station in [&pair.a, &pair.b] {
        let findings = examine(station);
        let bad: Vec<_> =
            findings.iter().filter(|f| matches!(f.state, CheckState::Warn | CheckState::Problem)).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        assert!(find(&findings, "tap xdp").text.contains("native"), "{findings:#?}");
        assert_eq!(find(&findings, "link").area, format!("{}:veth0", station.name));
    }
}

#[test]
fn disabled_gro_is_found_on_both_ends_and_fixed() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions { gro: false, ..PairOptions::default() }).unwrap();
    let findings = examine(&pair.a);
    let expected = format!("ip netns exec {} ethtool -K veth0 gro on", pair.a.name);
    assert_eq!(find(&findings, "GRO").fix.as_deref(), Some(expected.as_str()));
    let expected = format!("ip netns exec {} ethtool -K veth0 gro on", pair.b.name);
    assert_eq!(find(&findings, "XDP_TX").fix.as_deref(), Some(expected.as_str()));
    fixes(&pair.a, "GRO");
    fixes(&pair.a, "XDP_TX");
}

#[test]
fn peer_with_unnoticed_gro_is_found_and_fixed() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions { gro: false, ..PairOptions::default() }).unwrap();
    let mut netlink = pair.b.netlink().unwrap();
    netlink.set_down(pair.b.index).unwrap();
    pair.b.ethtool().unwrap().set_feature("rx-gro", true).unwrap();
    netlink.set_up(pair.b.index).unwrap();
    let findings = examine(&pair.a);
    let finding = find(&findings, "XDP_TX");
    assert!(finding.why.as_deref().unwrap().contains("did not notice"), "{finding:?}");
    fixes(&pair.a, "XDP_TX");
}

#[test]
fn too_few_receive_queues_are_found_and_fixed() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions { queues: 2, ..PairOptions::default() }).unwrap();
    pair.a.ethtool().unwrap().set_channels(1, 2, 0).unwrap();
    let findings = examine(&pair.a);
    let finding = find(&findings, "native XDP");
    let expected = format!("ip netns exec {} ethtool -L veth0 rx 2", pair.a.name);
    assert_eq!((finding.state, finding.fix.as_deref()), (CheckState::Warn, Some(expected.as_str())));
    assert!(find(&findings, "tap xdp").text.contains("skb"), "{findings:#?}");
    fixes(&pair.a, "native XDP");
}

#[test]
fn interface_that_is_down_is_found_and_fixed() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions::default()).unwrap();
    pair.a.netlink().unwrap().set_down(pair.a.index).unwrap();
    assert_eq!(find(&examine(&pair.b), "peer").state, CheckState::Warn);
    fixes(&pair.a, "link");
}

#[test]
fn attached_program_is_listed_with_its_holder_and_its_hook() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions::default()).unwrap();
    let pass = returning(2);
    let xdp =
        LoadOptions { expected_attach_type: ATTACH_XDP, ..LoadOptions::new("red_guard", XDP) }.load(&pass).unwrap();
    let hook = map::create_prog_array("red_hook", 5).unwrap();
    program::bind_map(&xdp, &hook).unwrap();
    let attached = netns::run_in(&pair.a.namespace, || {
        link::attach_xdp(xdp.as_fd(), pair.a.index, trawl_sys::netlink::XdpMode::Native)
    });
    let _link = attached.unwrap().unwrap();
    let next = returning(-1);
    let tc = LoadOptions::new("red_tc", SCHED_CLS).load(&next).unwrap();
    let _tcx = KernelFeature::Tcx.probe().is_supported().then(|| {
        let last = link::TcxPosition::Last;
        netns::run_in(&pair.a.namespace, || link::attach_tcx(tc.as_fd(), pair.a.index, ATTACH_TCX_INGRESS, last))
            .unwrap()
            .unwrap()
    });
    let mut netlink = pair.a.netlink().unwrap();
    netlink.add_clsact(pair.a.index).unwrap();
    let place = FilterHandle { interface: pair.a.index, direction: Direction::Egress, priority: 7, handle: 1 };
    netlink.add_filter(place, tc.as_fd(), "red_filter").unwrap();

    let findings = examine(&pair.a);
    let me = format!("({})", std::process::id());
    let text = &find(&findings, "XDP program").text;
    for part in ["red_guard", "native mode", "by link", "held by", me.as_str()] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(find(&findings, "hook map").text.contains("red_hook"), "{findings:#?}");
    assert_eq!(find(&findings, "tap tailcall").state, CheckState::Ok);
    assert_eq!(find(&findings, "tap xdp").state, CheckState::Warn);
    if _tcx.is_some() {
        assert!(find(&findings, "tcx ingress").text.contains("red_tc"), "{findings:#?}");
    }
    let text = &find(&findings, "clsact egress").text;
    assert!(text.contains("red_filter") && text.contains("priority 7"), "{text}");
    assert!(examine(&pair.b).iter().all(|f| f.subject != "clsact egress"));
}

#[test]
fn unknown_interface_is_an_error_that_lists_the_known() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions::default()).unwrap();
    let error = doctor::interface(Some(&pair.a.namespace), "eth9").unwrap_err();
    let error = format!("{error:?}");
    assert!(error.contains("eth9") && error.contains("lo, veth0"), "{error}");
}
