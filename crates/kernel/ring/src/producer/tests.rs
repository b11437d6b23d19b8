//! A producer and a consumer on two threads: every block arrives whole and in order, and every packet is accounted for.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use trawl_sys::testing::root_or_skip;

use super::*;
use crate::{Consumer, Geometry, SHARE_MIN};

const POINT: u32 = 3;

fn tiny_ring() -> Arc<Rings> {
    let geometry = Geometry::for_total(SHARE_MIN, 1).unwrap();
    Rings::in_memory(geometry, 1).unwrap()
}

fn both_sides(rings: &Arc<Rings>, limit: Option<u64>) -> (Producer, Consumer) {
    let tickets = Arc::new(Tickets::new(limit));
    let producer = Producer::all(rings, &tickets, 1).pop().unwrap();
    (producer, Consumer::all(rings).pop().unwrap())
}

/// Returns a unique packet of a length that looks random.
fn packet(number: u64) -> Vec<u8> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let length = 8 + (mixed % 1500) as usize;
    let mut bytes = vec![mixed as u8; length];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn record(producer: &mut Producer, number: u64) -> Noted {
    let bytes = packet(number);
    let (front, back) = bytes.split_at(bytes.len() / 3);
    producer.record(&Sighting {
        point: POINT,
        interface: 7,
        time: 1000 + number,
        hardware_stamped: false,
        flags: Some(1),
        identified: true,
        queue: number.is_multiple_of(2).then_some(5),
        original: bytes.len() as u32,
        snaplen: u32::MAX,
        bytes: [front, &[], back],
    })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The tested fields of a block.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    number: u64,
    drop_count: u64,
}

/// Returns the losses that a record's options report; no option means none.
fn drop_count(mut options: &[u8]) -> u64 {
    while options.len() >= 4 {
        let length = (word(options, 0) >> 16) as usize;
        if word(options, 0) == OPTION_DROPCOUNT {
            let count = u64::from(word(options, 4)) | u64::from(word(options, 8)) << 32;
            assert_ne!(count, 0, "a drop count without drops");
            return count;
        }
        options = &options[4 + length.next_multiple_of(4)..];
    }
    0
}

/// Splits a chunk into its blocks, and checks each of them.
fn read_blocks(mut chunk: &[u8], seen: &mut Vec<Seen>) {
    while !chunk.is_empty() {
        let size = word(chunk, 4) as usize;
        let (block, rest) = chunk.split_at(size);
        let captured = word(block, 20) as usize;
        let number = u64::from_le_bytes(block[HEADER..HEADER + 8].try_into().unwrap());
        assert_eq!((word(block, 0), word(block, size - 4)), (6, size as u32), "a torn block");
        assert_eq!(block[HEADER..HEADER + captured], packet(number));
        assert_eq!((word(block, 8), word(block, 16), word(block, 24)), (7, 1000 + number as u32, captured as u32));
        let options = HEADER + captured.next_multiple_of(4);
        assert!(block[HEADER + captured..options].iter().all(|b| *b == 0));
        let drop_count = drop_count(&block[options..size - END]);
        seen.push(Seen { number, drop_count });
        chunk = rest;
    }
}

fn read_all(consumer: &mut Consumer, seen: &mut Vec<Seen>) {
    let until = consumer.observe();
    loop {
        let chunk = consumer.chunk(&until);
        let length = chunk.len();
        if length == 0 {
            return;
        }
        read_blocks(chunk, seen);
        consumer.consume(length);
    }
}

fn assert_adds_up(rings: &Rings) {
    let account = rings.account(POINT);
    assert_eq!(account.seen, account.recorded + account.lost_ring_full);
}

#[test]
fn reader_that_keeps_up_gets_every_block_in_order() {
    const PACKETS: u64 = 50_000;
    let rings = tiny_ring();
    let (mut producer, mut consumer) = both_sides(&rings, None);
    let read = AtomicU64::new(0);
    let mut seen = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..PACKETS {
                // Never more packets in flight than certainly fit next to a partly read segment.
                while number - read.load(Ordering::Acquire) >= 16 {
                    thread::yield_now();
                }
                assert_eq!(record(&mut producer, number), Noted::Recorded);
            }
        });
        // Both sides take turns, for which a busy machine needs any time.
        while (seen.len() as u64) < PACKETS {
            read_all(&mut consumer, &mut seen);
            read.store(seen.len() as u64, Ordering::Release);
            thread::yield_now();
        }
    });
    let expected = (0..PACKETS).map(|number| Seen { number, drop_count: 0 });
    assert!(seen.into_iter().eq(expected));
    let account = rings.account(POINT);
    assert_eq!((account.seen, account.recorded), (PACKETS, PACKETS));
    assert_adds_up(&rings);
}

#[test]
fn misses_of_a_slow_reader_are_counted_and_reported() {
    const PACKETS: u64 = 100_000;
    let rings = tiny_ring();
    let (mut producer, mut consumer) = both_sides(&rings, None);
    let done = AtomicBool::new(false);
    let mut seen = Vec::new();
    let mut lost = 0;
    let lost_in_thread = &mut lost;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..PACKETS {
                *lost_in_thread += u64::from(record(&mut producer, number) == Noted::Lost);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            read_all(&mut consumer, &mut seen);
            thread::sleep(Duration::from_micros(200));
        }
    });
    read_all(&mut consumer, &mut seen);
    assert!(lost > 0, "the reader was not slow");
    let account = rings.account(POINT);
    assert_eq!((account.seen, account.recorded, account.lost_ring_full), (PACKETS, seen.len() as u64, lost));
    assert_adds_up(&rings);
    // The drop counts are exactly the gaps between the numbers.
    let mut next = 0;
    for one in &seen {
        assert_eq!(one.number, next + one.drop_count);
        next = one.number + 1;
    }
}

#[test]
fn limit_is_exact() {
    for limit in [0, 1, 5, 20] {
        let rings = tiny_ring();
        let (mut producer, _consumer) = both_sides(&rings, Some(limit));
        let outcomes: Vec<Noted> = (0..100).map(|n| record(&mut producer, n)).collect();
        let recorded = outcomes.iter().filter(|o| **o == Noted::Recorded).count();
        assert_eq!(recorded as u64, limit);
        assert!(outcomes[limit as usize..].iter().all(|o| *o == Noted::LimitReached));
        assert_eq!(rings.account(POINT).seen, limit);
        assert!(producer.limit_reached());
    }
}

#[test]
fn full_ring_takes_no_tickets() {
    const LIMIT: u64 = 500;
    let rings = tiny_ring();
    let (mut producer, mut consumer) = both_sides(&rings, Some(LIMIT));
    let mut seen = Vec::new();
    let mut number = 0;
    while !producer.limit_reached() {
        record(&mut producer, number);
        number += 1;
        if number.is_multiple_of(300) {
            read_all(&mut consumer, &mut seen);
        }
    }
    read_all(&mut consumer, &mut seen);
    let account = rings.account(POINT);
    assert_eq!((account.recorded, seen.len() as u64), (LIMIT, LIMIT));
    assert!(account.lost_ring_full > 0);
    assert_eq!(account.seen, number);
    assert_adds_up(&rings);
}

#[test]
fn limit_is_exact_for_several_producers() {
    const LIMIT: u64 = 1000;
    let geometry = Geometry::for_total(4 << 20, 4).unwrap();
    let rings = Rings::in_memory(geometry, 4).unwrap();
    let tickets = Arc::new(Tickets::new(Some(LIMIT)));
    let producers = Producer::all(&rings, &tickets, 1);
    thread::scope(|scope| {
        for mut producer in producers {
            scope.spawn(move || (0..LIMIT).for_each(|n| _ = record(&mut producer, n)));
        }
    });
    let account = rings.account(POINT);
    assert_eq!((account.seen, account.recorded), (LIMIT, LIMIT));
}

#[test]
fn tickets_come_from_the_programs_counter() {
    if !root_or_skip() {
        return;
    }
    let geometry = Geometry::for_total(SHARE_MIN, 1).unwrap();
    let programs = Rings::in_maps(geometry, 1, 1, false, Vec::new()).unwrap();
    let rings = tiny_ring();
    let tickets = Arc::new(Tickets::new(Some(10)));
    tickets.share_with(&programs);
    let mut producer = Producer::all(&rings, &tickets, 1).pop().unwrap();
    assert_eq!(record(&mut producer, 0), Noted::Recorded);
    let counter = programs.tickets().unwrap();
    assert_eq!(counter.fetch_add(8, Ordering::Relaxed), 1);
    assert_eq!(record(&mut producer, 1), Noted::Recorded);
    assert_eq!(record(&mut producer, 2), Noted::LimitReached);
}

#[test]
fn losses_elsewhere_are_reported_once() {
    let rings = tiny_ring();
    let (mut producer, mut consumer) = both_sides(&rings, None);
    let mut seen = Vec::new();
    record(&mut producer, 0);
    producer.add_lost(12);
    producer.unreadable(POINT);
    record(&mut producer, 1);
    record(&mut producer, 2);
    read_all(&mut consumer, &mut seen);
    let counts: Vec<u64> = seen.iter().map(|one| one.drop_count).collect();
    assert_eq!(counts, [0, 13, 0]);
    let account = rings.account(POINT);
    assert_eq!((account.seen, account.recorded, account.lost_copy_failed), (4, 3, 1));
}

#[test]
fn long_packets_are_cut_and_counted_as_such() {
    let rings = tiny_ring();
    let (mut producer, mut consumer) = both_sides(&rings, None);
    let bytes = vec![9; 60_000];
    let most = rings.geometry().max_captured();
    for (snaplen, expected) in [(0, 0), (61, 61), (u32::MAX, most)] {
        let sight = Sighting {
            point: POINT,
            interface: 0,
            time: 1,
            hardware_stamped: true,
            flags: None,
            identified: false,
            queue: None,
            original: 70_000,
            snaplen,
            bytes: [&bytes, &[], &[]],
        };
        assert_eq!(producer.record(&sight), Noted::Recorded);
        let until = consumer.observe();
        let block = consumer.chunk(&until);
        assert_eq!((word(block, 20), word(block, 24)), (expected, 70_000));
        let length = block.len();
        consumer.consume(length);
    }
    let account = rings.account(POINT);
    assert_eq!((account.truncated, account.hardware_stamped), (3, 3));
}

#[test]
fn live_producer_holds_the_merge_back_and_a_finished_one_does_not() {
    let rings = tiny_ring();
    let (mut producer, consumer) = both_sides(&rings, None);
    producer.advance(500);
    producer.advance(400);
    let observed = consumer.observe();
    assert!(observed.in_flight);
    assert_eq!(observed.last_time, 500);
    record(&mut producer, 1);
    assert_eq!(consumer.observe().last_time, 1001);
    assert!(!producer.is_stopped());
    rings.stop();
    assert!(producer.is_stopped());
    drop(producer);
    assert!(!consumer.observe().in_flight);
}
