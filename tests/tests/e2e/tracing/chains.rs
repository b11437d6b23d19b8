//! Programs behind a dispatcher.

use trawl_tests::witness::{nothing_attached, run};
use trawl_tests::{Lab, tools_or_skip, tracing_or_skip};

/// Two programs behind one dispatcher, which takes freplace.
#[test]
fn another_loaders_chain_works_here() {
    const PROGRAMS: &str = "/usr/lib/x86_64-linux-gnu/bpf";
    if !tracing_or_skip() || !tools_or_skip(&["xdp-loader", "nsenter"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let namespace = format!("--net=/run/netns/{}", lab.pair.b.name);
    let interface = lab.pair.b.interface.as_str();
    let loader = |arguments: &[&str]| {
        run(
            "nsenter",
            &[&[&namespace, "xdp-loader"], arguments].concat(),
        )
    };
    let objects =
        ["xdpfilt_alw_ip.o", "xdpfilt_alw_tcp.o"].map(|name| format!("{PROGRAMS}/{name}"));
    loader(&["load", interface, &objects[0], &objects[1]]);
    let status = loader(&["status", interface]);
    assert!(status.contains("xdp_dispatcher"), "{status}");
    assert_eq!(status.matches("=>").count(), 2, "{status}");
    loader(&["unload", interface, "--all"]);
    nothing_attached(&lab.pair.b);
}
