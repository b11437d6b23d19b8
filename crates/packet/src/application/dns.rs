//! Questions of DNS messages.

use super::{MAX_NAME, put_escaped};
use crate::net::protocol::{TCP, UDP};
use crate::walk::{Headers, half};

const DNS: u16 = 53;
const MULTICAST_DNS: u16 = 5353;
const LLMNR: u16 = 5355;

const HEADER_LEN: usize = 12;
/// Internet, Chaos, Hesiod, none and any.
const CLASSES: [u16; 5] = [1, 3, 4, 254, 255];
/// The bit of a class by which multicast DNS asks for an answer by unicast.
const TOP_BIT: u16 = 0x8000;
/// Characters with a meaning in master files.
const SPECIAL: &[u8] = b"\"$().;@\\";

/// Returns the name in the first question of a DNS query or answer: in lower case, with the escapes of a master file,
/// and without the last dot, except for the root, which is `.`. DNS is recognised by its ports, those of multicast DNS
/// and LLMNR too.
pub fn dns_name(headers: &Headers<'_>) -> Option<String> {
    let message = message(headers)?;
    let questions = half(message, 4)?;
    if questions == 0 {
        return None;
    }
    let after = for_each_label(message, |_| ())?;
    // Other protocols use these ports too. The class may be cut off.
    let class = half(message, after + 2);
    if class.is_some_and(|class| !CLASSES.contains(&(class & !TOP_BIT))) {
        return None;
    }
    let mut name = String::new();
    for_each_label(message, |label| {
        if !name.is_empty() {
            name.push('.');
        }
        put_escaped(&mut name, label, SPECIAL);
    });
    if name.is_empty() {
        name.push('.');
    }
    name.make_ascii_lowercase();
    Some(name)
}

fn message<'a>(headers: &Headers<'a>) -> Option<&'a [u8]> {
    let (src, dst) = headers.ports.filter(|_| !headers.incomplete)?;
    let uses = |port| src == port || dst == port;
    match headers.ip?.protocol {
        UDP if [DNS, MULTICAST_DNS, LLMNR].into_iter().any(uses) => Some(headers.payload),
        TCP if uses(DNS) => {
            let len = usize::from(half(headers.payload, 0)?);
            let rest = &headers.payload[2..];
            Some(rest.get(..len).unwrap_or(rest))
        }
        _ => None,
    }
}

/// Reads the name after the header, label by label. Returns the offset after it.
fn for_each_label<'a>(message: &'a [u8], mut read: impl FnMut(&'a [u8])) -> Option<usize> {
    let (mut at, mut after) = (HEADER_LEN, None);
    // The length of the name includes the empty label of the root.
    let mut len = 1;
    // Each step reads a label or a pointer. The limit ends a loop of pointers.
    for _ in 0..MAX_NAME {
        let first = *message.get(at)?;
        match first {
            0 => return Some(after.unwrap_or(at + 1)),
            1..=0x3f => {
                let end = at + 1 + usize::from(first);
                let label = message.get(at + 1..end)?;
                len += 1 + label.len();
                if len > MAX_NAME {
                    return None;
                }
                read(label);
                at = end;
            }
            0xc0.. => {
                after.get_or_insert(at + 2);
                at = usize::from(half(message, at)? & 0x3fff);
            }
            _ => return None,
        }
    }
    None
}
