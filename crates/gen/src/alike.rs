//! Frames that the kernel can make out of one long one: UDP, alike but for what they carry.
//!
//! The kernel writes lengths, the IPv4 identification (it counts up) and checksums into the frames it makes. The UDP
//! checksum it may leave to the device, with the sum of the pseudo-header in its place. Some devices finish it, and a
//! veth hands it on as it is. So only frames are sent that way for which both come to the same: where the checksum is
//! equal to the sum of the pseudo-header. [`level`] makes them so.

use std::ops::Range;

use crate::pattern::fold;

const ETHERNET: usize = 14;
const UDP: usize = 8;
const IPV4: usize = 20;
const IPV6: usize = 40;
const PROTOCOL_UDP: u8 = 17;
const MODULUS: u64 = 0xffff;
/// What the lengths in the headers can say.
const LONGEST: usize = 65_535;

/// Where things are in a frame of UDP in IP in Ethernet, without options, extensions, fragments or padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    is_v6: bool,
}

impl Layout {
    fn of(frame: &[u8]) -> Option<Self> {
        let is_v6 = match frame.get(12..ETHERNET)? {
            [0x08, 0x00] => false,
            [0x86, 0xdd] => true,
            _ => return None,
        };
        let layout = Self { is_v6 };
        let ip = frame.get(ETHERNET..layout.transport())?;
        let carried = frame.len().checked_sub(layout.payload())?;
        let fits = if is_v6 {
            ip[0] >> 4 == 6 && ip[6] == PROTOCOL_UDP && number(&ip[4..6]) == (UDP + carried) as u64
        } else {
            ip[0] == 0x45
                && ip[9] == PROTOCOL_UDP
                && number(&ip[6..8]) & 0x3fff == 0
                && number(&ip[2..4]) == (IPV4 + UDP + carried) as u64
        };
        let told = number(&frame[layout.transport() + 4..][..2]);
        (fits && carried > 0 && told == (UDP + carried) as u64).then_some(layout)
    }

    pub fn transport(self) -> usize {
        ETHERNET + if self.is_v6 { IPV6 } else { IPV4 }
    }

    /// Where the headers end.
    pub fn payload(self) -> usize {
        self.transport() + UDP
    }

    fn addresses(self) -> Range<usize> {
        let from = ETHERNET + if self.is_v6 { 8 } else { 12 };
        from..self.transport()
    }

    /// The sum of the pseudo-header of a datagram of that length.
    fn pseudo(self, frame: &[u8], length: usize) -> u64 {
        let addresses = sum(&frame[self.addresses()]);
        fold(addresses + u64::from(PROTOCOL_UDP) + length as u64)
    }

    fn checksum(self) -> Range<usize> {
        self.transport() + 6..self.payload()
    }
}

/// Where things are, if the frame is one that may be sent with others alike.
pub(crate) fn level_layout(frame: &[u8]) -> Option<Layout> {
    let layout = Layout::of(frame)?;
    let pseudo = layout.pseudo(frame, frame.len() - layout.transport());
    let all = fold(pseudo + sum(&frame[layout.transport()..]));
    (number(&frame[layout.checksum()]) == pseudo && all == MODULUS).then_some(layout)
}

/// Changes the first two bytes of the payload, which ends there, so that the UDP checksum is equal to the sum of the
/// pseudo-header. Leaves a frame as it is that is not plain UDP or has no room for it.
pub(crate) fn level(frame: &mut [u8], end: usize) {
    let Some(layout) = Layout::of(frame) else {
        return;
    };
    let at = layout.payload();
    if at + 2 > end {
        return;
    }
    let pseudo = layout.pseudo(frame, frame.len() - layout.transport());
    frame[layout.checksum()].fill(0);
    frame[at..at + 2].fill(0);
    // Checksum and sum of all else make 0 modulo 65535.
    let rest = fold(2 * pseudo + sum(&frame[layout.transport()..]));
    frame[at..at + 2].copy_from_slice(&((MODULUS - rest) as u16).to_be_bytes());
    let checksum = (pseudo as u16).to_be_bytes();
    frame[layout.checksum()].copy_from_slice(&checksum);
}

/// How many frames of that length go into one long one.
pub(crate) fn most_together(layout: Layout, length: usize) -> usize {
    let carried = length - layout.payload();
    (LONGEST - IPV4 - UDP) / carried
}

/// Whether the other frame differs in nothing but what it carries.
pub(crate) fn is_alike(layout: Layout, one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one[..layout.payload()] == other[..layout.payload()]
}

/// Makes the long frame out of such frames.
pub(crate) fn join<'f>(layout: Layout, frames: impl Iterator<Item = &'f [u8]>, long: &mut Vec<u8>) {
    long.clear();
    for frame in frames {
        let from = if long.is_empty() { 0 } else { layout.payload() };
        long.extend_from_slice(&frame[from..]);
    }
    let datagram = long.len() - layout.transport();
    let pseudo = layout.pseudo(long, datagram) as u16;
    let mut put = |at: usize, value: usize| {
        long[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
    };
    if layout.is_v6 {
        put(ETHERNET + 4, datagram);
    } else {
        put(ETHERNET + 2, IPV4 + datagram);
    }
    put(layout.transport() + 4, datagram);
    put(layout.checksum().start, pseudo.into());
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |all, byte| all << 8 | u64::from(*byte))
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)))
        .sum();
    sum + odd.first().map_or(0, |byte| u64::from(*byte) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame without checksums.
    fn frame(is_v6: bool, carried: usize) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        let datagram = (UDP + carried) as u16;
        if is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(datagram.to_be_bytes());
            frame.extend([PROTOCOL_UDP, 64]);
            frame.extend([0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            frame.extend([0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        } else {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend((datagram + IPV4 as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, PROTOCOL_UDP, 0, 0]);
            frame.extend([10, 77, 0, 1, 10, 77, 0, 2]);
        }
        frame.extend([0x9c, 0x40, 0, 9]);
        frame.extend(datagram.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend((0..carried).map(|n| n as u8));
        frame
    }

    #[test]
    fn levelled_frames_have_right_checksums_that_are_the_sum_of_the_pseudo_header() {
        for is_v6 in [false, true] {
            for carried in 2..70 {
                let mut one = frame(is_v6, carried);
                assert_eq!(level_layout(&one), None);
                let end = one.len();
                level(&mut one, end);
                assert!(level_layout(&one).is_some(), "{is_v6} {carried}");
                // A single bit off, and the checksum is wrong.
                one[60.min(end - 1)] ^= 1;
                assert_eq!(level_layout(&one), None);
            }
        }
    }

    #[test]
    fn frames_of_other_kinds_are_left_alone() {
        let mut right = frame(false, 18);
        level(&mut right, 60);
        let broken: [fn(&mut Vec<u8>); 7] = [
            |f| f[12] = 0x81,
            |f| f[14] = 0x46,
            |f| f[20] |= 0x20,
            |f| f[23] = 6,
            |f| f.push(0),
            |f| f[39] += 1,
            |f| f.truncate(40),
        ];
        for change in broken {
            let mut other = right.clone();
            change(&mut other);
            let before = other.clone();
            let end = other.len();
            level(&mut other, end);
            assert_eq!((level_layout(&other), other), (None, before));
        }
        let mut empty = frame(false, 0);
        level(&mut empty, 42);
        assert_eq!(empty, frame(false, 0));
    }

    #[test]
    fn a_long_frame_is_one_datagram() {
        for is_v6 in [false, true] {
            let mut one = frame(is_v6, 18);
            let end = one.len();
            level(&mut one, end);
            let layout = level_layout(&one).unwrap();
            let mut other = one.clone();
            other[end - 4..].rotate_left(2);
            assert!(is_alike(layout, &one, &other));
            let mut long = Vec::new();
            join(layout, [&one[..], &other].into_iter(), &mut long);
            assert_eq!(long.len(), end + 18);
            assert_eq!(Layout::of(&long), Some(layout));
            assert_eq!(long[end..], other[layout.payload()..]);
            other[layout.transport()] ^= 1;
            assert!(!is_alike(layout, &one, &other));
        }
    }
}
