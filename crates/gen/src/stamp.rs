//! The stamp at the end of a frame: stream, flow, sequence number and time, in a form that changes no checksum.
//!
//! bpf/gen/stamp.h is the same in C, and explains its layout.

use std::hash::{BuildHasher, Hasher, RandomState};

use trawl_sys::clock;

/// Length of the stamp, at the very end of the frame.
pub const LENGTH: usize = 18;
const MAGIC: u16 = 0x7472;
const TIME_BITS: u32 = 48;

/// The contents of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the sender: different for each run and each thread.
    pub stream: u16,
    pub flow: u16,
    /// Counts the frames of this flow in this stream from 0, modulo 2^32.
    pub sequence: u32,
    /// International Atomic Time in nanoseconds, modulo 2^48.
    pub time: u64,
}

impl Stamp {
    /// Writes the stamp into the last bytes of a frame, whose checksums are right for zeroes there, and stay right. A
    /// shorter frame stays unchanged.
    pub fn write(&self, frame: &mut [u8]) {
        let Some(at) = frame.last_chunk_mut::<LENGTH>() else {
            return;
        };
        at[0..2].copy_from_slice(&MAGIC.to_be_bytes());
        at[2..4].copy_from_slice(&[0; 2]);
        at[4..6].copy_from_slice(&self.stream.to_be_bytes());
        at[6..8].copy_from_slice(&self.flow.to_be_bytes());
        at[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        at[12..18].copy_from_slice(&self.time.to_be_bytes()[2..]);
        let check = !sum(at);
        at[2..4].copy_from_slice(&check.to_be_bytes());
    }

    /// Reads the stamp at the end of a frame, if any.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let at = frame.last_chunk::<LENGTH>()?;
        let (words, _) = at.as_chunks::<2>();
        let word = |index: usize| u16::from_be_bytes(words[index]);
        let long = |index: usize| u64::from(word(index));
        (word(0) == MAGIC && sum(at) == 0xffff).then(|| Self {
            stream: word(2),
            flow: word(3),
            sequence: u32::from(word(4)) << 16 | u32::from(word(5)),
            time: long(6) << 32 | long(7) << 16 | long(8),
        })
    }

    /// Returns the nanoseconds from the stamp to a time on the same clock; negative if the stamp is later.
    pub fn age_at(&self, now: u64) -> i64 {
        (now.wrapping_sub(self.time) << (64 - TIME_BITS)) as i64 >> (64 - TIME_BITS)
    }
}

/// Returns the current time for stamps.
pub fn now() -> u64 {
    clock::tai() & ((1 << TIME_BITS) - 1)
}

/// Returns a stream number for a run; its threads use this and the following ones.
pub fn new_stream() -> u16 {
    RandomState::new().build_hasher().finish() as u16
}

/// Returns the one's complement sum of a stamp.
fn sum(at: &[u8; LENGTH]) -> u16 {
    let (words, _) = at.as_chunks::<2>();
    let mut sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use trawl_packet::build::Template;

    fn stamps() -> impl Strategy<Value = Stamp> {
        (any::<u16>(), any::<u16>(), any::<u32>(), 0..1u64 << TIME_BITS)
            .prop_map(|(stream, flow, sequence, time)| Stamp { stream, flow, sequence, time })
    }

    /// Returns the checksum of a UDP datagram over IPv4 without options, including its stored checksum.
    fn udp_sum(frame: &[u8]) -> u16 {
        let mut words = frame[26..34].to_vec();
        words.extend([0, 17]);
        words.extend((frame.len() as u16 - 34).to_be_bytes());
        words.extend(&frame[34..]);
        if words.len() % 2 == 1 {
            words.push(0);
        }
        let mut sum: u32 = words.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn stamp_is_read_as_written(stamp in stamps(), before in 0..100usize) {
            let mut frame = vec![0xa5; before + LENGTH];
            stamp.write(&mut frame);
            prop_assert_eq!(Stamp::read(&frame), Some(stamp));
            prop_assert!(frame[..before].iter().all(|byte| *byte == 0xa5));
        }

        #[test]
        fn checksums_stay_right(stamp in stamps(), padding in 0..40usize) {
            let payload = vec![0; padding + LENGTH];
            let mut frame = Template::new()
                .ethernet([2; 6], [4; 6])
                .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
                .udp(1000, 9)
                .payload(payload)
                .build();
            prop_assert_eq!(udp_sum(&frame), 0xffff);
            stamp.write(&mut frame);
            prop_assert_eq!(udp_sum(&frame), 0xffff);
        }

        #[test]
        fn one_changed_byte_invalidates_the_stamp(stamp in stamps(), at in 0..LENGTH, other in 1..=255u8) {
            let mut frame = [0; LENGTH];
            stamp.write(&mut frame);
            frame[at] ^= other;
            // A change between the two forms of zero, in the sum, is the only undetected one.
            let both_zeroes = |pair: &[u8]| pair == [0, 0] || pair == [0xff, 0xff];
            prop_assume!(!both_zeroes(&frame[at / 2 * 2..at / 2 * 2 + 2]));
            prop_assert_eq!(Stamp::read(&frame), None);
        }
    }

    #[test]
    fn short_frames_hold_no_stamp() {
        let mut frame = [1; LENGTH - 1];
        let stamp = Stamp { stream: 1, flow: 2, sequence: 3, time: 4 };
        stamp.write(&mut frame);
        assert_eq!(frame, [1; LENGTH - 1]);
        assert_eq!(Stamp::read(&frame), None);
        assert_eq!(Stamp::read(&[0; LENGTH]), None);
    }

    #[test]
    fn ages_have_a_sign_and_survive_the_wrap() {
        let stamped = |time| Stamp { stream: 0, flow: 0, sequence: 0, time };
        assert_eq!(stamped(100).age_at(250), 150);
        assert_eq!(stamped(250).age_at(100), -150);
        assert_eq!(stamped((1 << 48) - 5).age_at((7 << 48) + 5), 10);
    }
}
