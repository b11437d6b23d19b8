//! The part of a packet that sources without a program record.

use trawl_packet::walk::headers_len;

/// The extent of a record.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub snaplen: u32,
    /// Link type of the packets, if they are cut after their headers.
    pub headers_of: Option<u16>,
}

impl Extent {
    /// Returns the most bytes to record of a packet, into which a VLAN tag of this length is inserted.
    pub fn of(self, bytes: &[u8], tag: usize) -> u32 {
        match self.headers_of {
            None => self.snaplen,
            Some(link_type) => self.snaplen.min((headers_len(link_type, bytes) + tag) as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use trawl_packet::build::Template;
    use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;

    use super::*;

    #[test]
    fn shorter_of_headers_and_snap_length_counts() {
        let frame = Template::new().ethernet([2; 6], [4; 6]);
        let frame = frame.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2);
        let frame = frame.payload([0; 100]).build();
        let of = |snaplen, headers_of, tag| Extent { snaplen, headers_of }.of(&frame, tag);
        assert_eq!(of(64, None, 0), 64);
        assert_eq!(of(64, Some(LINKTYPE_ETHERNET), 0), 42);
        assert_eq!(of(64, Some(LINKTYPE_ETHERNET), 4), 46);
        assert_eq!(of(20, Some(LINKTYPE_ETHERNET), 0), 20);
    }
}
