//! Checksums over words that change: found once, so that a frame costs a few additions.
//!
//! Ones' complement sums are sums modulo 65535, and a checksum is the negative of a sum. So each checksum is
//! `-(start + Σ factor * word)`, where `start` is the sum over what stays. One checksum may cover another (those inside
//! a tunnel): it then covers the negative of the inner sum, and the inner factors are taken off the outer ones.

use std::ops::Range;

use trawl_bpf::layout::send::SEND_SUMS;

const MODULUS: u64 = 0xffff;

/// A checksum of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Where it is stored.
    pub offset: usize,
    /// The bytes it covers; those in several ranges count several times. Only the last range may have an odd length.
    pub ranges: Vec<Range<usize>>,
    /// What it covers that is nowhere in the frame: length and protocol of a pseudo-header.
    pub constant: u64,
    /// Zero would mean unchecked.
    pub never_zero: bool,
}

/// A checksum that has to be written anew in each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub offset: usize,
    pub start: u32,
    pub never_zero: bool,
}

/// The sum of a number's four words, in 16 bits: zero only for zero.
pub fn fold(sum: u64) -> u64 {
    let mut sum = (sum & 0xffff_ffff) + (sum >> 32);
    for _ in 0..3 {
        sum = (sum & MODULUS) + (sum >> 16);
    }
    sum
}

/// The sums that change with the words (offset and width), and the words' factors in them.
pub(super) fn relate(
    bytes: &[u8],
    words: &[(usize, usize)],
    covers: &[Cover],
) -> (Vec<Sum>, Vec<[u32; SEND_SUMS]>) {
    let mut still = bytes.to_vec();
    for (offset, width) in words {
        still[*offset..offset + width].fill(0);
    }
    let mut sums: Vec<Sum> = Vec::new();
    let mut factors = vec![[0u32; SEND_SUMS]; words.len()];
    for cover in covers {
        let times = |at: usize| cover.ranges.iter().filter(|r| r.contains(&at)).count() as u64;
        let mut own: Vec<u64> = words.iter().map(|(offset, _)| times(*offset)).collect();
        let mut start = cover.constant;
        // What the inner checksums that change are worth here.
        for (column, inner) in sums.iter().enumerate() {
            let negative = MODULUS - times(inner.offset) % MODULUS;
            for (factor, inner_factors) in own.iter_mut().zip(&factors) {
                *factor += negative * u64::from(inner_factors[column]);
            }
            start += negative * u64::from(inner.start);
        }
        if own.iter().all(|factor| factor % MODULUS == 0) {
            continue;
        }
        still[cover.offset..cover.offset + 2].fill(0);
        for range in &cover.ranges {
            start += sum_of(&still[range.clone()]);
        }
        assert!(sums.len() < SEND_SUMS, "no frame has that many checksums");
        for (row, factor) in factors.iter_mut().zip(own) {
            row[sums.len()] = (factor % MODULUS) as u32;
        }
        sums.push(Sum {
            offset: cover.offset,
            // Never nothing: a sum of words that are not all zero is not zero.
            start: match start % MODULUS {
                0 => MODULUS as u32,
                start => start as u32,
            },
            never_zero: cover.never_zero,
        });
    }
    (sums, factors)
}

fn sum_of(bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)))
        .sum();
    sum + odd.first().map_or(0, |byte| u64::from(*byte) << 8)
}
