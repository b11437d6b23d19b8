//! The remote session that a command is typed in, and whether new rules would cut it.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use trawl_kernel::netlink::{Link, Netlink};
use trawl_kernel::netns::{Namespace, run_maybe_in};
use trawl_kernel::{Error, Result, clock};

use super::model::{self, Packet};
use super::names::TCP;
use super::prefix::Prefix;
use super::rule::{Action, Match, Ports, Rule};
use super::set::{Draft, RuleSet};

/// What a person at work needs: a session held below that is as good as cut.
const ENOUGH_PACKETS: u64 = 100;
/// The programs that answer for remote shells.
const SERVERS: [&str; 3] = ["sshd", "dropbear", "in.telnetd"];
const VARIABLE: &str = "SSH_CONNECTION";
/// Older, and without the server's address.
const OLD_VARIABLE: &str = "SSH_CLIENT";
const ESTABLISHED: &str = "01";

/// A connection from a client to the server that the command runs under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    pub client: IpAddr,
    pub server: Option<IpAddr>,
    pub port: u16,
    /// The namespace that the server's socket is in, where it was seen.
    seen_in: Option<(u64, u64)>,
}

/// Refuses rules that would cut a session which those before let through.
pub fn check(namespace: Option<&Namespace>, before: &RuleSet, after: &RuleSet) -> Result<()> {
    for session in sessions() {
        if !is_of(&session, namespace)? {
            continue;
        }
        let ways = ways(&session, namespace)?;
        for default in &after.defaults {
            let on = default.on.index;
            if ways.as_ref().is_some_and(|ways| !ways.contains(&on)) {
                continue;
            }
            let packet = session.packet(on);
            let was_guarded = before.defaults.iter().any(|old| old.on.index == on);
            let was_cut = was_guarded && end_of(before, &packet).is_some();
            if let Some(end) = end_of(after, &packet)
                && !was_cut
            {
                return Err(refusal(&session, namespace, after, &packet, &end));
            }
        }
    }
    Ok(())
}

/// Why a session ends.
enum End {
    Rule(String),
    Default(String),
    /// The rule that lets it in is over at some time.
    LaterThan(String),
}

/// Whether packets of a session are dropped, now or when rules have ended.
fn end_of(set: &RuleSet, packet: &Packet) -> Option<End> {
    let now = clock::monotonic();
    let about = model::in_order(&set.rules, packet);
    let mut moments: Vec<u64> = about
        .iter()
        .filter_map(|rule| rule.expires)
        .filter(|end| *end > now)
        .collect();
    moments.push(now);
    moments.sort_unstable();
    moments.into_iter().find_map(|moment| {
        let by_rule = |rule: &Rule| End::Rule(format!("rule {} ({rule})", rule.id));
        let alive = || about.iter().filter(|rule| !rule.is_expired(moment));
        let (action, rule) = model::judge(set, packet, moment);
        let before_it = alive()
            .take_while(|one| rule.is_none_or(|rule| one.id != rule.id))
            .copied();
        let slow = |rule: &&Rule| rule.rate.is_some_and(|rate| rate < ENOUGH_PACKETS);
        if let Some(limit) = before_it.chain(rule).find(slow) {
            return Some(by_rule(limit));
        }
        match (action, rule) {
            (Action::Allow, _) => None,
            _ if moment > now => {
                let over = about.iter().find(|one| one.expires == Some(moment));
                Some(End::LaterThan(over.map_or(String::new(), |rule| {
                    format!("rule {} ({rule})", rule.id)
                })))
            }
            (Action::Deny, Some(rule)) => Some(by_rule(rule)),
            (Action::Deny, None) => {
                let on = set
                    .defaults
                    .iter()
                    .find(|default| default.on.index == packet.on);
                Some(End::Default(
                    on.map_or(String::new(), |default| default.on.name.clone()),
                ))
            }
        }
    })
}

fn refusal(
    session: &Session,
    namespace: Option<&Namespace>,
    set: &RuleSet,
    packet: &Packet,
    end: &End,
) -> Error {
    let why = match end {
        End::Rule(rule) => format!("{rule} would cut"),
        End::Default(interface) => format!("a default of deny on {interface} would cut"),
        End::LaterThan(rule) => format!("when {rule} ends, nothing lets in any more"),
    };
    let error = Error::failed(
        "the rules stay as they are",
        format!(
            "{why} the session from {} that this command was typed in",
            session.client
        ),
    );
    let place = namespace.map_or(String::new(), |one| format!(" --netns {}", one.label()));
    match session.remedy(set, packet) {
        Some(what) => error.mend(format!(
            "trawl guard allow{what}{place} lets it in; --yes does without"
        )),
        None => error.mend("--yes does it all the same"),
    }
}

impl Session {
    fn packet(&self, on: u32) -> Packet {
        let unspecified: IpAddr = match self.client {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        model::of_connection(
            self.client,
            self.server.unwrap_or(unspecified),
            self.port,
            on,
        )
    }

    /// The widest rule that would let it in.
    fn remedy(&self, set: &RuleSet, packet: &Packet) -> Option<Match> {
        let port = Match {
            source: Some(Prefix::host(self.client)),
            protocol: Some(TCP),
            ports: Some(Ports {
                first: self.port,
                last: self.port,
            }),
            ..Match::default()
        };
        let exact = Match {
            destination: self.server.map(Prefix::host),
            ..port.clone()
        };
        [port, exact].into_iter().find(|what| {
            let mut helped = set.clone();
            let draft = Draft {
                action: Action::Allow,
                what: what.clone(),
                rate: None,
                expires: None,
            };
            !helped.add(draft).replaced && end_of(&helped, packet).is_none()
        })
    }
}

/// The sessions that this process was started in: what the environment says of it, its own and its ancestors' (sudo
/// hides it), and the connections of the servers among them.
fn sessions() -> Vec<Session> {
    let mut found: Vec<Session> = Vec::new();
    let own = |name: &str| std::env::var(name).ok();
    found.extend(
        own(VARIABLE)
            .or_else(|| own(OLD_VARIABLE))
            .and_then(|text| parse(&text)),
    );
    for process in ancestors() {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let variable = |name: &str| {
            environment.split(|byte| *byte == 0).find_map(|entry| {
                let text = std::str::from_utf8(entry).ok()?;
                text.strip_prefix(name)?.strip_prefix('=')
            })
        };
        found.extend(
            variable(VARIABLE)
                .or_else(|| variable(OLD_VARIABLE))
                .and_then(parse),
        );
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        if SERVERS.iter().any(|server| name.starts_with(server)) {
            found.extend(connections(process));
        }
    }
    let mut known = HashSet::new();
    found.retain(|session| known.insert(session.clone()));
    found
}

/// `client port server port`, or without the server's address.
fn parse(text: &str) -> Option<Session> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let address = |text: &str| -> Option<IpAddr> {
        let plain = text.split('%').next()?;
        plain
            .parse()
            .ok()
            .map(|address: IpAddr| address.to_canonical())
    };
    let (client, server, port) = match fields.as_slice() {
        [client, _, server, port] => (client, Some(address(server)?), port),
        [client, _, port] => (client, None, port),
        _ => return None,
    };
    Some(Session {
        client: address(client)?,
        server,
        port: port.parse().ok()?,
        seen_in: None,
    })
}

fn ancestors() -> Vec<u32> {
    let parent_of = |process: &u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok().filter(|parent| *parent != 0)
    };
    std::iter::successors(Some(std::process::id()), parent_of)
        .skip(1)
        .collect()
}

/// The established TCP connections of a process.
fn connections(process: u32) -> Vec<Session> {
    let sockets: HashSet<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            let inode = target
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    let seen_in = Namespace::of_pid(process).ok().map(|one| one.identity());
    ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("/proc/{process}/net/{table}")).ok())
        .flat_map(|table| {
            let rows: Vec<Session> = table
                .lines()
                .skip(1)
                .filter_map(|row| parse_row(row, &sockets))
                .map(|session| Session { seen_in, ..session })
                .collect();
            rows
        })
        .collect()
}

/// A row of /proc/net/tcp, if it is an established connection by one of these sockets.
fn parse_row(row: &str, sockets: &HashSet<String>) -> Option<Session> {
    let fields: Vec<&str> = row.split_whitespace().collect();
    let (local, remote, state, inode) = (
        fields.get(1)?,
        fields.get(2)?,
        fields.get(3)?,
        fields.get(9)?,
    );
    if *state != ESTABLISHED || !sockets.contains(*inode) {
        return None;
    }
    let (server, port) = parse_end(local)?;
    let (client, _) = parse_end(remote)?;
    Some(Session {
        client,
        server: Some(server),
        port,
        seen_in: None,
    })
}

/// An address as words of the machine's own byte order, and a port.
fn parse_end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let words: Option<Vec<[u8; 4]>> = (0..address.len() / 8)
        .map(|number| {
            let word = address.get(number * 8..number * 8 + 8)?;
            u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
        })
        .collect();
    let address: IpAddr = match words?.concat().as_slice() {
        bytes @ [_, _, _, _] => <[u8; 4]>::try_from(bytes).ok()?.into(),
        bytes => <[u8; 16]>::try_from(bytes).ok()?.into(),
    };
    Some((address.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

/// Whether the session may come through a namespace: its server's address is there, or it is nowhere to be found.
fn is_of(session: &Session, namespace: Option<&Namespace>) -> Result<bool> {
    let guarded = match namespace {
        Some(namespace) => namespace.clone(),
        None => Namespace::current()?,
    };
    let Some(server) = session.server else {
        return Ok(true);
    };
    let is_here = |namespace| run_maybe_in(namespace, || UdpSocket::bind((server, 0)).is_ok());
    if session.seen_in == Some(guarded.identity()) || is_here(namespace)? {
        return Ok(true);
    }
    let is_elsewhere =
        session.seen_in.is_some() || (Namespace::current()? != guarded && is_here(None)?);
    Ok(!is_elsewhere)
}

/// The interfaces that the session may come in by: those that its answers leave by or that have the server's address,
/// what they stand on, and what stands on them. `None` where that cannot be told.
fn ways(session: &Session, namespace: Option<&Namespace>) -> Result<Option<HashSet<u32>>> {
    let mut netlink = Netlink::open(namespace)?;
    let mut ways: HashSet<u32> = HashSet::new();
    if let Some(server) = session.server {
        ways.extend(netlink.interface_with(server)?);
    }
    ways.extend(netlink.interface_towards(session.client)?);
    if ways.is_empty() {
        return Ok(None);
    }
    let links = netlink.links()?;
    if links
        .iter()
        .any(|link| ways.contains(&link.index) && is_tunnel(link))
    {
        return Ok(None);
    }
    loop {
        let before = ways.len();
        for link in &links {
            // A bridge's or a bond's port, and a VLAN's lower device. A veth names its peer in the same place.
            let lower = link
                .peer_index
                .filter(|_| link.kind.as_deref() != Some("veth"));
            if link.master.is_some_and(|master| ways.contains(&master)) {
                ways.insert(link.index);
            }
            if ways.contains(&link.index) {
                ways.extend(lower);
            }
        }
        if ways.len() == before {
            return Ok(Some(ways));
        }
    }
}

/// Its packets come in by another interface, inside of others that nothing is known of.
fn is_tunnel(link: &Link) -> bool {
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
    link.kind
        .as_deref()
        .is_some_and(|kind| KINDS.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::rule::On;

    fn session() -> Session {
        parse("192.0.2.9 50000 198.51.100.1 22").unwrap()
    }

    fn set(default: Action) -> RuleSet {
        let mut set = RuleSet::default();
        set.set_default(
            On {
                index: 2,
                name: "eth0".to_owned(),
            },
            default,
        );
        set
    }

    fn allow(what: Match, expires: Option<u64>) -> Draft {
        Draft {
            action: Action::Allow,
            what,
            rate: None,
            expires,
        }
    }

    #[test]
    fn the_environment_is_read() {
        let session = session();
        assert_eq!(
            (session.client.to_string().as_str(), session.port),
            ("192.0.2.9", 22)
        );
        let mapped = parse("::ffff:192.0.2.9 50000 fe80::1%eth0 2222").unwrap();
        assert_eq!((mapped.client, mapped.port), (session.client, 2222));
        assert_eq!(parse("192.0.2.9 50000 22").unwrap().server, None);
        for text in ["", "a b c d", "192.0.2.9 1 2 3", "1.1.1.1 1 2.2.2.2 99999"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn rows_of_connections_are_read() {
        let sockets = HashSet::from(["77".to_owned()]);
        let words = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let row = |state: &str, inode: &str| {
            format!(
                "   1: {}:0016 {}:C350 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1",
                words([198, 51, 100, 1]),
                words([192, 0, 2, 9])
            )
        };
        assert_eq!(parse_row(&row("01", "77"), &sockets), Some(session()));
        assert_eq!(parse_row(&row("0A", "77"), &sockets), None);
        assert_eq!(parse_row(&row("01", "78"), &sockets), None);
        let six = "0000000000000000FFFF0000".to_owned() + &words([192, 0, 2, 9]) + ":0016";
        if cfg!(target_endian = "little") {
            assert_eq!(parse_end(&six), Some((session().client, 22)));
        }
    }

    #[test]
    fn a_default_of_deny_cuts_and_the_remedy_helps() {
        let (session, deny) = (session(), set(Action::Deny));
        let packet = session.packet(2);
        assert!(end_of(&set(Action::Allow), &packet).is_none());
        assert!(matches!(end_of(&deny, &packet), Some(End::Default(on)) if on == "eth0"));
        let error = refusal(
            &session,
            None,
            &deny,
            &packet,
            &end_of(&deny, &packet).unwrap(),
        )
        .to_string();
        assert!(
            error.contains("trawl guard allow --src 192.0.2.9 --proto tcp --port 22"),
            "{error}"
        );
        let mut helped = deny.clone();
        helped.add(allow(session.remedy(&deny, &packet).unwrap(), None));
        assert!(end_of(&helped, &packet).is_none());
    }

    #[test]
    fn a_rule_that_ends_is_no_way_in() {
        let mut set = set(Action::Deny);
        let packet = session().packet(2);
        set.add(allow(
            Match::default(),
            Some(clock::monotonic() + 1_000_000_000_000),
        ));
        assert!(
            matches!(end_of(&set, &packet), Some(End::LaterThan(rule)) if rule.starts_with("rule 1"))
        );
    }

    #[test]
    fn a_rule_against_the_session_and_a_low_rate_cut() {
        let mut set = set(Action::Allow);
        let packet = session().packet(2);
        let host = Match {
            source: Some("192.0.2.0/24".parse().unwrap()),
            ..Match::default()
        };
        set.add(Draft {
            action: Action::Deny,
            what: host.clone(),
            rate: Some(10),
            expires: None,
        });
        assert!(matches!(end_of(&set, &packet), Some(End::Rule(_))));
        set.add(Draft {
            action: Action::Deny,
            what: host.clone(),
            rate: Some(10_000),
            expires: None,
        });
        assert!(end_of(&set, &packet).is_none());
        set.add(Draft {
            action: Action::Deny,
            what: host,
            rate: None,
            expires: None,
        });
        assert!(matches!(end_of(&set, &packet), Some(End::Rule(_))));
        // Nothing but the rule itself could be put in its place.
        let exact = Match {
            source: Some("192.0.2.9".parse().unwrap()),
            destination: Some("198.51.100.1".parse().unwrap()),
            protocol: Some(TCP),
            ports: Some(Ports {
                first: 22,
                last: 22,
            }),
            ..Match::default()
        };
        set.add(Draft {
            action: Action::Deny,
            what: exact,
            rate: None,
            expires: None,
        });
        assert_eq!(session().remedy(&set, &packet), None);
    }
}
