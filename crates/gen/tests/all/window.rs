//! The receiving program against a model: it runs on sequences of all kinds, and its counts are compared with a set
//! that forgets nothing. The program runs in the kernel, on no interface.

use std::cell::Cell;
use std::collections::HashSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use trawl_bpf::layout::receive::{RECEIVE_FIRST_ERA, RECEIVE_WINDOW};
use trawl_bpf::probe::{Capability, missing_capabilities};
use trawl_gen::stamp::{self, Stamp};
use trawl_io::receive::{FlowKey, ReceiveFlow, ReceiveProgram, ReceiveVerdict};

const WINDOW: u64 = RECEIVE_WINDOW as u64;
/// Jump of the sequence number that the program treats as a restart.
const RESTART: u64 = 10_000_000;

fn program(flows: u32) -> Option<ReceiveProgram> {
    if !missing_capabilities(&Capability::FOR_BPF).is_empty() {
        eprintln!("SKIPPED: requires root, to load programs");
        return None;
    }
    Some(ReceiveProgram::load(ReceiveVerdict::Drop, flows).unwrap_or_else(|e| panic!("{e}")))
}

fn frame(key: FlowKey, sequence: u32, time: u64, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    let stamp = Stamp { stream: key.stream, flow: key.flow, sequence, time };
    stamp.write(&mut frame);
    frame
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    received: u64,
    lost: u64,
    reordered: u64,
    duplicates: u64,
    too_old: u64,
    restarts: u64,
}

impl Counts {
    fn of(flow: &ReceiveFlow) -> Self {
        Self {
            received: flow.received,
            lost: flow.lost_before + (flow.highest - flow.first + 1) - flow.distinct,
            reordered: flow.reordered,
            duplicates: flow.duplicates,
            too_old: flow.too_old,
            restarts: flow.restarts,
        }
    }
}

/// Returns the expected counts for packets (sequence number, time of stamp) in this order.
fn model(packets: &[(u64, u64)]) -> Counts {
    let mut counts = Counts::default();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut highest = (0, 0);
    let missing = |seen: &HashSet<u64>, highest: u64| {
        let lowest = seen.iter().min().copied().unwrap_or(highest);
        highest - lowest + 1 - seen.len() as u64
    };
    for &(sequence, time) in packets {
        counts.received += 1;
        if seen.is_empty() || sequence > highest.0 {
            highest = (sequence, time);
            seen.insert(sequence);
        } else if time > highest.1 + RESTART {
            counts.lost += missing(&seen, highest.0);
            counts.restarts += 1;
            seen = HashSet::from([sequence]);
            highest = (sequence, time);
        } else if highest.0 - sequence >= WINDOW {
            counts.too_old += 1;
        } else if !seen.insert(sequence) {
            counts.duplicates += 1;
        } else {
            counts.reordered += 1;
        }
    }
    counts.lost += missing(&seen, highest.0);
    counts
}

/// A step from the previous packet: mostly small ones in both directions, sometimes one of about the window's length,
/// sometimes a restart.
fn steps() -> impl Strategy<Value = Vec<(i64, bool)>> {
    let step = prop_oneof![
        12 => Just(1i64),
        4 => -6..6i64,
        2 => -200..200i64,
        1 => (WINDOW as i64 - 3)..(WINDOW as i64 + 3),
        1 => (-(WINDOW as i64) - 3)..(-(WINDOW as i64) + 3),
        1 => 0..3 * WINDOW as i64,
    ];
    prop::collection::vec((step, prop::bool::weighted(0.01)), 1..300)
}

#[test]
fn program_counts_like_the_model() {
    let Some(program) = program(2000) else { return };
    let number = Cell::new(0);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(200) });
    // Sequence numbers of all sizes, also ones that wrap around in 32 bits.
    let starts = prop_oneof![Just(0u64), Just(u64::from(u32::MAX) - 100), 0..1u64 << 32];
    let result = runner.run(&(starts, steps()), |(start, steps)| {
        number.set(number.get() + 1);
        let key = FlowKey { stream: number.get(), flow: 7 };
        // Room below, so that steps back do not go below zero.
        let mut sequence = (1 << 32) + start;
        let mut time = 0;
        let packets: Vec<(u64, u64)> = steps
            .into_iter()
            .map(|(step, anew)| {
                sequence = sequence.saturating_add_signed(step);
                time += if anew { 2 * RESTART } else { 0 };
                (sequence, time)
            })
            .collect();
        for &(sequence, time) in &packets {
            let frame = frame(key, sequence as u32, time, 60);
            prop_assert_eq!(program.show(&frame).expect("a test run"), ReceiveVerdict::Drop as u32);
        }
        let flows = program.flows().expect("the flows");
        let (_, flow) = flows.iter().find(|(k, _)| *k == key).expect("this flow");
        prop_assert_eq!(Counts::of(flow), model(&packets));
        prop_assert_eq!(flow.bytes, 60 * packets.len() as u64);
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn flows_beyond_the_limit_are_counted_without_order() {
    let Some(program) = program(2) else { return };
    for flow in 0..4 {
        let key = FlowKey { stream: 1, flow };
        for _ in 0..3 {
            program.show(&frame(key, 0, 0, 60)).expect("a test run");
        }
    }
    let totals = program.totals().expect("totals");
    let sum = |of: fn(&trawl_io::receive::ReceiveTotals) -> u64| totals.iter().map(of).sum::<u64>();
    assert_eq!(sum(|t| t.stamped), 12);
    assert_eq!(sum(|t| t.untracked), 6);
    let flows = program.flows().expect("flows");
    assert_eq!(flows.len(), 2);
    assert!(flows.iter().all(|(_, flow)| flow.duplicates == 2));
}

#[test]
fn packets_without_a_stamp_pass_and_are_counted_separately() {
    let Some(program) = program(2) else { return };
    let key = FlowKey { stream: 1, flow: 1 };
    let mut spoiled = frame(key, 0, 0, 60);
    spoiled[50] ^= 1;
    let mut trailed = frame(key, 0, 0, 60);
    trailed.push(0);
    for frame in [vec![0; 14], vec![0xff; 60], spoiled, trailed] {
        assert_eq!(program.show(&frame).expect("a test run"), ReceiveVerdict::Pass as u32);
    }
    let totals = program.totals().expect("totals");
    assert_eq!(totals.iter().map(|t| t.unstamped).sum::<u64>(), 4);
    assert_eq!(totals.iter().map(|t| t.unstamped_bytes).sum::<u64>(), 14 + 60 + 60 + 61);
    assert_eq!(totals.iter().map(|t| t.stamped).sum::<u64>(), 0);
}

#[test]
fn stamps_are_found_at_the_end_of_frames_of_all_lengths() {
    let Some(program) = program(2) else { return };
    let key = FlowKey { stream: 3, flow: 4 };
    let lengths = [18, 19, 60, 61, 1514, 3000, 3519, 4000, 4096, 9000, 9001];
    for (sequence, length) in (0..).zip(lengths) {
        program.show(&frame(key, sequence, 0, length)).expect("a test run");
    }
    let flows = program.flows().expect("flows");
    assert_eq!(flows[0].1.received, lengths.len() as u64);
    assert_eq!(flows[0].1.highest - flows[0].1.first, lengths.len() as u64 - 1);
    assert_eq!(flows[0].1.first, RECEIVE_FIRST_ERA as u64);
}

#[test]
fn latencies_are_from_the_stamp_to_now() {
    let Some(program) = program(2) else { return };
    let key = FlowKey { stream: 3, flow: 4 };
    let before = stamp::now();
    program.show(&frame(key, 0, before, 60)).expect("a test run");
    let after = stamp::now();
    // An hour ahead on another clock.
    let later = after + 3_600_000_000_000;
    program.show(&frame(key, 1, later, 60)).expect("a test run");
    // A duplicate has no latency.
    program.show(&frame(key, 0, before, 60)).expect("a test run");
    let latency = program.flows().expect("flows")[0].1.latency;
    assert_eq!((latency.count, latency.negative, latency.least), (2, 1, 0));
    assert!(latency.most <= after - before, "{latency:?}");
    assert!(latency.most > 0 && latency.sum == latency.most, "{latency:?}");
    assert!(latency.most_negative > 3_500_000_000_000, "{latency:?}");
    let totals = program.totals().expect("totals");
    let both: u64 = totals.iter().map(|t| t.latency.count).sum();
    assert_eq!(both, 2);
}
