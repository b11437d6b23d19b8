//! What is particular to a veth: it is as able as its peer lets it be.

use trawl_sys::Result;
use trawl_sys::ethtool::Ethtool;
use trawl_sys::netlink::{Link, Peer, XdpAbilities, XdpMode, veth_peer};
use trawl_sys::netns::{Namespace, exec_prefix};

use super::{Finding, State};

const GRO: &str = "rx-gro";
const TX_VLAN: &str = "tx-vlan-hw-insert";

/// Findings on native XDP, redirected frames and the peer of a veth.
pub fn examine(
    area: &str,
    namespace: Option<&Namespace>,
    interface: &Link,
    abilities: Option<XdpAbilities>,
) -> Result<Vec<Finding>> {
    let prefix = exec_prefix(namespace);
    let own_gro = feature(namespace, &interface.name, GRO);
    let Some(peer) = veth_peer(namespace, interface)? else {
        let text =
            "the other end is in a namespace without a name, or one that cannot be looked into";
        return Ok(vec![Finding::new(area, "peer", State::Info, text)]);
    };
    let mut findings = vec![link_of(area, &peer)];
    findings.extend(native(
        area, namespace, interface, &prefix, &peer, abilities,
    )?);
    findings.push(frames_in(area, interface, &prefix, own_gro, &peer));
    findings.push(frames_out(area, interface, &peer, abilities));
    findings.extend(tags(area, &peer));
    Ok(findings)
}

fn link_of(area: &str, peer: &Peer) -> Finding {
    let label = peer.label();
    if peer.link.is_up() {
        return Finding::new(area, "peer", State::Ok, format!("{label}, up"));
    }
    Finding::new(
        area,
        "peer",
        State::Warn,
        format!("{label} is down: no packet goes either way"),
    )
    .fix(format!(
        "{}ip link set {} up",
        peer.exec_prefix(),
        peer.link.name
    ))
}

/// Native XDP needs a receive queue for each queue that the peer sends from.
fn native(
    area: &str,
    namespace: Option<&Namespace>,
    interface: &Link,
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
        State::Warn,
        "not as it is set up: programs run in skb mode",
    );
    if fits {
        return Ok(Some(finding.why("the driver says so")));
    }
    let why = format!(
        "{} receive queues cannot take what the {} send queues of {} send",
        own.rx,
        theirs.tx,
        peer.label()
    );
    let fix = if theirs.tx <= own.max_rx {
        format!("{prefix}ethtool -L {} rx {}", interface.name, theirs.tx)
    } else {
        format!(
            "{}ethtool -L {} tx {}",
            peer.exec_prefix(),
            peer.link.name,
            own.rx
        )
    };
    Ok(Some(finding.why(why).fix(fix)))
}

/// XDP frames that the peer redirects or sends here.
fn frames_in(
    area: &str,
    interface: &Link,
    prefix: &str,
    own_gro: Option<bool>,
    peer: &Peer,
) -> Finding {
    let new = |state, text: String| Finding::new(area, "GRO", state, text);
    if own_gro == Some(true) {
        return new(
            State::Ok,
            "on: XDP frames from the peer are taken, with a program here or without".to_owned(),
        );
    }
    if has_native_program(interface) {
        return new(
            State::Ok,
            "off, but the XDP program here makes up for it".to_owned(),
        );
    }
    let text =
        "off: XDP frames from the peer (XDP_TX, redirects, live frames) are thrown away".to_owned();
    new(State::Warn, text)
        .why(format!(
            "{} drops them unless this end has GRO or an XDP program in native mode",
            peer.label()
        ))
        .fix(format!("{prefix}ethtool -K {} gro on", interface.name))
}

/// XDP frames that a program here sends back, or that others redirect to go out here.
fn frames_out(
    area: &str,
    interface: &Link,
    peer: &Peer,
    abilities: Option<XdpAbilities>,
) -> Finding {
    let new = |state, text: &str| Finding::new(area, "XDP_TX", state, text);
    let (label, prefix, name) = (peer.label(), peer.exec_prefix(), &peer.link.name);
    let peer_gro = feature(peer.namespace.as_ref(), name, GRO) == Some(true);
    if !peer_gro && !has_native_program(&peer.link) {
        return new(State::Warn, "frames that XDP sends out of here are thrown away")
            .why(format!(
                "{label} has neither GRO nor a native XDP program, and only with one of them takes XDP frames from {}",
                interface.name
            ))
            .fix(format!("{prefix}ethtool -K {name} gro on"));
    }
    // The driver looks at its peer's GRO only at certain moments, and can have missed that it is on.
    if abilities.is_some_and(|a| a.native() && !a.redirect_target()) {
        return new(State::Warn, "frames that XDP redirects to here are refused")
            .why(format!(
                "{} went up before {label} had GRO, and did not notice since",
                interface.name
            ))
            .fix(format!(
                "{prefix}ethtool -K {name} gro off; {prefix}ethtool -K {name} gro on"
            ));
    }
    new(State::Ok, "frames sent by XDP reach the peer")
}

/// A sender that leaves the tag beside the packet leaves it where XDP does not look.
fn tags(area: &str, peer: &Peer) -> Option<Finding> {
    let beside = feature(peer.namespace.as_ref(), &peer.link.name, TX_VLAN)?;
    beside.then(|| {
        Finding::new(
            area,
            "VLAN tags",
            State::Info,
            "those that the peer's stack puts on come beside the packet",
        )
        .why("XDP does not see them; tc and packet taps do")
        .fix(format!(
            "to see them in the packet: {}ethtool -K {} txvlan off",
            peer.exec_prefix(),
            peer.link.name
        ))
    })
}

fn has_native_program(link: &Link) -> bool {
    link.xdp
        .iter()
        .any(|present| present.mode == XdpMode::Native)
}

fn feature(namespace: Option<&Namespace>, interface: &str, name: &str) -> Option<bool> {
    let ethtool = Ethtool::open(namespace, interface).ok()?;
    ethtool.feature(name).ok()?
}
