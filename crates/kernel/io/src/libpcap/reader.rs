//! What a libpcap calls for each packet: the header and bytes that it lends are checked before they are shown.

use std::ffi::c_void;

use super::{PacketHeader, PcapT};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    Microseconds,
    Nanoseconds,
}

/// A packet as the library shows it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970; nothing where the library's numbers are no time.
    pub time: Option<u64>,
    pub original: u32,
    /// Nothing where the library names more bytes than it may have.
    pub bytes: Option<&'a [u8]>,
}

pub(super) struct Reader<'a> {
    pub(super) read: &'a mut dyn FnMut(Packet<'_>) -> bool,
    pub(super) pcap: *mut PcapT,
    pub(super) break_loop: unsafe extern "C" fn(*mut PcapT),
    pub(super) most: u32,
    pub(super) precision: Precision,
    pub(super) stopped: bool,
}

/// What the library calls for each packet.
///
/// # Safety
/// `user` is the reader that `dispatch` gave; the header and the bytes it names are the library's to lend.
pub(super) unsafe extern "C" fn show(
    user: *mut c_void,
    header: *const PacketHeader,
    bytes: *const u8,
) {
    // SAFETY: as said above; dispatch has lent it to nobody else.
    let reader = unsafe { &mut *user.cast::<Reader<'_>>() };
    if reader.stopped || header.is_null() {
        return;
    }
    // SAFETY: not null, and the library's header for the time of this call. It need not be aligned.
    let header = unsafe { header.read_unaligned() };
    // Never more than was asked for, and never a packet that is longer than it was.
    let sound = header.captured <= reader.most && header.captured <= header.original;
    let bytes = match (sound, header.captured) {
        (true, 0) => Some(&[][..]),
        (true, length) if !bytes.is_null() => {
            // SAFETY: the library lends as many bytes as its header says, no more than were asked for.
            Some(unsafe { std::slice::from_raw_parts(bytes, length as usize) })
        }
        _ => None,
    };
    let packet = Packet {
        time: time(&header, reader.precision),
        original: header.original,
        bytes,
    };
    if !(reader.read)(packet) {
        reader.stopped = true;
        // SAFETY: the handle that is being read.
        unsafe { (reader.break_loop)(reader.pcap) };
    }
}

fn time(header: &PacketHeader, precision: Precision) -> Option<u64> {
    let (most, factor) = match precision {
        Precision::Microseconds => (1_000_000, 1000),
        Precision::Nanoseconds => (1_000_000_000, 1),
    };
    let seconds = u64::try_from(header.seconds).ok()?;
    let fraction = u64::try_from(header.fraction)
        .ok()
        .filter(|one| *one < most)?;
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(fraction * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_time_are_told() {
        let header = |seconds, fraction| PacketHeader {
            seconds,
            fraction,
            captured: 0,
            original: 0,
        };
        let (micro, nano) = (Precision::Microseconds, Precision::Nanoseconds);
        assert_eq!(time(&header(1, 5), micro), Some(1_000_005_000));
        assert_eq!(time(&header(1, 5), nano), Some(1_000_000_005));
        for (seconds, fraction) in [(-1, 0), (1, -1), (1, 1_000_000), (i64::MAX, 0)] {
            assert_eq!(time(&header(seconds, fraction), micro), None);
        }
    }
}
