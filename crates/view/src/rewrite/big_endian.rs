//! Conversion of big-endian blocks to a little-endian section: every number that the format describes is byte-swapped,
//! everything else is copied.

use trawl_packet::pcapng::block::{self, ByteOrder, HEADER_LEN, padded};
use trawl_packet::pcapng::block::{OptionList, RawOption};

const TRAILER_LEN: usize = 4;
const PACKET_FIELDS_LEN: usize = 20;
const STATISTICS_FIELDS_LEN: usize = 12;
/// Custom blocks. Programs that modify a file must not copy the second kind; merging files is no such modification.
const CUSTOM: [u32; 2] = [0x0bad, 0x4000_0bad];
const JOURNAL: u32 = 9;
/// Custom options begin with the number of their maker.
const CUSTOM_OPTIONS: [u16; 4] = [2988, 2989, 19372, 19373];
/// The time zone, and the speeds of sending and receiving.
const IF_ZONE: u16 = 10;
const IF_SPEEDS: [u16; 2] = [16, 17];
/// Numbers of a packet's process and thread.
const EPB_PROCESS: u16 = 8;

/// Appends an enhanced packet block of interface `id`, with another time if that interface has other units. Returns
/// false, and appends nothing, for any other block.
pub(super) fn packet(out: &mut Vec<u8>, raw: &[u8], id: u32, ticks: Option<u64>) -> bool {
    let Some(body) = body(raw, block::ENHANCED_PACKET) else {
        return false;
    };
    let (Some(high), Some(low)) = (word(body, 4), word(body, 8)) else {
        return false;
    };
    let (Some(captured), Some(original)) = (word(body, 12), word(body, 16)) else {
        return false;
    };
    let end = PACKET_FIELDS_LEN + padded(captured as usize);
    let (Some(data), Some(options)) = (body.get(PACKET_FIELDS_LEN..end), body.get(end..)) else {
        return false;
    };
    append(out, block::ENHANCED_PACKET, |out| {
        let [high, low] = ticks.map_or([high, low], |ticks| [(ticks >> 32) as u32, ticks as u32]);
        for field in [id, high, low, captured, original] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(data);
        append_options(out, options, Some(packet_numbers));
    });
    true
}

/// Appends the description of an interface. Returns false, and appends nothing, for any other block.
pub(super) fn interface(out: &mut Vec<u8>, raw: &[u8]) -> bool {
    let Some(body) = body(raw, block::INTERFACE_DESCRIPTION) else {
        return false;
    };
    let Some((&[a, b, c, d, e, f, g, h], options)) = body.split_first_chunk() else {
        return false;
    };
    append(out, block::INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&[b, a, d, c, h, g, f, e]);
        append_options(out, options, Some(interface_numbers));
    });
    true
}

/// Appends the statistics of interface `id`, in the units of its description as stored. Appends nothing if the block
/// holds none.
pub(super) fn statistics(out: &mut Vec<u8>, raw: &[u8], id: u32) {
    let Some(body) = body(raw, block::INTERFACE_STATISTICS) else {
        return;
    };
    let (Some(high), Some(low)) = (word(body, 4), word(body, 8)) else {
        return;
    };
    append(out, block::INTERFACE_STATISTICS, |out| {
        for field in [id, high, low] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let options = body.get(STATISTICS_FIELDS_LEN..).unwrap_or_default();
        append_options(out, options, Some(statistics_numbers));
    });
}

/// Appends a block of another type. Returns false, and appends nothing, if its numbers are not known.
pub(super) fn other(out: &mut Vec<u8>, raw: &[u8], kind: u32) -> bool {
    let Some(body) = body(raw, kind) else {
        return false;
    };
    match kind {
        block::NAME_RESOLUTION => names(out, body),
        block::DECRYPTION_SECRETS => secrets(out, body),
        // A journal entry is text without numbers.
        JOURNAL => {
            append(out, kind, |out| out.extend_from_slice(body));
            true
        }
        _ if CUSTOM.contains(&kind) => {
            let (Some(maker), Some(rest)) = (word(body, 0), body.get(4..)) else {
                return false;
            };
            append(out, kind, |out| {
                out.extend_from_slice(&maker.to_le_bytes());
                out.extend_from_slice(rest);
            });
            true
        }
        _ => false,
    }
}

fn names(out: &mut Vec<u8>, body: &[u8]) -> bool {
    let half = |at: usize| Some(u16::from_be_bytes(*body.get(at..)?.first_chunk()?));
    let mut end = 0;
    let mut records = Vec::new();
    loop {
        let (Some(kind), Some(len)) = (half(end), half(end + 2)) else {
            return false;
        };
        let value = end + 4;
        end = value + padded(len.into());
        let Some(bytes) = body.get(value..end) else {
            return false;
        };
        records.push((kind, len, bytes));
        if kind == 0 {
            break;
        }
    }
    append(out, block::NAME_RESOLUTION, |out| {
        for (kind, len, bytes) in records {
            out.extend_from_slice(&kind.to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(bytes);
        }
        append_options(out, body.get(end..).unwrap_or_default(), None);
    });
    true
}

fn secrets(out: &mut Vec<u8>, body: &[u8]) -> bool {
    let (Some(kind), Some(len)) = (word(body, 0), word(body, 4)) else {
        return false;
    };
    let end = padded(len as usize).saturating_add(8);
    let Some(data) = body.get(8..end) else {
        return false;
    };
    append(out, block::DECRYPTION_SECRETS, |out| {
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(data);
        append_options(out, body.get(end..).unwrap_or_default(), None);
    });
    true
}

/// Returns the body of a block of this type, between head and tail.
fn body(raw: &[u8], kind: u32) -> Option<&[u8]> {
    let is_its = raw.starts_with(&kind.to_be_bytes());
    raw.get(HEADER_LEN..raw.len().checked_sub(TRAILER_LEN)?).filter(|_| is_its)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn append(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = ((out.len() - start + TRAILER_LEN) as u32).to_le_bytes();
    out.extend_from_slice(&len);
    out[start + 4..start + HEADER_LEN].copy_from_slice(&len);
}

/// Returns the numbers in an option's value: the position of the first, and the length of each.
type Numbers = fn(RawOption<'_>) -> Option<(usize, usize)>;

fn packet_numbers(option: RawOption<'_>) -> Option<(usize, usize)> {
    match option.code {
        block::EPB_FLAGS | block::EPB_QUEUE | EPB_PROCESS => Some((0, 4)),
        block::EPB_DROPCOUNT | block::EPB_PACKETID => Some((0, 8)),
        block::EPB_VERDICT
            if matches!(option.value.first(), Some(&block::VERDICT_EBPF_TC | &block::VERDICT_EBPF_XDP)) =>
        {
            Some((1, 8))
        }
        _ => None,
    }
}

fn interface_numbers(option: RawOption<'_>) -> Option<(usize, usize)> {
    match option.code {
        block::IF_SPEED | block::IF_TSOFFSET => Some((0, 8)),
        IF_ZONE => Some((0, 4)),
        code if IF_SPEEDS.contains(&code) => Some((0, 8)),
        _ => None,
    }
}

fn statistics_numbers(option: RawOption<'_>) -> Option<(usize, usize)> {
    match option.code {
        // Two halves, the higher one first in either order.
        block::ISB_STARTTIME | block::ISB_ENDTIME => Some((0, 4)),
        block::ISB_IFRECV..=block::ISB_USRDELIV => Some((0, 8)),
        _ => None,
    }
}

fn append_options(out: &mut Vec<u8>, options: &[u8], numbers: Option<Numbers>) {
    let mut any = false;
    for option in OptionList::new(options, ByteOrder::Big) {
        any = true;
        out.extend_from_slice(&option.code.to_le_bytes());
        out.extend_from_slice(&(option.value.len() as u16).to_le_bytes());
        let start = out.len();
        out.extend_from_slice(option.value);
        let stored = &mut out[start..];
        if CUSTOM_OPTIONS.contains(&option.code) {
            stored.chunks_exact_mut(4).take(1).for_each(<[u8]>::reverse);
        } else if let Some((first, len)) = numbers.and_then(|numbers| numbers(option)) {
            let numbers = stored.get_mut(first..).unwrap_or_default();
            numbers.chunks_exact_mut(len).for_each(<[u8]>::reverse);
        }
        out.resize(start + padded(option.value.len()), 0);
    }
    if any {
        out.extend_from_slice(&[0; 4]);
    }
}
