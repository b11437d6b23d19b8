//! Makes the packets of a difference as few, as short and as plain as possible.

use std::time::{Duration, Instant};

/// Time for one difference.
const TIME: Duration = Duration::from_secs(2);
/// Shortest packet that the kernel accepts.
pub(crate) const SHORTEST: usize = 14;

/// Returns the shortest packet that still has the property, with as many zero bytes as possible.
pub(crate) fn packet(bytes: &[u8], mut has_property: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let begun = Instant::now();
    let mut smallest = bytes.to_vec();
    let mut step = smallest.len() / 2;
    while step > 0 && begun.elapsed() < TIME {
        let length = smallest.len().saturating_sub(step).max(SHORTEST);
        if length < smallest.len() && has_property(&smallest[..length]) {
            smallest.truncate(length);
        } else {
            step /= 2;
        }
    }
    let mut size = smallest.len().next_power_of_two();
    while size > 0 && begun.elapsed() < TIME {
        for at in (0..smallest.len()).step_by(size) {
            let end = (at + size).min(smallest.len());
            if smallest[at..end].iter().all(|byte| *byte == 0) {
                continue;
            }
            let mut plainer = smallest.clone();
            plainer[at..end].fill(0);
            if has_property(&plainer) {
                smallest = plainer;
            }
        }
        size /= 2;
    }
    smallest
}

/// Returns positions of items without which the property is lost, from those before the last item; all of them have it.
/// The shortest end of the list that has it is found first, then parts of that are left out (delta debugging).
pub(crate) fn sequence(items: usize, mut has_property: impl FnMut(&[usize]) -> bool) -> Vec<usize> {
    let begun = Instant::now();
    let mut length = 1;
    let mut kept: Vec<usize> = loop {
        let end: Vec<usize> = (items.saturating_sub(length)..items).collect();
        if length >= items || has_property(&end) {
            break end;
        }
        length *= 2;
    };
    let mut size = kept.len().div_ceil(2);
    while size > 0 && !kept.is_empty() && begun.elapsed() < TIME {
        let mut at = 0;
        while at < kept.len() && begun.elapsed() < TIME {
            let end = (at + size).min(kept.len());
            let fewer: Vec<usize> = [&kept[..at], &kept[end..]].concat();
            if has_property(&fewer) {
                kept = fewer;
            } else {
                at = end;
            }
        }
        size /= 2;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_become_short_and_plain() {
        let bytes: Vec<u8> = (1..=200).collect();
        let smallest = packet(&bytes, |bytes| bytes.get(30) == Some(&31));
        let mut expected = vec![0; 31];
        expected[30] = 31;
        assert_eq!(smallest, expected);
        assert_eq!(packet(&bytes, |_| true), [0; SHORTEST]);
        assert_eq!(packet(&bytes, |_| false), bytes);
    }

    #[test]
    fn sequences_keep_the_items_that_matter() {
        let needed = [3, 700, 998];
        let kept = sequence(1000, |items| needed.iter().all(|one| items.contains(one)));
        assert_eq!(kept, needed);
        assert!(sequence(1000, |_| true).is_empty());
        assert_eq!(sequence(3, |items| items.len() == 3), [0, 1, 2]);
        assert!(sequence(0, |_| true).is_empty());
    }
}
