//! MAC addresses as rules name them: whole, or their first bits.

use std::fmt;
use std::str::FromStr;

const BITS: u8 = 48;

/// A MAC address of which the first `length` bits count; the others are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacPrefix {
    address: u64,
    length: u8,
}

/// An address as the number that its bytes make.
pub fn number(bytes: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = bytes;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The bits that count, and all above the address.
fn mask(length: u8) -> u64 {
    u64::MAX << (BITS - length)
}

impl MacPrefix {
    /// `None` where the length is none that an address has. Bits after the length are dropped.
    pub fn new(address: u64, length: u8) -> Option<Self> {
        let fits = (1..=BITS).contains(&length) && address >> BITS == 0;
        fits.then(|| Self {
            address: address & mask(length),
            length,
        })
    }

    pub fn address(self) -> u64 {
        self.address
    }

    pub fn length(self) -> u8 {
        self.length
    }

    pub fn mask(self) -> u64 {
        mask(self.length)
    }

    pub fn contains(self, address: [u8; 6]) -> bool {
        (number(address) ^ self.address) & self.mask() == 0
    }

    /// As the program's line has it: no mask for no address.
    pub(crate) fn fields(of: Option<Self>) -> (u64, u64) {
        of.map_or((0, 0), |mac| (mac.address, mac.mask()))
    }

    pub(crate) fn from_fields((address, mask): (u64, u64)) -> Option<Self> {
        let above = u64::BITS - u32::from(BITS);
        Self::new(address, mask.count_ones().checked_sub(above)? as u8)
    }
}

impl FromStr for MacPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is not a MAC address; write for example 02:00:5e:00:53:01, or 02:00:5e:00:00:00/24 for all \
                 that begin so"
            )
        };
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let (address, length) = match text.split_once('/') {
            None => (text, BITS),
            Some((address, length)) => {
                let length = Some(length).filter(|text| is_digits(text));
                (
                    address,
                    length
                        .and_then(|text| text.parse().ok())
                        .ok_or_else(wrong)?,
                )
            }
        };
        let separator = if address.contains('-') { '-' } else { ':' };
        let byte = |text: &str| match text.len() {
            1 | 2 if text.bytes().all(|b| b.is_ascii_hexdigit()) => {
                u8::from_str_radix(text, 16).ok()
            }
            _ => None,
        };
        let bytes: Option<Vec<u8>> = address.split(separator).map(byte).collect();
        let bytes: [u8; 6] = bytes
            .and_then(|all| all.try_into().ok())
            .ok_or_else(wrong)?;
        let address = number(bytes);
        let mac = Self::new(address, length).ok_or_else(wrong)?;
        match mac.address == address {
            true => Ok(mac),
            // More likely a slip than an intention.
            false => Err(format!(
                "'{text}' has bits after its length; did you mean {mac}?"
            )),
        }
    }
}

impl fmt::Display for MacPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, a, b, c, d, e, g] = self.address.to_be_bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")?;
        match self.length {
            BITS => Ok(()),
            length => write!(f, "/{length}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_their_first_bits() {
        for (text, shown) in [
            ("02:00:5e:00:53:01", "02:00:5e:00:53:01"),
            ("2-0-5E-0-53-1", "02:00:5e:00:53:01"),
            ("02:00:5e:00:00:00/24", "02:00:5e:00:00:00/24"),
            ("01:00:00:00:00:00/8", "01:00:00:00:00:00/8"),
        ] {
            let mac: MacPrefix = text.parse().unwrap();
            assert_eq!(mac.to_string(), shown);
            assert_eq!(MacPrefix::from_fields((mac.address, mac.mask())), Some(mac));
        }
        let vendor: MacPrefix = "02:00:5e:00:00:00/24".parse().unwrap();
        assert!(vendor.contains([2, 0, 0x5e, 9, 9, 9]));
        assert!(!vendor.contains([2, 0, 0x5f, 9, 9, 9]));
        assert_eq!(MacPrefix::from_fields((0, 0)), None);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            ":",
            "02:00:5e:00:53",
            "02:00:5e:00:53:01:02",
            "02:00:5e:00:53:001",
            "02:00:5e:00:53:g1",
            "02:00:5e:00:53:+1",
            "02:00:5e:00:53:01/",
            "02:00:5e:00:53:01/0",
            "02:00:5e:00:53:01/49",
            "02:00:5e:00:53:01/+8",
            "02:00:5e:00:53:01/24",
            "10.0.0.1",
            "02-00:5e:00:53:01",
        ] {
            assert!(text.parse::<MacPrefix>().is_err(), "{text}");
        }
    }
}
