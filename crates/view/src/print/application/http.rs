//! Protocols whose messages are lines of text: HTTP, RTSP, SIP, SMTP, WHOIS, FTP, and the first line of SSH.

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::names;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    requests(line, "http", ": HTTP", data)
}

pub fn rtsp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    requests(line, "rtsp", ": RTSP", data)
}

pub fn sip(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    requests(line, "sip", "SIP", data)
}

pub fn smtp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    lines(line, "smtp", ": SMTP", data)
}

pub fn whois(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    lines(line, "whois", ": WHOIS", data)
}

pub fn ftp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    lines(line, "ftp", ": FTP", data)
}

/// Shows a protocol whose messages begin with the name of a request, or are responses with a code.
fn requests(line: &mut Line<'_>, protocol: &'static str, name: &str, data: Data<'_>) -> Printed {
    line.protocol = protocol;
    let known = is_message(data.bytes, protocol);
    message(line, name, known, data)
}

/// Shows a protocol that consists of lines only.
fn lines(line: &mut Line<'_>, protocol: &'static str, name: &str, data: Data<'_>) -> Printed {
    line.protocol = protocol;
    message(line, name, true, data)
}

/// Returns true for bytes that begin with a request's name, or with a response, whose second token is a code of three
/// digits.
fn is_message(bytes: &[u8], table: &str) -> bool {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || !byte.is_ascii_graphic();
    let mut words = bytes.split(is_end).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let code = words.next().unwrap_or_default();
    let is_code = code.len() == 3 && code.iter().all(u8::is_ascii_digit);
    let begins_with_text = bytes.first().is_some_and(u8::is_ascii_graphic);
    begins_with_text && (is_code || names::has_word(table, first))
}

fn message(line: &mut Line<'_>, name: &str, is_message: bool, data: Data<'_>) -> Printed {
    put!(line, "{name}");
    if !is_message {
        return Ok(());
    }
    if !line.verbose() {
        return one_line(line, ": ", data).map(drop);
    }
    put!(line, ", length: {}", data.len);
    let mut rest = data;
    while rest.len > 0 {
        match one_line(line, "\n\t", rest)? {
            Some(len) => rest = rest.skip(len),
            None => break,
        }
    }
    Ok(())
}

/// Shows a line of printable characters. Returns its length with its end, or `None` without such a line.
fn one_line(line: &mut Line<'_>, prefix: &str, data: Data<'_>) -> Result<Option<usize>, Stop> {
    let bytes = &data.bytes[..data.bytes.len().min(data.len)];
    let is_text = |byte: u8| byte.is_ascii_graphic() || byte == b' ' || byte == b'\t';
    let end = bytes.iter().position(|byte| !is_text(*byte));
    let put_line = |line: &mut Line<'_>, text: &[u8]| {
        put!(line, "{prefix}");
        line.out.extend(text.iter().map(|byte| char::from(*byte)));
    };
    let Some(end) = end else {
        if bytes.len() < data.len {
            return Err(Stop::Cut);
        }
        put_line(line, bytes);
        put!(line, " [|{}]", line.protocol);
        return Ok(None);
    };
    let len = match (bytes[end], bytes.get(end + 1)) {
        (b'\n', _) => end + 1,
        (b'\r', Some(b'\n')) => end + 2,
        _ => return Ok(None),
    };
    put_line(line, &bytes[..end]);
    Ok(Some(len))
}

/// Shows the line that names a version; the rest is binary.
pub fn ssh(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "ssh";
    if data.bytes.starts_with(b"SSH-") {
        let mut parts = data.bytes.split_inclusive(|byte| matches!(byte, b'\r' | b'\n'));
        let is_printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        let version = parts.next().and_then(|first| match first {
            [version @ .., b'\r' | b'\n'] if version.iter().all(is_printable) => Some(version),
            _ => None,
        });
        if let Some(version) = version {
            put!(line, ": SSH: ");
            line.put_chars(version);
        }
    }
    Ok(())
}
