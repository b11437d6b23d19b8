//! A pattern in the form of the sending program's tables.

use std::sync::Arc;

use trawl_bpf::layout::send::{
    SEND_EDITS, SEND_HEADER_WORDS, SEND_REACH, SEND_SUMS, SendEdit, SendPlan, SendState, SendSum, SendVariant,
};
use trawl_io::send::{LivePlan, dry_run};
use trawl_sys::{Error, Result};

use super::{Edit, Pattern, PatternSource, Variant};

/// The tables of the program, and its first frame.
#[derive(Clone, Debug)]
pub struct Tables {
    plan: SendPlan,
    variants: Vec<SendVariant>,
    schedule: Vec<u32>,
    lists: Vec<u64>,
    frame: Vec<u8>,
}

const NO_SUM: SendSum = SendSum { offset: 0, start: 0, never_zero: 0, padding: 0 };

impl Tables {
    /// Returns the tables. Fails with the reason for patterns that the kernel cannot make.
    pub fn of(pattern: &Pattern) -> Result<Self> {
        let cannot = |why: String| Error::failed("cannot make these frames in the kernel", why);
        let longest = pattern.variants.iter().max_by_key(|one| one.length());
        let frame = longest.map(|one| one.bytes.clone()).unwrap_or_default();
        let mut lists = Lists::default();
        let mut variants = Vec::new();
        let header = Header::of(pattern, &frame);
        if header.words > SEND_HEADER_WORDS {
            let reach = SEND_HEADER_WORDS * 8;
            return Err(cannot(format!("they differ after their first {reach} bytes")));
        }
        for variant in &pattern.variants {
            if variant.edits.len() > SEND_EDITS {
                return Err(cannot(format!("more than {SEND_EDITS} fields change")));
            }
            if variant.edits.iter().any(|e| e.offset() + 8 > SEND_REACH) {
                return Err(cannot(format!("a field lies after the first {SEND_REACH} bytes")));
            }
            variants.push(in_kernel(variant, &frame, &header, &mut lists));
        }
        Ok(Self {
            plan: SendPlan {
                flows: pattern.flows.unwrap_or(0),
                schedule: pattern.schedule.len() as u64,
                every: pattern.exception.map_or(0, |one| one.every),
                other: pattern.exception.map_or(0, |one| one.further as u32),
                longest: frame.len() as u32,
                tail: header.tail as u32,
                // Set for each thread: see `plan`.
                stream: 0,
                stamp_every: 0,
                stamp_flows: 0,
            },
            variants,
            schedule: pattern.schedule.clone(),
            lists: lists.values,
            frame,
        })
    }

    /// Returns the frame that the program begins with.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Returns the plan for the next frames of the source.
    pub fn plan(&self, source: &PatternSource) -> LivePlan<'_> {
        let marks = source.marks();
        LivePlan {
            plan: SendPlan {
                stream: marks.map_or(0, |marks| marks.stream.into()),
                stamp_every: marks.map_or(0, |marks| marks.every),
                stamp_flows: marks.map_or(0, |marks| marks.flows),
                ..self.plan
            },
            variants: &self.variants,
            schedule: &self.schedule,
            lists: &self.lists,
            state: SendState { number: source.number, stride: source.stride },
        }
    }

    /// Returns the first frames as the kernel makes them, without sending any.
    pub fn dry_run(&self, source: &PatternSource, count: usize) -> Result<Vec<Vec<u8>>> {
        dry_run(&self.plan(source), &self.frame, count)
    }
}

/// Length that holds Ethernet with a tag, IPv6 and UDP; IPv4 and the part of TCP that routers rewrite fit as well.
const REWRITTEN_IN_TRANSIT: usize = 64;

/// Bytes written to the beginning of each frame, so that it is right whatever the page contained before.
struct Header {
    words: usize,
    /// Offset of the last word if it is not a whole one; else 0.
    tail: usize,
}

impl Header {
    /// Finds the length up to which the frames differ from the kernel's first one, and the headers in any case: a
    /// router or a balancer on the path rewrites addresses and TTL in the very page that the kernel sends again. A
    /// stamp that a shorter frame leaves after its end lies where all frames have zeroes, or else they would differ
    /// there: it changes no checksum.
    fn of(pattern: &Pattern, frame: &[u8]) -> Self {
        let differing = |variant: &Variant| {
            let mut pairs = variant.bytes.iter().zip(frame);
            pairs.rposition(|(one, other)| one != other).map_or(0, |last| last + 1)
        };
        let differing = pattern.variants.iter().map(differing).max().unwrap_or(0);
        let differing = differing.max(frame.len().min(REWRITTEN_IN_TRANSIT));
        let (words, whole) = (differing.div_ceil(8), frame.len() / 8);
        Self { words: words.min(whole), tail: if words > whole { frame.len() - 8 } else { 0 } }
    }
}

/// The values of all lists; fields with equal lists share them.
#[derive(Default)]
struct Lists {
    values: Vec<u64>,
    known: Vec<(Arc<[u64]>, u32)>,
}

impl Lists {
    /// Returns the rule of an edit, with the position of its list.
    fn add(&mut self, edit: &Edit) -> SendEdit {
        let known = self.known.iter().find(|(one, _)| Arc::ptr_eq(one, &edit.list));
        let list = match known {
            _ if edit.list.is_empty() => 0,
            Some((_, at)) => *at,
            None => {
                let at = self.values.len() as u32;
                self.values.extend_from_slice(&edit.list);
                self.known.push((Arc::clone(&edit.list), at));
                at
            }
        };
        SendEdit { list, ..edit.rule }
    }
}

fn in_kernel(variant: &Variant, frame: &[u8], header: &Header, lists: &mut Lists) -> SendVariant {
    let no_edit = Edit::number(0).rule;
    let mut made = SendVariant {
        length: variant.length() as u32,
        header_words: header.words as u32,
        edits: variant.edits.len() as u32,
        sums: variant.sums.len() as u32,
        sum: [NO_SUM; SEND_SUMS],
        edit: [no_edit; SEND_EDITS],
        header: [0; SEND_HEADER_WORDS],
        tail: 0,
    };
    // The rest of a shorter frame is cut off afterwards.
    let whole = [&variant.bytes[..], &frame[variant.length()..]].concat();
    for (to, from) in made.header.iter_mut().zip(whole.as_chunks::<8>().0) {
        *to = u64::from_ne_bytes(*from);
    }
    if let Some(last) = whole.last_chunk::<8>() {
        made.tail = u64::from_ne_bytes(*last);
    }
    made.sum[..variant.sums.len()].copy_from_slice(&variant.sums);
    for (to, edit) in made.edit.iter_mut().zip(&variant.edits) {
        *to = lists.add(edit);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::super::{Cover, Exception};
    use super::*;
    use crate::source::Source;
    use crate::stamp::{self, Stamp};

    /// Frames of three lengths with all kinds of values and two checksums, one of which covers the other.
    fn pattern() -> Pattern {
        let list = Edit::list([7, 9, 11].into());
        let variant = |length: usize, mark: u8| {
            let mut bytes = vec![0x11; length];
            bytes[30] = mark;
            bytes[length - 1] = mark;
            let edits = vec![
                Edit::random(3, 0, 1).at(0, 8, 16, 48),
                Edit::step(5, 3, 0).at(6, 8, 16, 48),
                Edit::step(5, 3, 4).at(14, 2, 2, 6),
                Edit::random(3, 1 << 20, 2).at(16, 4, 0, 32),
                Edit::random(3, 1000, 3).at(20, 2, 0, 16),
                list.clone().at(22, 2, 0, 16),
                Edit::number(1).at(32, 8, 0, 64),
            ];
            let cover = |offset, range, never_zero| Cover { offset, ranges: vec![range], constant: 17, never_zero };
            Variant::new(bytes, edits, &[cover(24, 16..30, false), cover(26, 14..length, true)])
        };
        let variants =
            vec![variant(60, 1), variant(64, 2), variant(61, 3), variant(60, 4), variant(64, 5), variant(61, 6)];
        let exception = Exception { every: 5, further: 3 };
        Pattern::new(variants, vec![0, 1, 0, 2], Some(7), Some(exception))
    }

    #[test]
    fn kernel_makes_the_same_frames() {
        if !may_run_programs() {
            eprintln!("SKIPPED: requires root, to run a program");
            return;
        }
        let pattern = Arc::new(pattern());
        for (thread, threads) in [(0, 1), (2, 3)] {
            let mut source = PatternSource::new(Arc::clone(&pattern), thread, threads);
            let made = Tables::of(&pattern).unwrap().dry_run(&source, 50).unwrap();
            for made in made {
                assert_eq!(made, pattern.frame(source.number()), "{}", source.number());
                source.skip(1);
            }
        }
    }

    #[test]
    fn stamps_made_in_the_kernel_equal_the_ones_made_here() {
        if !may_run_programs() {
            eprintln!("SKIPPED: requires root, to run a program");
            return;
        }
        let mut bytes = vec![0; 60];
        bytes[..14].fill(7);
        for (flows, threads) in [(None, 1), (Some(3), 1), (Some(4), 2), (Some(100_000), 3)] {
            let changing = Edit::number(0).at(0, 8, 16, 48);
            let variant = Variant::new(bytes.clone(), vec![changing], &[]);
            let pattern = Pattern::new(vec![variant], vec![0], flows, None);
            let pattern = Arc::new(pattern.stamped(9).unwrap());
            let mut source = PatternSource::new(Arc::clone(&pattern), threads - 1, threads);
            let before = stamp::now();
            let all = Tables::of(&pattern).unwrap().dry_run(&source, 50).unwrap();
            for made in all {
                let mut here = vec![0; 60];
                source.next(0, &mut here).unwrap();
                let (made_stamp, here_stamp) = (Stamp::read(&made), Stamp::read(&here));
                let (made_stamp, here_stamp) = (made_stamp.unwrap(), here_stamp.unwrap());
                let at = |time| Stamp { time, ..here_stamp };
                assert_eq!(made_stamp, at(made_stamp.time));
                assert_eq!(made[..42], here[..42]);
                assert!(at(before).age_at(made_stamp.time) >= 0);
                assert!(made_stamp.age_at(here_stamp.time) >= 0);
            }
        }
    }

    fn may_run_programs() -> bool {
        trawl_bpf::probe::has_capability(trawl_bpf::probe::Capability::NetAdmin)
    }

    #[test]
    fn frames_that_differ_far_in_are_refused() {
        let mut other = vec![0; 1000];
        other[999] = 1;
        let variants = vec![Variant::new(vec![0; 1000], Vec::new(), &[]), Variant::new(other, Vec::new(), &[])];
        let pattern = Pattern::new(variants, vec![0, 1], None, None);
        assert!(Tables::of(&pattern).is_err());
    }
}
