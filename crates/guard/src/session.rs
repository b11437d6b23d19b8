//! Refuses new rules that would cut the SSH session in which the command was typed.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::UdpSocket;

use trawl_program::safety;
use trawl_sys::netlink::{LinkRecord, Netlink, carriers};
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::process::session::Session;
use trawl_sys::{Error, Result, clock};

use crate::model::{self, Macs, Packet, PortPair};
use crate::rule::{Action, Draft, Match, Ports, Rule};
use crate::set::RuleSet;
use crate::values::Prefix;
use trawl_packet::net::protocol::TCP;
use trawl_sys::words::word;

/// Rate in packets per second below which an interactive session is as good as cut.
const ENOUGH_PACKETS: u64 = 100;

/// Refuses rules that would cut a session which the old rules let through.
pub fn check(namespace: Option<&Namespace>, before: &RuleSet, after: &RuleSet) -> Result<()> {
    let Some(session) = Session::of_this_command() else {
        return Ok(());
    };
    if !may_pass_through(&session, namespace)? {
        return Ok(());
    }
    let interfaces = interfaces_of(&session, namespace)?;
    let macs = macs_of(&session, namespace)?;
    let (before, after) = match macs {
        Some(_) => (Cow::Borrowed(before), Cow::Borrowed(after)),
        None => (without_macs(before), without_macs(after)),
    };
    for default in &after.defaults {
        let on = default.on.index;
        if interfaces.as_ref().is_some_and(|interfaces| !interfaces.contains(&on)) {
            continue;
        }
        let packet = packet_of(&session, macs, on);
        let was_guarded = before.defaults.iter().any(|old| old.on.index == on);
        let was_cut = was_guarded && end_of(&before, &packet).is_some();
        if let Some(end) = end_of(&after, &packet)
            && !was_cut
        {
            return Err(refusal(&session, namespace, &after, &packet, &end));
        }
    }
    Ok(())
}

/// Returns a pessimistic set for a session whose MAC addresses are unknown: a rule that denies some MAC address denies
/// all, and a rule that allows some is left out.
fn without_macs(set: &RuleSet) -> Cow<'_, RuleSet> {
    let names = |rule: &Rule| rule.what.source_mac.or(rule.what.destination_mac).is_some();
    if !set.rules.iter().any(names) {
        return Cow::Borrowed(set);
    }
    let mut set = set.clone();
    set.rules.retain(|rule| !names(rule) || rule.action == Action::Deny);
    for rule in &mut set.rules {
        rule.draft.what.source_mac = None;
        rule.draft.what.destination_mac = None;
    }
    Cow::Owned(set)
}

/// Reason why a session ends.
enum End {
    Rule(String),
    Default(String),
    /// The rule that admits the session has a time limit.
    LaterThan(String),
}

/// Returns the reason why packets of a session would be dropped, now or once rules have ended.
fn end_of(set: &RuleSet, packet: &Packet) -> Option<End> {
    let now = clock::monotonic();
    let about = model::in_order(&set.rules, packet);
    let mut moments: Vec<u64> = about.iter().filter_map(|rule| rule.expires).filter(|end| *end > now).collect();
    moments.push(now);
    moments.sort_unstable();
    moments.into_iter().find_map(|moment| {
        let by_rule = |rule: &Rule| End::Rule(format!("rule {} ({rule})", rule.id));
        let alive = || about.iter().filter(|rule| !rule.is_expired(moment));
        let (action, rule) = model::judge(set, packet, moment);
        let before_it = alive().take_while(|one| rule.is_none_or(|rule| one.id != rule.id)).copied();
        let slow = |rule: &&Rule| rule.rate.is_some_and(|rate| rate < ENOUGH_PACKETS);
        if let Some(limit) = before_it.chain(rule).find(slow) {
            return Some(by_rule(limit));
        }
        match (action, rule) {
            (Action::Allow, _) => None,
            _ if moment > now => {
                let over = about.iter().find(|one| one.expires == Some(moment));
                Some(End::LaterThan(over.map_or(String::new(), |rule| format!("rule {} ({rule})", rule.id))))
            }
            (Action::Deny, Some(rule)) => Some(by_rule(rule)),
            (Action::Deny, None) => {
                let on = set.defaults.iter().find(|default| default.on.index == packet.on);
                Some(End::Default(on.map_or(String::new(), |default| default.on.name.clone())))
            }
        }
    })
}

fn refusal(session: &Session, namespace: Option<&Namespace>, set: &RuleSet, packet: &Packet, end: &End) -> Error {
    let why = match end {
        End::Rule(rule) => format!("{rule} would cut"),
        End::Default(interface) => format!("a default of deny on {interface} would cut"),
        End::LaterThan(rule) => format!("the end of {rule} would cut"),
    };
    let error = Error::failed(
        "the rules stay as they are",
        format!("{why} the SSH session from {} in which this command was typed", session.client.ip()),
    );
    match remedy(session, set, packet) {
        Some(rule) => {
            let netns = namespace.map_or(String::new(), |one| format!(" --netns {}", word(one.label())));
            error.fix(format!(
                "keep it: trawl guard allow{rule}{netns}; or apply anyway: --yes; or apply for a time, unless confirmed: --confirm 60s"
            ))
        }
        None => error.fix("apply anyway: --yes; or apply for a time, unless confirmed: --confirm 60s"),
    }
}

fn packet_of(session: &Session, macs: Option<Macs>, on: u32) -> Packet {
    let ports = PortPair { source: session.client.port(), destination: session.server.port() };
    model::of_connection(session.client.ip(), session.server.ip(), ports, macs, on)
}

/// Returns the widest rule that would admit the session.
fn remedy(session: &Session, set: &RuleSet, packet: &Packet) -> Option<Match> {
    let port = Match {
        source: Some(Prefix::host(session.client.ip())),
        protocol: Some(TCP),
        ports: Some(Ports { first: session.server.port(), last: session.server.port() }),
        ..Match::default()
    };
    let exact = Match { destination: Some(Prefix::host(session.server.ip())), ..port.clone() };
    [port, exact].into_iter().find(|what| {
        let mut helped = set.clone();
        let draft = Draft { action: Action::Allow, what: what.clone(), rate: None, expires: None };
        !helped.add(draft).replaced && end_of(&helped, packet).is_none()
    })
}

/// Returns true if the session may pass through a namespace: the server's address is in that namespace, or it is
/// missing from the present one as well.
fn may_pass_through(session: &Session, namespace: Option<&Namespace>) -> Result<bool> {
    let guarded = match namespace {
        Some(namespace) => namespace.clone(),
        None => Namespace::current()?,
    };
    let is_here = |namespace| run_maybe_in(namespace, || UdpSocket::bind((session.server.ip(), 0)).is_ok());
    Ok(is_here(namespace)? || Namespace::current()? == guarded || !is_here(None)?)
}

/// Returns the interfaces that the session may arrive by: those that its answers leave by or that have the server's
/// address, and the interfaces below and above them. `None` if unknown.
fn interfaces_of(session: &Session, namespace: Option<&Namespace>) -> Result<Option<HashSet<u32>>> {
    let mut netlink = Netlink::open(namespace)?;
    let ends = safety::ends_of(session, &mut netlink)?;
    let links = netlink.links()?;
    let is_unknown = |link: &LinkRecord| ends.contains(&link.index) && is_tunnel(link);
    if ends.is_empty() || links.iter().any(is_unknown) {
        return Ok(None);
    }
    Ok(Some(carriers(ends, &links)))
}

/// Returns the addresses of the session's frames, if the kernel knows them.
fn macs_of(session: &Session, namespace: Option<&Namespace>) -> Result<Option<Macs>> {
    let mut netlink = Netlink::open(namespace)?;
    let client = session.client.ip();
    let Some(hop) = netlink.next_hop(client, None)? else {
        return Ok(None);
    };
    let next = hop.gateway.unwrap_or(client);
    let neighbours = netlink.neighbours(hop.interface)?;
    let source = neighbours.iter().find(|one| one.address == next);
    let own = netlink.find_link_by_index(hop.interface)?;
    let destination = own.and_then(|link| link.mac.try_into().ok());
    Ok(source.zip(destination).map(|(one, destination)| Macs { source: one.mac, destination }))
}

/// Returns true for a tunnel, whose packets arrive by another interface inside other packets.
fn is_tunnel(link: &LinkRecord) -> bool {
    const KINDS: [&str; 14] = [
        "tun",
        "wireguard",
        "vxlan",
        "geneve",
        "gre",
        "gretap",
        "ip6gre",
        "ip6gretap",
        "ipip",
        "sit",
        "ip6tnl",
        "vti",
        "xfrm",
        "ppp",
    ];
    link.kind.as_deref().is_some_and(|kind| KINDS.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::On;

    fn session() -> Session {
        "192.0.2.9 50000 198.51.100.1 22".parse().unwrap()
    }

    fn set(default: Action) -> RuleSet {
        let mut set = RuleSet::default();
        set.set_default(On { index: 2, name: "eth0".to_owned() }, default);
        set
    }

    fn allow(what: Match, expires: Option<u64>) -> Draft {
        Draft { action: Action::Allow, what, rate: None, expires }
    }

    #[test]
    fn default_of_deny_cuts_and_the_remedy_helps() {
        let (session, deny) = (session(), set(Action::Deny));
        let packet = packet_of(&session, None, 2);
        assert!(end_of(&set(Action::Allow), &packet).is_none());
        assert!(matches!(end_of(&deny, &packet), Some(End::Default(on)) if on == "eth0"));
        let error = refusal(&session, None, &deny, &packet, &end_of(&deny, &packet).unwrap());
        let advice = error.how_to_fix().expect("advice");
        let rule = "keep it: trawl guard allow --src 192.0.2.9 --proto tcp --port 22";
        assert!(advice.starts_with(rule), "{advice}");
        let mut helped = deny.clone();
        helped.add(allow(remedy(&session, &deny, &packet).unwrap(), None));
        assert!(end_of(&helped, &packet).is_none());
    }

    /// Rules match by source port and MAC address.
    #[test]
    fn ports_and_macs_of_the_session_count() {
        let (session, packet) = (session(), packet_of(&session(), None, 2));
        let deny = |what: Match| {
            let mut set = set(Action::Allow);
            set.add(Draft { action: Action::Deny, ..allow(what.complete().unwrap(), None) });
            set
        };
        let from = |first, last| Match { source_ports: Some(Ports { first, last }), ..Match::default() };
        assert!(end_of(&deny(from(50000, 50000)), &packet).is_some());
        assert!(end_of(&deny(from(1, 1023)), &packet).is_none());
        let mac = deny(Match { source_mac: "02:00:5e:00:53:01".parse().ok(), ..Match::default() });
        assert!(end_of(&without_macs(&mac), &packet).is_some());
        let macs = |last| {
            let source = [2, 0, 0x5e, 0, 0x53, last];
            let destination = [2; 6];
            Some(Macs { source, destination })
        };
        let end = |last| end_of(&mac, &packet_of(&session, macs(last), 2));
        assert!(end(1).is_some() && end(2).is_none());
    }

    #[test]
    fn rule_with_an_end_does_not_admit_the_session() {
        let mut set = set(Action::Deny);
        let packet = packet_of(&session(), None, 2);
        set.add(allow(Match::default(), Some(clock::monotonic() + 1_000_000_000_000)));
        assert!(matches!(end_of(&set, &packet), Some(End::LaterThan(rule)) if rule.starts_with("rule 1")));
    }

    #[test]
    fn rule_against_the_session_and_low_rate_cut_it() {
        let mut set = set(Action::Allow);
        let packet = packet_of(&session(), None, 2);
        let host = Match { source: Some("192.0.2.0/24".parse().unwrap()), ..Match::default() };
        set.add(Draft { action: Action::Deny, what: host.clone(), rate: Some(10), expires: None });
        assert!(matches!(end_of(&set, &packet), Some(End::Rule(_))));
        set.add(Draft { action: Action::Deny, what: host.clone(), rate: Some(10_000), expires: None });
        assert!(end_of(&set, &packet).is_none());
        set.add(Draft { action: Action::Deny, what: host, rate: None, expires: None });
        assert!(matches!(end_of(&set, &packet), Some(End::Rule(_))));
        // No other rule than this one could replace it.
        let exact = Match {
            source: Some("192.0.2.9".parse().unwrap()),
            destination: Some("198.51.100.1".parse().unwrap()),
            protocol: Some(TCP),
            ports: Some(Ports { first: 22, last: 22 }),
            ..Match::default()
        };
        set.add(Draft { action: Action::Deny, what: exact, rate: None, expires: None });
        assert_eq!(remedy(&session(), &set, &packet), None);
    }
}
