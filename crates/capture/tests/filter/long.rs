//! A thousand terms: compiled, lowered, spliced into a tap's program, accepted by the verifier and attached.

use trawl_capture::assembly::HostFeatures;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::point::Point;
use trawl_capture::session::{self, Observer};
use trawl_capture::summary::Summary;
use trawl_filter::Target;
use trawl_lab::{Pair, PairOptions};
use trawl_plan::TapChoice;
use trawl_plan::filter::Filter;
use trawl_plan::options::{CaptureOptions, Memory};

use crate::agreement::Readers;
use crate::kernel::{BUFFER, Loaded, root_or_skip};
use crate::support::classic;
use crate::support::oracle::oracle;
use crate::support::packets::frames;

struct Quiet;

impl Observer for Quiet {
    fn event(&mut self, _text: &trawl_capture::event::Event) {}
    fn started(&mut self, _points: &[Point]) {}
    fn figures(&mut self, _summary: &Summary) {}
}

/// Returns the usual options, with a filter.
pub fn options(tap: TapChoice, filter: Filter) -> CaptureOptions {
    CaptureOptions { filter: Some(filter), promiscuous: true, ..CaptureOptions::new(tap, Memory::ForEachCpu(1 << 20)) }
}

fn thousand(term: impl Fn(u32) -> String) -> String {
    (0..1000).map(term).collect::<Vec<_>>().join(" or ")
}

/// Returns typical lists.
fn lists() -> [(&'static str, String); 4] {
    [
        ("hosts", thousand(|n| format!("host 10.{}.{}.{}", n % 7, n / 250, n % 250))),
        ("ports", thousand(|n| format!("port {}", n * 7 + 1))),
        ("pairs", thousand(|n| format!("(host 10.1.{}.{} and port {n})", n / 250, n % 250))),
        ("IPv6 pairs", thousand(|n| format!("(not tcp and ip6 host 2001:db8::{n:x} and port {n})"))),
    ]
}

#[test]
fn a_thousand_terms_are_loaded() {
    if !root_or_skip() {
        return;
    }
    for (what, expression) in lists() {
        let classic = classic(&expression);
        for target in [Target::xdp(), Target::tc()] {
            Loaded::new(&classic, target).unwrap_or_else(|e| panic!("{what} at {target:?}: {e}"));
        }
    }
}

/// Returns lists that become tables, with members that occur in the frames and others.
fn tables() -> Vec<String> {
    let some = |from: u32, each: &dyn Fn(u32) -> String, word: &str| {
        let list: Vec<String> = (from..from + 300).map(each).collect();
        list.join(word)
    };
    let host = |n| format!("10.0.{}.{}", n / 200, n % 200);
    let host6 = |n| format!("2001:db8::{n:x}");
    let net = |n| format!("{}.{}.0.0/16", n % 200 + 9, n / 200);
    let net6 = |n| format!("2001:db{:x}::/{}", n % 20, 32 + n / 20 * 4);
    let port = |n: u32| (n + 20).to_string();
    let mac = |n: u32| format!("0{}:0:0:0:0:{:x}", n % 10, n / 10);
    vec![
        format!("src or dst port {}", some(0, &port, " or src or dst port ")),
        format!("ether src {}", some(0, &mac, " or ether src ")),
        format!("not ether host {}", some(0, &mac, " and not ether host ")),
        format!("vlan and (host {})", some(0, &host, " or ")),
        format!("mpls and not host {}", some(0, &host, " and not host ")),
        format!("host {}", some(0, &host, " or ")),
        format!("not dst host {}", some(1, &host, " and not dst host ")),
        format!("ip6 host {}", some(0, &host6, " or ")),
        format!("src host {} or dst port 80", some(0, &host6, " or src host ")),
        format!("tcp and (net {})", some(0, &net, " or net ")),
        format!("net {} or arp", some(0, &net6, " or net ")),
        format!("port {} and not (src net {})", some(0, &port, " or "), some(0, &net, " or src net ")),
        format!("udp dst portrange 4000-5000 or udp dst port {}", some(0, &port, " or udp dst port ")),
    ]
}

/// Returns lists of combinations.
fn combined() -> Vec<String> {
    let some = |each: &dyn Fn(u32) -> String, word: &str| {
        let list: Vec<String> = (0..300).map(each).collect();
        list.join(word)
    };
    let any_of = |each: &dyn Fn(u32) -> String| some(each, " or ");
    let host6 = |n| format!("2001:db8::{n:x}");
    let net = |n| format!("{}.{}.0.0/16", n % 200 + 9, n / 200);
    let net6 = |n| format!("2001:db{:x}::/{}", n % 20, 32 + n / 20 * 4);
    let mac = |n: u32| format!("0{}:0:0:0:0:{:x}", n % 10, n / 10);
    // Values that occur in the frames, among others.
    let addresses = ["10.0.0.1", "10.0.0.2", "192.168.1.2", "10.1.2.3"];
    let close = |n: u32| match n % 5 {
        4 => format!("10.7.{}.{}", n / 200, n % 200),
        known => addresses[known as usize].to_owned(),
    };
    let close_port = |n: u32| [53, 80, 443, 22, 1024, 6081, n][(n / 5 % 7) as usize];
    let pair = |n| format!("(host {} and port {})", close(n), close_port(n));
    vec![
        any_of(&pair),
        format!("not {}", some(&pair, " and not ")),
        format!("vlan and ({})", any_of(&pair)),
        format!("mpls and ({})", any_of(&pair)),
        format!("tcp and ({}) and not dst port 80", any_of(&pair)),
        any_of(&|n| format!("(src host {} and dst port {})", close(n), close_port(n))),
        any_of(&|n| format!("(tcp port {} and src net {})", close_port(n), net(n))),
        any_of(&|n| {
            let port = close_port(n);
            format!("(net {} and portrange {port}-{})", net(n % 70), port + n)
        }),
        any_of(&|n| format!("(ip6 and host {} and port {})", host6(n % 30), close_port(n))),
        any_of(&|n| format!("(port {} and net {})", close_port(n), net6(n))),
        any_of(&|n| format!("(host {} and host {})", close(n), close(n / 5))),
        any_of(&|n| format!("(host {} and host {})", host6(n % 30), host6(n / 30))),
        any_of(&|n| format!("(host {} and (port {n} or port {}))", close(n), close_port(n))),
        any_of(&|n| {
            let (port, other) = (close_port(n), close_port(n / 3));
            let (from, to) = (close(n), close(n / 5));
            format!("(src host {from} and src port {port} and dst host {to} and dst port {other})")
        }),
        any_of(&|n| format!("(ether host {} and src host {})", mac(n % 60), close(n / 30))),
        any_of(&|n| format!("(ether src {} and not tcp)", mac(n))),
    ]
}

#[test]
fn tables_agree_with_libpcap() {
    compare(&tables(), 300);
}

/// Pairs of host and port, and other terms joined by `and`.
#[test]
fn tables_of_combinations_agree_with_libpcap() {
    compare(&combined(), 1000);
}

fn compare(expressions: &[String], count: usize) {
    if !root_or_skip() {
        return;
    }
    for expression in expressions {
        let classic = classic(expression);
        assert!(classic.has_tables(), "{expression:.60}");
        let oracle = oracle(expression, false);
        let readers = Readers::new(classic, true).unwrap_or_else(|e| panic!("{expression:.60}: {e}"));
        let mut matched = 0;
        // In a frame that ends between two fields, the order of questions decides.
        let frames = frames(33, count).into_iter().filter(|frame| frame.len() >= 74);
        for frame in frames {
            let expected = oracle.matches(&frame);
            assert_eq!(readers.interpret(&frame, frame.len()), expected, "{expression:.60}: {frame:02x?}");
            readers.compare(&expression[..60], &frame, None);
            matched += usize::from(expected);
        }
        assert!(matched > 0, "{expression:.60} matches nothing");
    }
}

#[test]
fn a_hundred_thousand_terms_are_loaded() {
    if !root_or_skip() {
        return;
    }
    let list = |each: &dyn Fn(u32) -> String| (0..100_000).map(each).collect::<Vec<_>>().join(" or ");
    let (high, low) = (|n: u32| n >> 8, |n: u32| n & 255);
    for expression in [
        list(&|n| format!("host 10.{}.{}.{}", n >> 16, high(n) & 255, low(n))),
        list(&|n| format!("src net {}.{}.{}.0/24", 10 + (n >> 16), high(n) & 255, low(n))),
        list(&|n| format!("host 2001:db8:{:x}::{:x}", high(n), low(n))),
        list(&|n| format!("dst net 2001:{:x}:{:x}::/48", high(n), low(n))),
        list(&|n| format!("ether host 2:0:0:{:x}:{:x}:{:x}", n >> 16, high(n) & 255, low(n))),
        format!("vlan 5 and ({})", list(&|n| format!("src host 10.{}.{}.{}", n >> 16, high(n) & 255, low(n)))),
    ] {
        let classic = classic(&expression);
        for target in [Target::xdp(), Target::tc(), Target::copy(BUFFER)] {
            Loaded::new(&classic, target).unwrap_or_else(|e| panic!("{expression:.20} at {target:?}: {e}"));
        }
    }
}

#[test]
fn a_thousand_terms_are_attached() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions::default()).expect("a lab for the test");
    let site = CaptureSite::find(&pair.b.interface, Some(&pair.b.name)).expect("the lab's interface");
    for (what, expression) in lists() {
        for tap in [TapChoice::Xdp, TapChoice::Tc] {
            let options = options(tap, Filter::Expression(expression.clone()));
            let host =
                HostFeatures { os: "Linux".to_owned(), hardware: "test".to_owned(), application: "trawl".to_owned() };
            let attached = session::attach(std::slice::from_ref(&site), &options, host, &mut Quiet);
            assert!(attached.is_ok(), "{what} at {tap:?}: {:?}", attached.err());
        }
    }
}
