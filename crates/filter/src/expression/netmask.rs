//! `ip broadcast` with the interface's netmask.
//!
//! The crate that calls libpcap passes no netmask, so the primitive is written out here as the
//! comparisons that libpcap would make: all host bits zero, or all of them one.

use std::net::Ipv4Addr;

/// The expression with each `ip broadcast` written out for this netmask.
pub(super) fn apply(expression: &str, netmask: Option<Ipv4Addr>) -> String {
    let Some(netmask) = netmask else {
        return expression.to_owned();
    };
    let host = !u32::from(netmask);
    let spelled =
        format!("(ip and (ip[16:4] & {host:#x} = 0 or ip[16:4] & {host:#x} = {host:#x}))");
    let mut text = String::with_capacity(expression.len());
    let mut rest = expression;
    while let Some(found) = find(rest) {
        text.push_str(&rest[..found.start]);
        text.push_str(&spelled);
        rest = &rest[found.end..];
    }
    text.push_str(rest);
    text
}

/// The place of an `ip broadcast`, if the netmask is the number by which libpcap means that none is known.
pub(super) fn unknown(
    expression: &str,
    netmask: Option<Ipv4Addr>,
) -> Option<std::ops::Range<usize>> {
    (netmask == Some(Ipv4Addr::BROADCAST))
        .then(|| find(expression))
        .flatten()
}

/// The next `ip broadcast` that stands as two whole words.
fn find(text: &str) -> Option<std::ops::Range<usize>> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || ".-_:\\/".contains(c);
    text.match_indices("ip").find_map(|(start, _)| {
        if text[..start].ends_with(is_word) {
            return None;
        }
        let after = &text[start + 2..];
        let word = after.trim_start();
        let rest = word.strip_prefix("broadcast")?;
        if word.len() == after.len() || rest.starts_with(is_word) {
            return None;
        }
        Some(start..text.len() - rest.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_words_are_rewritten() {
        let mask = Some(Ipv4Addr::new(255, 255, 0, 0));
        for same in [
            "broadcast",
            "ether broadcast",
            "host ip-broadcast",
            "ipbroadcast",
            "ip",
        ] {
            assert_eq!(apply(same, mask), same);
        }
        assert_eq!(
            apply("!ip  broadcast&&tcp", mask),
            "!(ip and (ip[16:4] & 0xffff = 0 or ip[16:4] & 0xffff = 0xffff))&&tcp"
        );
        assert_eq!(apply("ip broadcast", None), "ip broadcast");
    }
}
