//! Numbers and addresses, digit by digit: each packet has several, and the formatter of the standard library takes a few
//! times as long.

use std::fmt::Write;
use std::net::IpAddr;

/// Appends a number, padded with zeros to `least` digits.
pub fn decimal(out: &mut String, number: u64, least: usize) {
    let mut digits = [b'0'; 20];
    let at = put(&mut digits, number).min(digits.len() - least.min(digits.len()));
    append(out, &digits[at..]);
}

/// Appends an address.
pub fn address(out: &mut String, address: IpAddr) {
    let IpAddr::V4(address) = address else {
        // Writing to a String cannot fail.
        let _ = write!(out, "{address}");
        return;
    };
    let mut text = [b'0'; 15];
    let mut at = text.len();
    for (index, octet) in address.octets().into_iter().enumerate().rev() {
        at = put(&mut text[..at], octet.into()).min(at - 1);
        if index > 0 {
            at -= 1;
            text[at] = b'.';
        }
    }
    append(out, &text[at..]);
}

/// Writes the digits of a number at the end of zeros, and returns the place of the first one; 0 has none.
fn put(zeros: &mut [u8], mut number: u64) -> usize {
    let mut at = zeros.len();
    while number > 0 {
        at -= 1;
        zeros[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    at
}

fn append(out: &mut String, ascii: &[u8]) {
    out.push_str(std::str::from_utf8(ascii).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_addresses_are_the_same_as_the_library_writes() {
        for number in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX] {
            for least in [1, 2, 9] {
                let mut out = "x".to_owned();
                decimal(&mut out, number, least);
                assert_eq!(out, format!("x{number:0least$}"));
            }
        }
        for octet in 0..=u8::MAX {
            for shown in [[octet, 0, 10, 255], [255, octet, 0, 9], [0, 0, 0, octet]] {
                let mut out = String::new();
                address(&mut out, shown.into());
                assert_eq!(out, IpAddr::from(shown).to_string());
            }
        }
        let mut out = String::new();
        address(&mut out, "fe80::1".parse().unwrap());
        assert_eq!(out, "fe80::1");
    }
}
