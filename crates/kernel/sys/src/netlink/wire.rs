//! Netlink messages as bytes: attributes written into requests and read out of replies.
//!
//! Written here rather than taken from a crate: what trawl needs most (XDP attachments, tc's bpf
//! options, the netdev family) the crates hand over as raw bytes anyway, and a kernel newer than the
//! crate must never turn an unknown attribute into a failed look-up.

const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
const NESTED: u16 = 1 << 15;
const TYPE_MASK: u16 = 0x3fff;

/// A request under construction: netlink header, family header, attributes.
#[derive(Debug)]
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    pub fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = flags | libc::NLM_F_REQUEST as u16;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self { bytes }
    }

    /// The family's own header (ifinfomsg, tcmsg, …), as bytes.
    pub fn family_header(mut self, header: &[u8]) -> Self {
        self.raw(header);
        self
    }

    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = (ATTRIBUTE_HEADER + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.raw(value);
        self
    }

    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// A string with the final zero that the kernel wants.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Bytes as they are, padded to the next four.
    pub fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
        self
    }

    pub(super) fn add_flags(&mut self, flags: u16) {
        let all = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | flags;
        self.bytes[6..8].copy_from_slice(&all.to_ne_bytes());
    }

    pub(super) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// One message of a datagram that the kernel sent.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub payload: &'a [u8],
}

/// The messages of a datagram; ends at the first one that does not fit into it.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = read_u32(datagram, 0)? as usize;
        let payload = datagram.get(HEADER..length)?;
        let message = Message {
            kind: read_u16(datagram, 4)?,
            flags: read_u16(datagram, 6)?,
            sequence: read_u32(datagram, 8)?,
            payload,
        };
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// The attributes in a run of bytes, type flags removed; ends at the first malformed one.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = read_u16(bytes, 0)? as usize;
        let kind = read_u16(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// The first attribute of that type.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(found, _)| *found == kind)
        .map(|(_, value)| value)
}

pub fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub fn read_i32(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// A string up to its zero, or to its end.
pub fn read_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut request = Request::new(16, 0).family_header(&[7; 16]);
        request.text(3, "veth0").u32(4, 1500).nest(18, |inner| {
            inner.text(1, "veth");
        });
        let bytes = request.finish(42);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].kind, all[0].flags, all[0].sequence), (16, 1, 42));
        let found: Vec<_> = attributes(&all[0].payload[16..]).collect();
        assert_eq!(found[0], (3, &b"veth0\0"[..]));
        assert_eq!(read_u32(found[1].1, 0), Some(1500));
        assert_eq!(found[2].0, 18);
        assert_eq!(read_text(find(found[2].1, 1).unwrap()), "veth");
    }

    #[test]
    fn lengths_that_lie_end_the_walk() {
        assert_eq!(attributes(&[0, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0, 1, 2]).count(), 0);
        assert_eq!(attributes(&[5, 0, 1]).count(), 0);
        let mut bytes = Request::new(1, 0).finish(1);
        bytes[0] = 15;
        assert_eq!(messages(&bytes).count(), 0);
        bytes[0] = 200;
        assert_eq!(messages(&bytes).count(), 0);
    }
}
