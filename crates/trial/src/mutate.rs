//! Packets made of others by small changes, from a number that begins their sequence.

use crate::minimise::SHORTEST;

/// Most changes of one packet.
const MOST_CHANGES: usize = 6;
/// Length up to which every packet may grow.
const GROWS_TO: usize = 2000;
/// Bytes at the beginning of a packet in which half of the changes are made: most programs look at headers alone.
const HEADERS: usize = 64;
/// Longest part that is doubled or removed.
const LONGEST_PART: usize = 64;
/// Lengths about which programs decide: the shortest frame, and MTUs with and without the header of the frame.
const LENGTHS: [usize; 6] = [60, 128, 576, 1280, 1500, 1514];
/// Sizes of fields, as of ports and addresses.
const FIELD_SIZES: [usize; 5] = [1, 2, 4, 6, 16];
/// Numbers at which the arithmetic of programs turns, and those by which protocols name the next header.
const NUMBERS: [u32; 32] = [
    0,
    1,
    2,
    4,
    5,
    6,
    17,
    41,
    43,
    44,
    47,
    50,
    58,
    60,
    64,
    127,
    128,
    132,
    255,
    256,
    512,
    0x0800,
    0x0806,
    0x1fff,
    0x2000,
    0x7fff,
    0x8000,
    0x8100,
    0x86dd,
    0x88a8,
    0xffff,
    0x7fff_ffff,
];

/// A sequence of numbers (xorshift64*).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // Zero would stay zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below a bound, which is above zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (((self.next() >> 32) * bound as u64) >> 32) as usize
    }
}

/// Maker of packets.
#[derive(Debug)]
pub(crate) struct Mutator {
    pub random: Random,
    /// Fields that the programs compare with, such as constants and keys of their maps.
    pub fields: Vec<Vec<u8>>,
}

impl Mutator {
    /// Makes a packet of another one, given in `packet`; `other` gives it bytes.
    pub fn change(&mut self, packet: &mut Vec<u8>, other: &[u8]) {
        let longest = packet.len().max(GROWS_TO);
        let changes = 1 + self.random.below(MOST_CHANGES);
        for _ in 0..changes.min(1 + self.random.below(MOST_CHANGES)) {
            self.change_once(packet, other);
        }
        packet.truncate(longest);
        if packet.len() < SHORTEST {
            packet.resize(SHORTEST, 0);
        }
    }

    fn change_once(&mut self, packet: &mut Vec<u8>, other: &[u8]) {
        match self.random.below(14) {
            0 | 1 => {
                let at = self.offset(packet, 1);
                packet[at] ^= 1 << self.random.below(8);
            }
            2 => {
                let at = self.offset(packet, 1);
                packet[at] = self.random.next() as u8;
            }
            3 => {
                let at = self.offset(packet, 1);
                let step = 1 + self.random.below(8) as u8;
                let is_more = self.random.below(2) == 0;
                packet[at] = if is_more { packet[at].wrapping_add(step) } else { packet[at].wrapping_sub(step) };
            }
            4 | 5 => self.number(packet),
            6 | 7 => {
                if !self.fields.is_empty() {
                    let field = self.random.below(self.fields.len());
                    let at = self.offset(packet, self.fields[field].len());
                    put(packet, at, &self.fields[field]);
                }
            }
            8 => {
                let size = FIELD_SIZES[self.random.below(FIELD_SIZES.len())];
                let at = self.offset(packet, size);
                put(packet, at, other.get(at..).map_or(&[][..], |rest| &rest[..size.min(rest.len())]));
            }
            9 => {
                let at = self.random.below(packet.len().min(other.len()).max(1));
                packet.truncate(at);
                packet.extend_from_slice(other.get(at..).unwrap_or_default());
            }
            10 => packet.truncate(SHORTEST + self.random.below(packet.len())),
            11 => {
                let length = match self.random.below(2) {
                    0 => packet.len(),
                    _ => LENGTHS[self.random.below(LENGTHS.len())],
                };
                packet.resize(length + self.random.below(LONGEST_PART), 0);
            }
            12 => {
                let (at, size) = self.part(packet);
                packet.extend_from_within(at..at + size);
                packet[at + size..].rotate_right(size);
            }
            _ => {
                let (at, size) = self.part(packet);
                packet.drain(at..at + size);
            }
        }
        if packet.len() < SHORTEST {
            packet.resize(SHORTEST, 0);
        }
    }

    /// Puts a number of 8, 16 or 32 bits into the packet, in one of the byte orders.
    fn number(&mut self, packet: &mut [u8]) {
        let number = NUMBERS[self.random.below(NUMBERS.len())];
        let number = if self.random.below(4) == 0 { number.wrapping_neg() } else { number };
        let size = [1, 2, 2, 4][self.random.below(4)];
        let at = self.offset(packet, size);
        if self.random.below(3) == 0 {
            put(packet, at, &number.to_le_bytes()[..size]);
        } else {
            put(packet, at, &number.to_be_bytes()[size_of::<u32>() - size..]);
        }
    }

    /// Returns the offset of a field, which has an even offset if it has several bytes.
    fn offset(&mut self, packet: &[u8], size: usize) -> usize {
        let end = packet.len().saturating_sub(size) + 1;
        let end = if self.random.below(2) == 0 { end.min(HEADERS) } else { end };
        let at = self.random.below(end);
        if size > 1 { at & !1 } else { at }
    }

    /// Returns offset and length of a part.
    fn part(&mut self, packet: &[u8]) -> (usize, usize) {
        let at = self.offset(packet, 1);
        let most = (packet.len() - at).min(LONGEST_PART);
        // Options and headers have multiples of four bytes.
        let size = if most >= 4 && self.random.below(2) == 0 {
            4 + self.random.below(most / 4) * 4
        } else {
            1 + self.random.below(most)
        };
        (at, size.min(most))
    }
}

/// Writes bytes into a packet, as far as they fit.
fn put(packet: &mut [u8], at: usize, bytes: &[u8]) {
    let end = (at + bytes.len()).min(packet.len());
    packet[at..end].copy_from_slice(&bytes[..end - at]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutated(seed: u64, fields: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut mutator = Mutator { random: Random::new(seed), fields };
        let (first, other) = ((0..60).collect::<Vec<u8>>(), vec![0xee; 200]);
        let mut packets = Vec::new();
        for _ in 0..2000 {
            let mut packet = first.clone();
            mutator.change(&mut packet, &other);
            packets.push(packet);
        }
        packets
    }

    #[test]
    fn packets_have_a_length_that_can_be_run() {
        let packets = mutated(1, vec![]);
        assert!(packets.iter().all(|packet| (SHORTEST..=GROWS_TO).contains(&packet.len())));
        let shorter = packets.iter().filter(|packet| packet.len() < 60).count();
        let longer = packets.iter().filter(|packet| packet.len() > 60).count();
        assert!(shorter > 200 && longer > 200, "{shorter} {longer}");
    }

    #[test]
    fn seed_decides_the_packets() {
        assert_eq!(mutated(7, vec![]), mutated(7, vec![]));
        assert_ne!(mutated(7, vec![]), mutated(8, vec![]));
    }

    #[test]
    fn fields_get_into_packets() {
        let field = vec![0xaa, 0xbb, 0xcc, 0xdd];
        let packets = mutated(3, vec![field.clone()]);
        assert!(packets.iter().filter(|packet| packet.windows(4).any(|part| part == field)).count() > 100);
    }
}
