//! Drops of single sockets, in the output of ss: connections that listening sockets refused, and copies for
//! which packet sockets had no room. The kernel's counters name no socket.

use std::collections::BTreeMap;

use trawl_sys::netlink::counters;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::words::shown;

use super::command::printed;

/// Maximum number of namespaces, since `ss` runs twice for each.
const MOST_NAMESPACES: usize = 16;
/// Maximum number of sockets that a line names.
const MOST_NAMED: usize = 3;

/// Kinds of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketKind {
    Listener,
    Packet,
}

/// A socket: its namespace, kind, and address or interface.
type Key = (Option<String>, SocketKind, String);

/// Drops of sockets, with their processes if known.
#[derive(Clone, Debug, Default)]
pub struct SocketDrops(BTreeMap<Key, (u64, Option<String>)>);

impl SocketDrops {
    /// Reads the drops since each socket was opened. Finding the processes takes longer.
    pub fn read(namespaces: &[Namespace], with_processes: bool) -> Self {
        let mut all = Self::default();
        let more = if with_processes { "p" } else { "" };
        for namespace in namespaces.iter().take(MOST_NAMESPACES) {
            let read = || {
                let listeners = printed("ss", &[&format!("-Hlntm{more}")]);
                let packet = printed("ss", &[&format!("-H0am{more}")]);
                [(SocketKind::Listener, listeners), (SocketKind::Packet, packet)]
            };
            let netns = Some(counters::label(namespace));
            for (kind, text) in run_maybe_in(Some(namespace), read).into_iter().flatten() {
                for (address, drops, process) in parse(&text) {
                    let socket = all.0.entry((netns.clone(), kind, address)).or_default();
                    socket.0 += drops;
                    socket.1 = socket.1.take().or(process);
                }
            }
        }
        all
    }

    /// Returns the increases since `before`.
    pub fn since(mut self, before: &Self) -> Self {
        for (key, (drops, _)) in &mut self.0 {
            let old = before.0.get(key).map_or(0, |(old, _)| *old);
            // A socket with fewer drops is another one.
            *drops = drops.checked_sub(old).unwrap_or(*drops);
        }
        self.0.retain(|_, (drops, _)| *drops > 0);
        self
    }

    fn in_namespace(&self, netns: Option<&str>, kind: SocketKind) -> Vec<(&str, u64, Option<&str>)> {
        let found = self.0.iter().filter(|((of, is, _), _)| of.as_deref() == netns && *is == kind);
        let mut found: Vec<_> =
            found.map(|((_, _, address), (drops, process))| (&**address, *drops, process.as_deref())).collect();
        found.sort_by_key(|(_, drops, _)| std::cmp::Reverse(*drops));
        found
    }

    /// Returns the sockets of a kind that dropped most: `10.0.0.1:80 of nginx[7] (12)`.
    pub fn of(&self, netns: Option<&str>, kind: SocketKind) -> Option<String> {
        let found = self.in_namespace(netns, kind);
        let others = found.len().saturating_sub(MOST_NAMED);
        let named = found.iter().take(MOST_NAMED).map(|(address, drops, process)| {
            let process = process.map_or(String::new(), |name| format!(" of {name}"));
            format!("{address}{process} ({drops})")
        });
        let mut named: Vec<String> = named.collect();
        if others > 0 {
            named.push(format!("and {others} more"));
        }
        (!named.is_empty()).then(|| named.join(", "))
    }

    /// Returns the number of packets for which the packet sockets of each namespace had no room.
    pub fn full_packet_sockets(&self) -> BTreeMap<Option<String>, u64> {
        let mut sums = BTreeMap::new();
        for ((netns, kind, _), (drops, _)) in &self.0 {
            if *kind == SocketKind::Packet {
                *sums.entry(netns.clone()).or_default() += drops;
            }
        }
        sums
    }
}

/// Parses the output of ss: addresses or interfaces, drops and processes.
fn parse(text: &str) -> Vec<(String, u64, Option<String>)> {
    let mut sockets: Vec<(String, u64, Option<String>)> = Vec::new();
    for line in text.lines() {
        if !line.starts_with(char::is_whitespace) {
            let mut words = line.split_whitespace().skip_while(|word| word.parse::<u64>().is_err());
            let address = words.nth(2).unwrap_or_default();
            sockets.push((shown(address).into_owned(), 0, process(line)));
        }
        let memory = line.split_once("skmem:(").and_then(|(_, rest)| rest.split_once(')'));
        let drops = memory.and_then(|(fields, _)| {
            let field = fields.split(',').find_map(|field| field.strip_prefix('d'));
            field?.parse().ok()
        });
        if let (Some(drops), Some(socket)) = (drops, sockets.last_mut()) {
            socket.1 = drops;
        }
    }
    sockets
}

/// Returns the first process of `users:(("nginx",pid=7,fd=3))` as `nginx[7]`.
fn process(line: &str) -> Option<String> {
    let (_, users) = line.rsplit_once("users:((\"")?;
    let (name, rest) = users.split_once("\",pid=")?;
    let (number, _) = rest.split_once(',')?;
    Some(format!("{}[{number}]", shown(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENERS: &str =
        "LISTEN 0      1      10.9.1.2:8080 0.0.0.0:* users:((\"ng\",pid=7,fd=3),(\"ng\",pid=8,fd=3))
\t skmem:(r0,rb131072,t0,tb16384,f0,w0,o0,bl0,d5)
LISTEN 0      128    [::]:22 [::]:*
\t skmem:(r0,rb131072,t0,tb16384,f0,w0,o0,bl0,d0)
";
    const PACKET: &str = "p_raw UNCONN 0      0      *:lo * users:((\"tcpdump\",pid=9,fd=4)) skmem:(r0,rb212992,t0,tb212992,f0,w0,o136,bl0,d98)\n";

    fn drops(of: &[(SocketKind, &str)]) -> SocketDrops {
        let mut all = SocketDrops::default();
        for (kind, text) in of {
            for (address, drops, process) in parse(text) {
                all.0.insert((None, *kind, address), (drops, process));
            }
        }
        all
    }

    #[test]
    fn sockets_that_dropped_more_are_named() {
        let now = drops(&[(SocketKind::Listener, LISTENERS), (SocketKind::Packet, PACKET)]);
        let before = drops(&[(SocketKind::Listener, &LISTENERS.replace("d5", "d2"))]);
        let found = now.since(&before);
        let named = |kind| found.of(None, kind);
        assert_eq!(named(SocketKind::Listener).as_deref(), Some("10.9.1.2:8080 of ng[7] (3)"));
        assert_eq!(named(SocketKind::Packet).as_deref(), Some("*:lo of tcpdump[9] (98)"));
        assert_eq!(found.full_packet_sockets(), BTreeMap::from([(None, 98)]));
        assert_eq!(found.of(Some("b"), SocketKind::Packet), None);
    }
}
