//! The Internet checksum (RFC 1071), the pseudo-headers it covers, and the checksum of SCTP.

mod ends;
mod kept;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use ends::Ends;
pub(crate) use ends::{HOME_ADDRESS, SOURCE_ROUTES, extensions_v6, options_v4, options_v6, routed_v6};
pub use kept::cover_kept;

/// A running sum of big-endian 16-bit words. All parts but the last must be of even length.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum(u64);

impl Sum {
    #[expect(clippy::should_implement_trait, reason = "the argument is bytes, not another sum")]
    pub fn add(mut self, bytes: &[u8]) -> Self {
        let (words, odd) = bytes.as_chunks::<2>();
        self.0 += words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>();
        if let [last] = odd {
            self.0 += u64::from(*last) << 8;
        }
        self
    }

    pub fn add_u32(mut self, value: u32) -> Self {
        self.0 += u64::from(value);
        self
    }

    /// Returns the checksum to store; zero over data that includes its own correct checksum.
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    /// Returns the value that should have been stored if `stored` led to this sum.
    pub fn should_be(self, stored: u16) -> u16 {
        Self(self.0 + u64::from(!stored)).finish()
    }
}

/// Returns the difference of a one's complement sum over these bytes when they change (RFC 1624).
pub fn difference(before: &[u8], after: &[u8]) -> u64 {
    let sum = |bytes: &[u8]| Sum::default().add(bytes).0;
    // Each word is added as its complement.
    let complements = 0xffff * (before.len().div_ceil(2) as u64) - sum(before);
    complements + sum(after)
}

/// Returns a stored checksum, updated by the [`difference`] of the bytes that it covers.
pub fn adjusted(stored: u16, difference: u64) -> u16 {
    Sum(u64::from(!stored) + difference).finish()
}

/// Remainders of a byte for the polynomial of CRC-32C, bits reversed.
const CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            remainder = (remainder >> 1) ^ (0x82f6_3b78 * (remainder & 1));
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// Returns the CRC-32C of bytes (RFC 9260, appendix A), which SCTP stores with the lowest byte first.
pub fn crc32c<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u32 {
    let remainder = bytes
        .into_iter()
        .fold(u32::MAX, |remainder, byte| CRC32C[usize::from(remainder as u8 ^ byte)] ^ (remainder >> 8));
    !remainder
}

/// Addresses that transport checksums cover.
#[derive(Debug, Clone, Copy)]
pub enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    pub fn pseudo_header(self, protocol: u8, len: usize) -> Sum {
        let sum = match self {
            Self::V4(src, dst) => Sum::default().add(&src.octets()).add(&dst.octets()),
            Self::V6(src, dst) => Sum::default().add(&src.octets()).add(&dst.octets()),
        };
        sum.add_u32(u32::from(protocol)).add_u32(len as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of RFC 1071, section 3.
    #[test]
    fn rfc_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().add(&bytes).finish(), !0xddf2);
    }

    /// The check value of CRC-32C in the catalogues of CRC algorithms.
    #[test]
    fn crc_of_the_catalogue() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn odd_byte_counts_as_the_high_half() {
        assert_eq!(Sum::default().add(&[0x12]).finish(), !0x1200);
    }

    #[test]
    fn should_be_finds_the_right_value() {
        let mut header = [0x45, 0, 0, 20, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let right = Sum::default().add(&header).finish();
        header[10..12].copy_from_slice(&0x1234u16.to_be_bytes());
        assert_eq!(Sum::default().add(&header).should_be(0x1234), right);
    }
}
