//! QUIC: the long header, which is not encrypted.

use crate::print::line::{Colons, Data, Line, Printed, put};

/// Shows the long header; packets with the short one show nothing.
pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    put!(line, "UDP, length {}", data.len);
    long_header(line, data);
    Ok(())
}

fn long_header(line: &mut Line<'_>, data: Data<'_>) {
    let Ok(first) = data.u8(0) else { return };
    let Ok(number) = data.u32(1) else { return };
    if first & 0x80 == 0 {
        return;
    }
    let version_2 = number == 0x6b33_43cf;
    let kinds = ["initial", "0-RTT", "handshake", "retry"];
    let kind = usize::from(first >> 4 & 3);
    let name = match number {
        0 => "version negotiation",
        _ if first & 0x40 == 0 => return,
        _ if version_2 => kinds[(kind + 3) % 4],
        _ => kinds[kind],
    };
    // Google's versions before 50: Q and three digits, and both lengths in one byte.
    let [letter, digits @ ..] = number.to_be_bytes();
    let is_old = letter == b'Q' && (*b"043"..*b"050").contains(&digits);
    let version = match number {
        0 => String::new(),
        _ if letter == b'Q' && digits.iter().all(u8::is_ascii_digit) => {
            format!(" Q{}", digits.map(char::from).iter().collect::<String>())
        }
        1 => " v1".to_owned(),
        _ if version_2 => " v2".to_owned(),
        0xff00_0000..=0xff00_00ff => format!(" draft-{}", number & 0xff),
        _ => format!(" version 0x{number:08x}"),
    };
    let connection = |at: usize| {
        let len = usize::from(data.u8(at).ok()?);
        Some((data.slice(at + 1, len).ok()?, at + 1 + len))
    };
    let half = |number: u8| {
        if number == 0 {
            0
        } else {
            usize::from(number) + 3
        }
    };
    let ids = match is_old {
        false => connection(5).and_then(|(dst, at)| Some((dst, connection(at)?.0))),
        true => data.u8(5).ok().and_then(|lengths| {
            let (dst, src) = (half(lengths >> 4), half(lengths & 15));
            Some((data.slice(6, dst).ok()?, data.slice(6 + dst, src).ok()?))
        }),
    };
    put!(line, ": QUIC{version}, {name}");
    match ids {
        Some((dst, [])) => put!(line, ", dcid {}", Colons(dst)),
        Some((dst, src)) => put!(line, ", dcid {}, scid {}", Colons(dst), Colons(src)),
        None => put!(line, " [|quic]"),
    }
}
