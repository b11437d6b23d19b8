//! Findings about a veth, whose abilities depend on its peer.

use trawl_attach::passing::gro_suffices;
use trawl_sys::Result;
use trawl_sys::netlink::ethtool::Ethtool;
use trawl_sys::netlink::{LinkRecord, Peer, XdpAbilities, XdpMode, veth_peer};
use trawl_sys::netns::{Namespace, exec_prefix};

use super::{CheckState, Finding};
use trawl_sys::words::word;

const GRO: &str = "rx-gro";
const TX_VLAN: &str = "tx-vlan-hw-insert";

/// Returns findings on native XDP, redirected frames and the peer of a veth.
pub fn examine(
    area: &str,
    namespace: Option<&Namespace>,
    interface: &LinkRecord,
    abilities: Option<XdpAbilities>,
) -> Result<Vec<Finding>> {
    let prefix = exec_prefix(namespace);
    let own_gro = feature(namespace, &interface.name, GRO);
    let Some(peer) = veth_peer(namespace, interface)? else {
        let text = "the peer is in a namespace that has no name, or that trawl may not enter";
        return Ok(vec![Finding::new(area, "peer", CheckState::Info, text)]);
    };
    let mut findings = vec![link_of(area, &peer)];
    findings.extend(native(area, namespace, interface, &prefix, &peer, abilities)?);
    findings.push(frames_in(area, interface, &prefix, own_gro, &peer));
    findings.push(frames_out(area, interface, &peer, abilities));
    findings.extend(tags(area, &peer));
    Ok(findings)
}

fn link_of(area: &str, peer: &Peer) -> Finding {
    let label = peer.label();
    if peer.link.is_up() {
        return Finding::new(area, "peer", CheckState::Ok, format!("{label}, up"));
    }
    Finding::new(area, "peer", CheckState::Warn, format!("{label} is down: no packets pass in either direction"))
        .fix(format!("{}ip link set {} up", peer.exec_prefix(), word(&peer.link.name)))
}

/// Checks native XDP, which needs a receive queue for each of the peer's send queues.
fn native(
    area: &str,
    namespace: Option<&Namespace>,
    interface: &LinkRecord,
    prefix: &str,
    peer: &Peer,
    abilities: Option<XdpAbilities>,
) -> Result<Option<Finding>> {
    let own = Ethtool::open(namespace, &interface.name)?.channels()?;
    let theirs = Ethtool::open(peer.namespace.as_ref(), &peer.link.name)?.channels()?;
    let fits = theirs.tx <= own.rx;
    if abilities.is_some_and(XdpAbilities::native) || (abilities.is_none() && fits) {
        return Ok(None);
    }
    let finding = Finding::new(
        area,
        "native XDP",
        CheckState::Warn,
        "not with the current numbers of queues: programs run in skb mode",
    );
    if fits {
        return Ok(Some(finding.why("the driver reports it")));
    }
    let why = format!("{} receive queues are too few for the {} send queues of {}", own.rx, theirs.tx, peer.label());
    let fix = if theirs.tx <= own.max_rx {
        format!("{prefix}ethtool -L {} rx {}", word(&interface.name), theirs.tx)
    } else {
        format!("{}ethtool -L {} tx {}", peer.exec_prefix(), word(&peer.link.name), own.rx)
    };
    Ok(Some(finding.why(why).fix(fix)))
}

/// Checks XDP frames that the peer redirects or sends here.
fn frames_in(area: &str, interface: &LinkRecord, prefix: &str, own_gro: Option<bool>, peer: &Peer) -> Finding {
    let new = |state, text: String| Finding::new(area, "GRO", state, text);
    if !gro_suffices() {
        if has_native_program(interface) {
            let text = "XDP frames from the peer are accepted, because this end has an XDP program";
            return new(CheckState::Ok, text.to_owned());
        }
        let text = "XDP frames from the peer (XDP_TX, redirects) are dropped";
        return new(CheckState::Warn, text.to_owned())
            .why(format!(
                "{} drops them unless this end has an XDP program in native mode; GRO suffices since Linux 5.13",
                peer.label()
            ))
            .fix(format!("trawl xdp load {} pass", word(area)));
    }
    if own_gro == Some(true) {
        return new(
            CheckState::Ok,
            "on: XDP frames from the peer are accepted, with or without a program here".to_owned(),
        );
    }
    if has_native_program(interface) {
        return new(CheckState::Ok, "off, but the XDP program here replaces it".to_owned());
    }
    let text = "off: XDP frames from the peer (XDP_TX, redirects, live frames) are dropped".to_owned();
    new(CheckState::Warn, text)
        .why(format!("{} drops them unless this end has GRO or an XDP program in native mode", peer.label()))
        .fix(format!("{prefix}ethtool -K {} gro on", word(&interface.name)))
}

/// Checks XDP frames that a program here sends back, or that other programs redirect to this interface.
fn frames_out(area: &str, interface: &LinkRecord, peer: &Peer, abilities: Option<XdpAbilities>) -> Finding {
    let new = |state, text: &str| Finding::new(area, "XDP_TX", state, text);
    let (label, prefix, name) = (peer.label(), peer.exec_prefix(), &peer.link.name);
    let typed = word(name);
    if !gro_suffices() && !has_native_program(&peer.link) {
        return new(CheckState::Warn, "frames that XDP sends from here are dropped")
            .why(format!(
                "{label} has no native XDP program, and needs one to accept XDP frames from {}; GRO suffices since Linux 5.13",
                interface.name
            ))
            .fix(format!("trawl xdp load {} pass", word(&label)));
    }
    let peer_gro = feature(peer.namespace.as_ref(), name, GRO) == Some(true);
    if gro_suffices() && !peer_gro && !has_native_program(&peer.link) {
        return new(CheckState::Warn, "frames that XDP sends from here are dropped")
            .why(format!(
                "{label} has neither GRO nor a native XDP program, and needs one of them to accept XDP frames from {}",
                interface.name
            ))
            .fix(format!("{prefix}ethtool -K {} gro on", word(name)));
    }
    // The driver checks its peer's GRO only at certain moments, and may have missed that it is on.
    if abilities.is_some_and(|a| a.native() && !a.redirect_target()) {
        return new(CheckState::Warn, "frames that XDP redirects to here are refused")
            .why(format!("{} went up before {label} had GRO, and did not notice the change", interface.name))
            .fix(format!("{prefix}ethtool -K {typed} gro off; {prefix}ethtool -K {typed} gro on"));
    }
    new(CheckState::Ok, "frames sent by XDP reach the peer")
}

/// Checks whether the peer passes VLAN tags outside the packet, where XDP does not see them.
fn tags(area: &str, peer: &Peer) -> Option<Finding> {
    let out_of_band = feature(peer.namespace.as_ref(), &peer.link.name, TX_VLAN)?;
    out_of_band.then(|| {
        Finding::new(area, "VLAN tags", CheckState::Info, "the peer's stack passes them outside the packet")
            .why("XDP does not see them; tc and packet taps do")
            .fix(format!(
                "to see them in the packet: {}ethtool -K {} txvlan off",
                peer.exec_prefix(),
                word(&peer.link.name)
            ))
    })
}

fn has_native_program(link: &LinkRecord) -> bool {
    link.xdp.iter().any(|present| present.mode == XdpMode::Native)
}

fn feature(namespace: Option<&Namespace>, interface: &str, name: &str) -> Option<bool> {
    let ethtool = Ethtool::open(namespace, interface).ok()?;
    ethtool.feature(name).ok()?
}
