//! Settings of a bridge's ports by which the bridge passes a frame to none of them.

use serde::Deserialize;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::words::shown;

use super::command::printed;

/// Reason of frames that no port takes, since 6.14, and the functions that dropped them without a reason before.
const NO_TARGET: &str = "NO_TX_TARGET";
const FORWARDERS: [&str; 5] = [RECEIVER, "br_handle_frame_finish", "br_forward", "br_flood", "br_dev_xmit"];
/// The function that drops frames at a port that is held back.
const RECEIVER: &str = "br_handle_frame";
/// States of a port that the spanning tree holds back.
const HELD: [&str; 3] = ["blocking", "listening", "learning"];

/// A port in the output of `bridge -d -j link`.
#[derive(Deserialize)]
struct Port {
    ifname: String,
    master: Option<String>,
    #[serde(default)]
    state: String,
    #[serde(default)]
    isolated: bool,
    #[serde(default)]
    locked: bool,
    #[serde(default = "yes")]
    flood: bool,
}

fn yes() -> bool {
    true
}

/// Returns the setting for which a bridge dropped frames that this interface received.
pub fn cause(reason: &str, function: &str, space: Option<&Namespace>, interface: &str) -> Option<String> {
    if reason != NO_TARGET && !FORWARDERS.contains(&function) {
        return None;
    }
    let read = || printed("bridge", &["-d", "-j", "link"]);
    let text = run_maybe_in(space, read).ok()?;
    let ports: Vec<Port> = serde_json::from_str(&text).ok()?;
    explain(&ports, interface, reason == NO_TARGET, function == RECEIVER)
}

fn explain(ports: &[Port], interface: &str, has_no_target: bool, is_received: bool) -> Option<String> {
    let own = ports.iter().find(|port| port.ifname == interface && port.master.is_some())?;
    let others: Vec<&Port> =
        ports.iter().filter(|port| port.master == own.master && port.ifname != own.ifname).collect();
    let name = shown(interface);
    if HELD.contains(&own.state.as_str()) && !has_no_target {
        return Some(format!("the bridge's port {name} is blocked by the spanning tree ({})", own.state));
    }
    if is_received {
        return None;
    }
    if own.locked && !has_no_target {
        return Some(format!("the bridge's port {name} is locked and does not know the sender"));
    }
    if others.is_empty() {
        return Some(format!("the bridge has no port but {name}"));
    }
    if own.isolated && others.iter().all(|port| port.isolated) {
        return Some(format!("the bridge's port {name} is isolated, and so are all others"));
    }
    let takes = |port: &&&Port| port.flood && !(own.isolated && port.isolated);
    others
        .iter()
        .all(|port| !takes(&port))
        .then(|| "no other port of the bridge accepts frames to an unknown MAC (flood off)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_of_the_ports_is_named() {
        let port = |name: &str, more: &str| {
            let text = format!(r#"{{"ifname":"{name}","master":"br0","state":"forwarding"{more}}}"#);
            serde_json::from_str::<Port>(&text).expect("a port")
        };
        let of = |own: &str, others: &[&str], has_no_target| {
            let mut ports = vec![port("p0", own)];
            ports.extend(others.iter().map(|more| port("p", more)));
            ports.push(Port { master: Some("br1".to_owned()), ..port("q", "") });
            explain(&ports, "p0", has_no_target, false).unwrap_or_default()
        };
        let isolated = r#","isolated":true"#;
        assert!(of(isolated, &[isolated], true).contains("p0 is isolated"));
        assert_eq!(of(isolated, &[""], true), "");
        assert_eq!(of("", &[isolated], true), "");
        assert!(of("", &[r#","flood":false"#], true).contains("flood off"));
        assert!(of("", &[], true).contains("no port but p0"));
        let locked = r#","locked":true"#;
        assert!(of(locked, &[""], false).contains("is locked"));
        assert_eq!(of(locked, &[""], true), "");
        assert_eq!(explain(&[], "p0", true, false), None);
        let blocked = [Port { state: "blocking".to_owned(), ..port("p0", "") }];
        let found = explain(&blocked, "p0", false, true).expect("a cause");
        assert!(found.contains("spanning tree (blocking)"), "{found}");
        assert_eq!(explain(&[port("p0", "")], "p0", false, true), None);
    }
}
