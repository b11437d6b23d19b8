//! How long frames are: one length, several in turn, a mix, at random.

use super::field::{Choice, Kind};
use crate::pattern::Value;

/// The simple Internet mix of frame lengths, without the checksum: seven, four and one of twelve.
const IMIX: [(usize, usize); 3] = [(60, 7), (590, 4), (1514, 1)];
/// Lengths at random are drawn once; the draws come again after this many frames.
const DRAWS: u64 = 4096;
const LONGEST: u128 = 65_549;

/// The lengths of frames, in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// As long as it takes, and at least 60 bytes.
    Shortest,
    InTurn(Vec<usize>),
    /// The mix; where headers are longer than its shortest frames, those are as long as the headers.
    Imix,
}

impl Sizes {
    /// `64`, `64,1500`, `64:7,590:4,1514:1` (with weights), `64-1500`, `64-1500/10`, `random:64-1500`, `imix`.
    pub fn parse(text: &str, seed: u64) -> Result<Self, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("imix") {
            return Ok(Self::Imix);
        }
        let size = Kind::Number(17);
        if text.contains(':') && !text.starts_with("random:") {
            let mut weighted = Vec::new();
            for one in text.split(',') {
                let (length, weight) = one.split_once(':').unwrap_or((one, "1"));
                let weight = Kind::Number(10).value(weight)?;
                if weight == 0 {
                    return Err("a weight of 0 means never".to_owned());
                }
                weighted.push((size.value(length)? as usize, weight as usize));
            }
            return Ok(Self::InTurn(spread(&weighted)));
        }
        let lengths: Vec<u128> = match size.choice(text)? {
            Choice::Fixed(length) => vec![length],
            Choice::List(lengths) => lengths,
            Choice::Step { first, step, count } => {
                (0..u128::from(count)).map(|n| first + n * step).collect()
            }
            Choice::Random { first, count } => {
                let draw = Value::Random {
                    first: first as u64,
                    count: count as u64,
                    seed,
                };
                (0..DRAWS).map(|n| u128::from(draw.of(n, n))).collect()
            }
        };
        if let Some(length) = lengths.iter().find(|length| **length > LONGEST) {
            return Err(format!("{length} bytes are more than any frame has"));
        }
        Ok(Self::InTurn(
            lengths.into_iter().map(|l| l as usize).collect(),
        ))
    }

    /// The lengths in turn, for frames that take at least this many bytes.
    pub fn lengths(&self, least: usize) -> Result<Vec<usize>, String> {
        match self {
            Self::Shortest => Ok(vec![least.max(60)]),
            Self::Imix => {
                let mix = IMIX.map(|(length, weight)| (length.max(least), weight));
                Ok(spread(&mix))
            }
            Self::InTurn(lengths) => match lengths.iter().find(|length| **length < least) {
                Some(length) => Err(format!(
                    "{length} bytes do not hold the headers and what is in them, which take {least}"
                )),
                None => Ok(lengths.clone()),
            },
        }
    }
}

/// Each of the things as often as its weight says, as evenly as that goes.
pub fn spread<T: Copy>(weighted: &[(T, usize)]) -> Vec<T> {
    let total: usize = weighted.iter().map(|(_, weight)| weight).sum();
    let mut credit = vec![0i64; weighted.len()];
    let mut order = Vec::with_capacity(total);
    for _ in 0..total {
        for (credit, (_, weight)) in credit.iter_mut().zip(weighted) {
            *credit += *weight as i64;
        }
        let richest = (0..credit.len()).max_by_key(|at| (credit[*at], std::cmp::Reverse(*at)));
        if let Some(at) = richest {
            credit[at] -= total as i64;
            order.push(weighted[at].0);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        let of = |text: &str| Sizes::parse(text, 1).unwrap().lengths(42);
        assert_eq!(of("64"), Ok(vec![64]));
        assert_eq!(of("64,1500"), Ok(vec![64, 1500]));
        assert_eq!(of("64-70/3"), Ok(vec![64, 67, 70]));
        assert_eq!(of("60:2,90:1"), Ok(vec![60, 90, 60]));
        let mix = of("imix").unwrap();
        assert_eq!(
            (mix.len(), mix.iter().filter(|l| **l == 60).count()),
            (12, 7)
        );
        let random = of("random:60-100").unwrap();
        assert!(random.iter().all(|length| (60..=100).contains(length)));
        assert_eq!(Sizes::Shortest.lengths(42), Ok(vec![60]));
        assert_eq!(Sizes::Shortest.lengths(70), Ok(vec![70]));
    }

    #[test]
    fn sizes_that_cannot_be() {
        for text in ["", "0x", "99999", "64:0", "-5", "70-60", "imix2"] {
            assert!(Sizes::parse(text, 1).is_err(), "{text}");
        }
        assert!(Sizes::parse("41", 1).unwrap().lengths(42).is_err());
    }
}
