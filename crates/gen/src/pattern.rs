//! Frames as a function of their number: computed by the sending program in the kernel, and here in the same manner.
//!
//! A pattern is a table of [`Variant`]s (finished frames), an order of them, and in each variant some [`Edit`]s: fields
//! whose value follows from the number of the frame. A checksum that covers edited fields is a sum over the constant
//! part plus the fields, each with a factor; the factors are computed once, when the pattern is made. So the frame with
//! the number n is the same on every engine, and for any number of threads.

use std::ops::Range;
use std::sync::Arc;

use trawl_bpf::layout::send::{
    SEND_LIST, SEND_MIX_1, SEND_MIX_2, SEND_MIX_ADD, SEND_NUMBER, SEND_RANDOM, SEND_STEP, SEND_SUMS, SendEdit, SendSum,
};
use trawl_sys::Result;

use crate::stamp::{self, Stamp};

pub mod kernel;

/// A field that varies between frames, in the sending program's form: `base | value << shift`, big-endian.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The variant that has the edit sets `base` and `factor`, the program's tables set `list`.
    rule: SendEdit,
    /// Mask of the field in the edited bytes, shifted to its position.
    field: u64,
    /// Values of a list, which several fields may share; empty for other rules.
    list: Arc<[u64]>,
}

impl Edit {
    fn new(kind: usize, first: u64, step: u64, count: u64, seed: u64, list: Arc<[u64]>) -> Self {
        Self {
            rule: SendEdit {
                base: 0,
                first,
                step,
                count,
                seed,
                kind: kind as u32,
                offset: 0,
                width: 0,
                shift: 0,
                list: 0,
                factor: [0; SEND_SUMS],
                padding: 0,
            },
            field: 0,
            list,
        }
    }

    /// Creates `first + (turn modulo count) * step`; a count of zero means 2^64. `turn` is the frame's number, or the
    /// number of its flow.
    pub fn step(first: u64, step: u64, count: u64) -> Self {
        Self::new(SEND_STEP, first, step, count, 0, Arc::default())
    }

    /// Creates one of `count` values from `first` on: a count of zero means 2^64, and one above 2^32 is a power of two.
    pub fn random(first: u64, count: u64, seed: u64) -> Self {
        Self::new(SEND_RANDOM, first, 0, count, seed, Arc::default())
    }

    pub fn list(values: Arc<[u64]>) -> Self {
        Self::new(SEND_LIST, 0, 0, values.len() as u64, 0, values)
    }

    /// Creates the number of the frame itself, independent of its flow, plus `first`.
    pub fn number(first: u64) -> Self {
        Self::new(SEND_NUMBER, first, 0, 0, 0, Arc::default())
    }

    /// Returns the edit of a field of this many bits in the `width` (2, 4 or 8) bytes at this offset, which is even
    /// like all offsets of fields that checksums cover.
    #[must_use]
    pub fn at(mut self, offset: usize, width: usize, shift: u32, bits: u32) -> Self {
        (self.rule.offset, self.rule.width) = (offset as u32, width as u32);
        self.rule.shift = shift;
        self.field = (u64::MAX >> (64 - bits)) << shift;
        self
    }

    /// Returns the same edit of another field.
    #[must_use]
    pub fn moved(mut self, offset: usize) -> Self {
        self.rule.offset = offset as u32;
        self
    }

    pub fn offset(&self) -> usize {
        self.rule.offset as usize
    }

    pub fn width(&self) -> usize {
        self.rule.width as usize
    }

    pub fn end(&self) -> usize {
        self.offset() + self.width()
    }

    /// Returns the value in the frame of that number and turn.
    pub fn value(&self, number: u64, turn: u64) -> u64 {
        let SendEdit { first, step, count, seed, kind, .. } = self.rule;
        match kind as usize {
            SEND_STEP => first.wrapping_add(modulo(turn, count).wrapping_mul(step)),
            SEND_RANDOM => {
                let turn = turn.wrapping_add(1).wrapping_mul(SEND_MIX_ADD as u64);
                let random = mix(turn.wrapping_add(seed));
                first.wrapping_add(if count & count.wrapping_sub(1) == 0 {
                    random & count.wrapping_sub(1)
                } else {
                    ((random >> 32) * count) >> 32
                })
            }
            SEND_LIST => self.list[(turn % count) as usize],
            _ => first.wrapping_add(number),
        }
    }
}

fn modulo(value: u64, count: u64) -> u64 {
    value.checked_rem(count).unwrap_or(value)
}

/// Mixes the bits of a value: the last steps of splitmix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(SEND_MIX_1 as u64);
    let value = (value ^ value >> 27).wrapping_mul(SEND_MIX_2 as u64);
    value ^ value >> 31
}

/// A finished frame and its edits.
#[derive(Clone, Debug)]
pub struct Variant {
    bytes: Vec<u8>,
    edits: Vec<Edit>,
    sums: Vec<SendSum>,
}

impl Variant {
    /// Creates a variant. `covers` lists the frame's checksums, inner ones before the ones that cover them.
    pub fn new(bytes: Vec<u8>, mut edits: Vec<Edit>, covers: &[Cover]) -> Self {
        edits.sort_by_key(Edit::offset);
        for at in 0..edits.len() {
            let (edit, later) = edits[at..].split_first_mut().unwrap_or_else(|| unreachable!());
            let word = read_word(&bytes, edit.offset(), edit.width()) & !edit.field;
            // If a later edit overlaps, its value is written and counts.
            let overlap = later.iter().map(|later| {
                let from = later.offset().saturating_sub(edit.offset());
                match from.min(edit.width()) {
                    0 => u64::MAX,
                    from => low_bytes(edit.width() - from),
                }
            });
            edit.rule.base = word & !overlap.fold(0, |all, one| all | one);
        }
        let sums = set_factors(&bytes, &mut edits, covers);
        Self { bytes, edits, sums }
    }

    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    fn write(&self, number: u64, turn: u64, room: &mut [u8]) {
        room[..self.bytes.len()].copy_from_slice(&self.bytes);
        let mut sums = [0u64; SEND_SUMS];
        for (total, sum) in sums.iter_mut().zip(&self.sums) {
            *total = u64::from(sum.start);
        }
        for edit in &self.edits {
            let word = edit.rule.base | edit.value(number, turn) << edit.rule.shift;
            write_word(room, edit.offset(), edit.width(), word);
            for (total, factor) in sums.iter_mut().zip(edit.rule.factor) {
                *total += fold(word) * u64::from(factor);
            }
        }
        for (total, sum) in sums.iter().zip(&self.sums) {
            let stored = match !(fold(*total) as u16) {
                0 if sum.never_zero != 0 => 0xffff,
                stored => stored,
            };
            write_word(room, sum.offset as usize, 2, u64::from(stored));
        }
    }
}

fn low_bytes(count: usize) -> u64 {
    if count >= 8 { u64::MAX } else { (1 << (count * 8)) - 1 }
}

fn read_word(bytes: &[u8], offset: usize, width: usize) -> u64 {
    let word = bytes.get(offset..offset + width).unwrap_or(&[]);
    word.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

fn write_word(bytes: &mut [u8], offset: usize, width: usize, word: u64) {
    bytes[offset..offset + width].copy_from_slice(&word.to_be_bytes()[8 - width..]);
}

/// A different variant for every Nth frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    pub every: u64,
    /// Distance in the table from each variant to its exception.
    pub further: usize,
}

/// Frames as a function of their number.
#[derive(Clone, Debug)]
pub struct Pattern {
    variants: Vec<Variant>,
    /// Variant of each frame, in turn.
    schedule: Vec<u32>,
    /// Number of flows that frames belong to in turn; `None`: each frame has its own.
    flows: Option<u64>,
    exception: Option<Exception>,
    longest: usize,
    /// Stream of the first thread, if frames are stamped.
    stream: Option<u16>,
}

impl Pattern {
    /// Creates a pattern. Panics without a variant, or if the schedule names a missing one: both come from trawl
    /// itself.
    pub fn new(variants: Vec<Variant>, schedule: Vec<u32>, flows: Option<u64>, exception: Option<Exception>) -> Self {
        let further = exception.map_or(0, |one| one.further);
        let last = schedule.iter().max().map_or(0, |last| *last as usize);
        assert!(!schedule.is_empty() && last + further < variants.len());
        let longest = variants.iter().map(Variant::length).max().unwrap_or(0);
        Self { variants, schedule, flows, exception, longest, stream: None }
    }

    /// Adds a stamp to the end of each frame, which must be zero and unused until then. The error is the length of a
    /// frame that does not meet this.
    pub fn stamped(mut self, stream: u16) -> Result<Self, usize> {
        let has_no_room = |variant: &&Variant| {
            let room = variant.length().saturating_sub(stamp::LENGTH);
            let fields = variant.edits.iter().map(Edit::end);
            let sums = variant.sums.iter().map(|sum| sum.offset as usize + 2);
            let end = fields.chain(sums).max().unwrap_or(0);
            variant.length() < stamp::LENGTH || end > room || variant.bytes[room..].iter().any(|byte| *byte != 0)
        };
        if let Some(variant) = self.variants.iter().find(has_no_room) {
            return Err(variant.length());
        }
        self.stream = Some(stream);
        Ok(self)
    }

    /// Creates a pattern of a single frame.
    pub fn fixed(frame: Vec<u8>) -> Self {
        Self::new(vec![Variant::new(frame, Vec::new(), &[])], vec![0], None, None)
    }

    fn variant(&self, number: u64) -> &Variant {
        let mut at = self.schedule[(number % self.schedule.len() as u64) as usize] as usize;
        if let Some(Exception { every, further }) = self.exception
            && number % every == every - 1
        {
            at += further;
        }
        &self.variants[at]
    }

    /// Writes the frame with this number, and returns its length.
    pub fn write(&self, number: u64, room: &mut [u8]) -> usize {
        let variant = self.variant(number);
        let turn = self.flows.map_or(number, |flows| number % flows);
        variant.write(number, turn, room);
        variant.length()
    }

    /// Returns the frame with this number, as a single thread would send it.
    pub fn frame(&self, number: u64) -> Vec<u8> {
        let mut frame = vec![0; self.longest];
        let length = self.write(number, &mut frame);
        frame.truncate(length);
        if let Some(stream) = self.stream {
            let marks = Marks::new(stream, 0, 1, self.flows);
            marks.stamp(number).write(&mut frame);
        }
        frame
    }

    pub fn longest(&self) -> usize {
        self.longest
    }
}

/// Every Nth frame of a pattern.
#[derive(Clone, Debug)]
pub struct PatternSource {
    pattern: Arc<Pattern>,
    number: u64,
    stride: u64,
    marks: Option<Marks>,
}

/// Stamps of one thread's frames: the numbers are spread over threads and flows, and each flow of each thread has its
/// own sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    pub stream: u16,
    /// Number of flows: a frame's flow is its number modulo this.
    pub flows: u64,
    /// Divisor of a frame's number that gives its sequence number: the thread returns to a flow after that many frames.
    pub every: u64,
}

impl Marks {
    fn new(first_stream: u16, thread: usize, threads: u64, flows: Option<u64>) -> Self {
        // A stamp has 16 bits for the flow: if more flows exist, all frames count as one.
        let flows = flows.filter(|flows| *flows <= 1 << 16).unwrap_or(1).max(1);
        Self {
            stream: first_stream.wrapping_add(thread as u16),
            flows,
            every: threads / common_divisor(threads, flows) * flows,
        }
    }

    fn stamp(&self, number: u64) -> Stamp {
        Stamp {
            stream: self.stream,
            flow: (number % self.flows) as u16,
            sequence: (number / self.every) as u32,
            time: stamp::now(),
        }
    }
}

/// Returns the greatest common divisor of two numbers.
pub(crate) fn common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

impl PatternSource {
    /// Creates the source of one of this many threads: together they make all frames.
    pub fn new(pattern: Arc<Pattern>, thread: usize, threads: usize) -> Self {
        let stride = threads.max(1) as u64;
        let marks = pattern.stream.map(|stream| Marks::new(stream, thread, stride, pattern.flows));
        Self { pattern, number: thread as u64, stride, marks }
    }

    /// Returns the stamps' parameters, if frames are stamped.
    pub fn marks(&self) -> Option<Marks> {
        self.marks
    }

    pub fn frames(&self) -> &Pattern {
        &self.pattern
    }

    /// Returns the number of the next frame.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Continues with the frame that has this number.
    pub fn go_to(&mut self, number: u64) {
        self.number = number;
    }

    /// Skips a number of frames that another engine made, and returns the sum of their lengths.
    pub fn skip(&mut self, frames: u64) -> u64 {
        let bytes = self.bytes_of(frames);
        self.number = self.number.wrapping_add(frames.wrapping_mul(self.stride));
        bytes
    }

    /// Writes the next frame, and returns its length.
    pub fn write(&mut self, room: &mut [u8]) -> usize {
        let length = self.pattern.write(self.number, room);
        if let Some(marks) = &self.marks {
            marks.stamp(self.number).write(&mut room[..length]);
        }
        self.number = self.number.wrapping_add(self.stride);
        length
    }

    /// Returns the number of bytes of the next `frames` frames.
    fn bytes_of(&self, frames: u64) -> u64 {
        let pattern = &self.pattern;
        if pattern.variants.iter().all(|one| one.length() == pattern.longest) {
            return frames * pattern.longest as u64;
        }
        let lengths = (0..frames).map(|at| {
            let number = self.number.wrapping_add(at.wrapping_mul(self.stride));
            pattern.variant(number).length() as u64
        });
        lengths.sum()
    }
}

// Checksums over edited fields: computed once, so that a frame costs a few additions.
//
// Ones' complement sums are sums modulo 65535, and a checksum is the negative of a sum. So each checksum is `-(start +
// Σ factor * word)`, where `start` is the sum over the constant part. One checksum may cover another (inside a tunnel):
// it then covers the negative of the inner sum, and the inner factors are subtracted from the outer ones.

const MODULUS: u64 = 0xffff;

/// A checksum of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Offset at which it is stored.
    pub offset: usize,
    /// Ranges that it covers; bytes in several ranges count several times. Only the last range may have an odd length.
    pub ranges: Vec<Range<usize>>,
    /// Sum of covered values outside the frame: length and protocol of a pseudo-header.
    pub constant: u64,
    /// True if zero would mean unchecked.
    pub never_zero: bool,
}

/// Folds a number's four 16-bit digits into one: zero only for zero.
pub fn fold(sum: u64) -> u64 {
    let mut sum = (sum & 0xffff_ffff) + (sum >> 32);
    for _ in 0..3 {
        sum = (sum & MODULUS) + (sum >> 16);
    }
    sum
}

/// Returns the sums that depend on the edits, and sets the factors of the edits in them.
fn set_factors(bytes: &[u8], edits: &mut [Edit], covers: &[Cover]) -> Vec<SendSum> {
    let mut constant_bytes = bytes.to_vec();
    for edit in edits.iter() {
        constant_bytes[edit.offset()..edit.end()].fill(0);
    }
    let mut sums: Vec<SendSum> = Vec::new();
    for cover in covers {
        let times = |at: usize| cover.ranges.iter().filter(|r| r.contains(&at)).count() as u64;
        let mut own: Vec<u64> = edits.iter().map(|edit| times(edit.offset())).collect();
        let mut start = cover.constant;
        // Subtracts the inner checksums that change.
        for (column, inner) in sums.iter().enumerate() {
            let negative = MODULUS - times(inner.offset as usize) % MODULUS;
            for (factor, edit) in own.iter_mut().zip(edits.iter()) {
                *factor += negative * u64::from(edit.rule.factor[column]);
            }
            start += negative * u64::from(inner.start);
        }
        if own.iter().all(|factor| factor % MODULUS == 0) {
            continue;
        }
        constant_bytes[cover.offset..cover.offset + 2].fill(0);
        for range in &cover.ranges {
            start += sum_of(&constant_bytes[range.clone()]);
        }
        assert!(sums.len() < SEND_SUMS, "no frame has that many checksums");
        for (edit, factor) in edits.iter_mut().zip(own) {
            edit.rule.factor[sums.len()] = (factor % MODULUS) as u32;
        }
        sums.push(SendSum {
            offset: cover.offset as u32,
            // Never zero: a sum over a nonzero part is not zero.
            start: match start % MODULUS {
                0 => MODULUS as u32,
                start => start as u32,
            },
            never_zero: cover.never_zero.into(),
            padding: 0,
        });
    }
    sums
}

fn sum_of(bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let sum: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
    sum + odd.first().map_or(0, |byte| u64::from(*byte) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_wrap_around() {
        let ports = Edit::step(1000, 2, 3);
        let values: Vec<u64> = (0..5).map(|n| ports.value(n, n)).collect();
        assert_eq!(values, [1000, 1002, 1004, 1000, 1002]);
    }

    #[test]
    fn random_values_stay_in_their_range_and_reach_all_of_it() {
        let dice = Edit::random(1, 6, 7);
        let mut seen = [0; 7];
        for n in 0..6000 {
            seen[dice.value(n, n) as usize] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
