//! A number for a sequence of words, which differs for different sequences but by chance.

/// The number of no words.
pub(crate) const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
/// An odd number with bits everywhere: with the sparse one of FNV-1a, words of a single bit would often cancel each other.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Adds a word. The shift brings the upper bits, which a product only moves out, to the lower ones.
pub(crate) fn add(digest: u64, word: u64) -> u64 {
    let product = (digest ^ word).wrapping_mul(FACTOR);
    product ^ product >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_of_each_word_counts() {
        let digests = (0..4 * 64).map(|bit: usize| {
            let words = (0..4).map(|word| if bit / 64 == word { 1 << (bit % 64) } else { 0 });
            words.fold(BASIS, add)
        });
        let mut digests: Vec<u64> = digests.collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), 4 * 64);
    }
}
