//! Networks whose addresses are texts.

use std::net::IpAddr;

use trawl_packet::net::prefix::Prefix;

/// Greater than any character of an address.
const AFTER: &str = "g";
/// Maximum number of digits of a part of an address.
const DIGITS: u32 = 4;

/// Returns texts between which the texts of all addresses of a network are in alphabetical order.
pub fn text_bounds(prefix: Prefix) -> (String, String) {
    let (parts, width, separator) = match prefix.address() {
        IpAddr::V4(address) => (address.octets().map(u16::from).to_vec(), 8, '.'),
        IpAddr::V6(address) => (address.segments().to_vec(), 16, ':'),
    };
    let text = |part: u16| if prefix.is_ipv6() { format!("{part:x}") } else { part.to_string() };
    // An IPv6 address has `::` instead of zeros.
    let is_shortened = |part: u16| prefix.is_ipv6() && part == 0;
    let length = usize::from(prefix.length());
    let mut head = String::new();
    for (number, part) in parts.iter().copied().enumerate() {
        let bits = length.saturating_sub(number * width);
        if bits == 0 || is_shortened(part) {
            break;
        }
        if bits < width {
            let last = part | (u16::MAX >> (16 - width)) >> bits;
            let ranges = ranges(part, last, if prefix.is_ipv6() { 16 } else { 10 });
            let least = ranges.iter().map(|range| text(range.0)).min().unwrap_or_default();
            let most = ranges.iter().map(|range| text(range.1)).max().unwrap_or_default();
            return (format!("{head}{least}"), format!("{head}{most}{AFTER}"));
        }
        head += &text(part);
        if number + 1 < parts.len() {
            head.push(separator);
        }
    }
    let last = format!("{head}{AFTER}");
    (head, last)
}

/// Divides a range into the numbers of each number of digits, whose texts have the order of the numbers.
fn ranges(first: u16, last: u16, base: u32) -> Vec<(u16, u16)> {
    let of_length = |digits: u32| {
        let least = if digits == 0 { 0 } else { base.pow(digits) };
        let most = base.pow(digits + 1) - 1;
        let (from, to) = (least.max(first.into()), most.min(last.into()));
        (from <= to).then_some((u16::try_from(from).ok()?, u16::try_from(to).ok()?))
    };
    (0..DIGITS).filter_map(of_length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_all_addresses_lie_between_the_bounds() {
        for (prefix, first, last) in [
            ("10.0.0.0/8", "10.", "10.g"),
            ("172.16.0.0/12", "172.16", "172.31g"),
            ("10.0.0.0/9", "10.0", "10.99g"),
            ("0.0.0.0/0", "", "g"),
            ("192.0.2.128/25", "192.0.2.128", "192.0.2.255g"),
            ("2001:db8::/32", "2001:db8:", "2001:db8:g"),
            ("2000::/3", "2000", "3fffg"),
            ("1:8000::/17", "1:8000", "1:ffffg"),
            ("fe80::/10", "fe80", "febfg"),
            ("2001:0:1::/48", "2001:", "2001:g"),
            ("::/8", "", "g"),
        ] {
            let (found, end) = text_bounds(prefix.parse().expect("a prefix"));
            assert_eq!((found.as_str(), end.as_str()), (first, last), "{prefix}");
        }
    }
}
