//! All methods by which a process gets a socket, at tc on both ends and at XDP, in one capture.

use trawl_tests::pcapng::Contents;
use trawl_tests::{Capture, Lab, amount, args};

use super::{Server, Tally, ask, compare, shows_each_use};

/// A server and its clients.
struct Case {
    server: &'static str,
    clients: &'static str,
    clients_at_most: u64,
    over_ipv6: bool,
    /// True if the owner of the listening socket is certain: packets have the process that will answer, or none.
    knows_listener: bool,
    /// Returns true for descriptions of packets whose process may be unknown.
    may_be_unknown: fn(&str) -> bool,
}

const fn case(server: &'static str, clients: &'static str, clients_at_most: u64) -> Case {
    Case { server, clients, clients_at_most, over_ipv6: false, knows_listener: false, may_be_unknown: |_| false }
}

impl Case {
    fn count(&self) -> usize {
        amount(self.clients_at_most) as usize
    }
}

const CASES: [Case; 14] = [
    case("prefork", "each", 20),
    case("prefork-address", "each", 20),
    Case { over_ipv6: true, ..case("prefork-address", "each", 20) },
    Case { knows_listener: true, ..case("group", "each", 40) },
    Case {
        knows_listener: true,
        may_be_unknown: |packet| packet.starts_with("None") && packet.contains("sent: false, at the server: true"),
        ..case("steered", "each", 40)
    },
    case("pass", "each", 20),
    case("exec", "each", 8),
    case("first", "each", 20),
    case("file", "each", 20),
    case("ring", "each", 20),
    case("ring-thread", "each", 20),
    case("fork", "inherited", 20),
    case("fork", "one-port", 20),
    case("close", "time-wait", 20),
];
const FIRST_PORT: u16 = 7701;

fn check(case: &Case, tally: &Tally, at_both_ends: bool) {
    let what = format!("{} {}, at both ends: {at_both_ends}", case.server, case.clients);
    // A connection that begins on the ports of a closed one belongs to the listening socket.
    let reuses = case.clients == "time-wait";
    assert!(!reuses || tally.unknown.is_empty(), "{what}: {tally:#?}");
    let mut faults = tally.faults();
    faults.retain(|one| !(case.may_be_unknown)(one));
    assert!(faults.is_empty(), "{what}: {faults:#?}");
    // A client has a datagram, its answer and at least six segments; the server has a datagram and a segment.
    let least = if at_both_ends { 10 } else { 1 + usize::from(shows_each_use()) };
    assert!(tally.right >= least * case.count(), "{what}: {tally:?}");
}

/// Returns the number of packets without a process, as the capture states it.
fn unknown(said: &str) -> usize {
    let number = |line: &str| line.strip_prefix("trawl: the process of ")?.split(' ').next()?.parse().ok();
    said.lines().find_map(number).unwrap_or(0)
}

#[test]
fn sockets_are_followed_from_process_to_process() {
    let Some(lab) = Lab::open() else { return };
    let ports = format!("portrange {FIRST_PORT}-{}", FIRST_PORT + CASES.len() as u16);
    let tc = lab.file("tc.pcapng");
    let at_tc = args!("-i {} -i {} --tap tc --process -w {tc} {ports}", lab.sender(), lab.receiver());
    let at_tc = Capture::start(&lab, &at_tc);
    let xdp = lab.file("xdp.pcapng");
    let at_xdp = args!("-i {} --tap xdp --process -w {xdp} {ports}", lab.receiver());
    let at_xdp = Capture::start(&lab, &at_xdp);
    let mut done = Vec::new();
    for (case, port) in CASES.iter().zip(FIRST_PORT..) {
        let address = if case.over_ipv6 { lab.pair.b.ipv6.to_string() } else { lab.pair.b.ipv4.to_string() };
        let server = Server::start(case.server, &lab.pair.b, &address, port);
        let truths = ask(case.clients, &lab.pair.a, &address, port, case.count());
        let listeners = if case.knows_listener { Vec::new() } else { server.processes() };
        done.push((case, port, truths, listeners));
    }
    for (capture, file, at_both_ends) in [(at_tc, tc, true), (at_xdp, xdp, false)] {
        let finished = capture.stop();
        finished.summary_of_success();
        let contents = Contents::read(&file);
        assert!(contents.undescribed == 0 || !shows_each_use(), "{file}");
        let unseen = "some received packets will name an earlier owner of their socket as their process";
        let number = finished.stderr.matches(unseen).count();
        assert_eq!(number, usize::from(!shows_each_use()), "{}", finished.stderr);
        for (case, port, truths, listeners) in &done {
            check(case, &compare(&contents, *port, truths, listeners), at_both_ends);
        }
        let nameless = contents.packets.iter().filter(|one| one.process().is_none());
        assert_eq!(nameless.count(), unknown(&finished.stderr), "{}", finished.stderr);
    }
}
