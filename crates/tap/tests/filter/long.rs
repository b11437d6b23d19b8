//! A thousand terms: compiled, lowered, put into a tap's program, taken by the verifier and
//! attached. How long it takes is printed, not asserted: machines differ.

use std::time::Instant;

use trawl_filter::Target;
use trawl_kernel::ring::Geometry;
use trawl_lab::{Pair, PairOptions};
use trawl_tap::Choice;
use trawl_tap::account::Summary;
use trawl_tap::assembly::{Host, Point};
use trawl_tap::filter::Filter;
use trawl_tap::session::{Observer, Session};
use trawl_tap::site::{Mode, Options, Site, TimeSource};

use crate::kernel::{Loaded, root_or_skip};
use crate::support::classic;

struct Quiet;

impl Observer for Quiet {
    fn notice(&mut self, _text: &trawl_tap::notice::Notice) {}
    fn started(&mut self, _points: &[Point]) {}
    fn figures(&mut self, _summary: &Summary) {}
}

/// The usual, with a filter.
pub fn options(tap: Choice, filter: Filter) -> Options {
    Options {
        tap,
        direction: None,
        at: None,
        programs: None,
        verdicts: None,
        mode: Mode::NativeFirst,
        hook: None,
        drops: None,
        time: TimeSource::System,
        filter: Some(filter),
        filter_at: None,
        queue: None,
        cpu: None,
        sample: None,
        rate_limit: None,
        snaplen: 262_144,
        count: None,
        duration: None,
        geometry: Geometry::for_size(1 << 20).expect("a good size"),
        promiscuous: true,
    }
}

fn thousand(term: impl Fn(u32) -> String) -> String {
    (0..1000).map(term).collect::<Vec<_>>().join(" or ")
}

/// Lists as people write them.
fn lists() -> [(&'static str, String); 2] {
    [
        (
            "hosts",
            thousand(|n| format!("host 10.{}.{}.{}", n % 7, n / 250, n % 250)),
        ),
        ("ports", thousand(|n| format!("port {}", n * 7 + 1))),
    ]
}

#[test]
fn a_thousand_terms_are_loaded() {
    if !root_or_skip() {
        return;
    }
    for (what, expression) in lists() {
        let start = Instant::now();
        let classic = classic(&expression);
        let compiled = start.elapsed();
        for target in [Target::xdp(), Target::tc()] {
            let start = Instant::now();
            Loaded::new(&classic, target).unwrap_or_else(|e| panic!("{what} at {target:?}: {e}"));
            println!(
                "1000 {what}, {:?}: compiled in {compiled:.0?}, lowered and loaded in {:.0?}",
                target.hook,
                start.elapsed()
            );
        }
    }
}

#[test]
fn a_thousand_terms_are_attached() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions::default()).expect("a lab for the test");
    let site = Site::find(&pair.b.interface, Some(&pair.b.name)).expect("the lab's interface");
    for (what, expression) in lists() {
        for tap in [Choice::Xdp, Choice::Tc] {
            let options = options(tap, Filter::Expression(expression.clone()));
            let host = Host {
                os: "Linux".to_owned(),
                hardware: "test".to_owned(),
                application: "trawl".to_owned(),
            };
            let start = Instant::now();
            let session = Session::attach(std::slice::from_ref(&site), &options, host, &mut Quiet);
            let taken = start.elapsed();
            assert!(session.is_ok(), "{what} at {tap:?}: {:?}", session.err());
            println!("1000 {what}, {tap:?}: compiled, spliced, loaded and attached in {taken:.0?}");
        }
    }
}
