//! Protocols whose messages are lines of text, and syslog and TFTP.

use super::line::{Data, Line, Printed, Stop, put};

const HTTP: [&str; 38] = [
    "GET",
    "PUT",
    "COPY",
    "HEAD",
    "LOCK",
    "MOVE",
    "POLL",
    "POST",
    "BCOPY",
    "BMOVE",
    "MKCOL",
    "TRACE",
    "LABEL",
    "MERGE",
    "DELETE",
    "SEARCH",
    "UNLOCK",
    "REPORT",
    "UPDATE",
    "NOTIFY",
    "BDELETE",
    "CONNECT",
    "OPTIONS",
    "CHECKIN",
    "PROPFIND",
    "CHECKOUT",
    "CCM_POST",
    "SUBSCRIBE",
    "PROPPATCH",
    "BPROPFIND",
    "BPROPPATCH",
    "UNCHECKOUT",
    "MKACTIVITY",
    "MKWORKSPACE",
    "UNSUBSCRIBE",
    "RPC_CONNECT",
    "VERSION-CONTROL",
    "BASELINE-CONTROL",
];
const RTSP: [&str; 11] = [
    "OPTIONS",
    "DESCRIBE",
    "ANNOUNCE",
    "SETUP",
    "PLAY",
    "PAUSE",
    "TEARDOWN",
    "GET_PARAMETER",
    "SET_PARAMETER",
    "REDIRECT",
    "RECORD",
];
const SIP: [&str; 6] = ["INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "REGISTER"];

/// Bytes as tcpdump shows text: control characters as `^X`, those above 127 as `M-x`.
pub(super) fn put_chars(line: &mut Line<'_>, bytes: &[u8]) {
    for byte in bytes {
        if !byte.is_ascii() {
            line.out.push_str("M-");
        }
        let low = byte & 0x7f;
        if low.is_ascii_graphic() || low == b' ' {
            line.out.push(low.into());
        } else {
            line.out.push('^');
            line.out.push((low ^ 0x40).into());
        }
    }
}

/// Text that may end before its room does, at a zero.
pub(super) fn put_string(line: &mut Line<'_>, bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0);
    put_chars(line, &bytes[..end.unwrap_or(bytes.len())]);
}

pub(super) fn http(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "http";
    let known = is_message(data.bytes, &HTTP, true);
    message(line, ": HTTP", known, data)
}

pub(super) fn rtsp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "rtsp";
    let known = is_message(data.bytes, &RTSP, true);
    message(line, ": RTSP", known, data)
}

pub(super) fn sip(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "sip";
    let known = is_message(data.bytes, &SIP, true);
    message(line, "SIP", known, data)
}

/// A protocol all of whose messages are lines.
pub(super) fn lines(
    line: &mut Line<'_>,
    protocol: &'static str,
    name: &str,
    data: Data<'_>,
) -> Printed {
    line.protocol = protocol;
    message(line, name, true, data)
}

/// Whether it begins with a request's name, or with a response: a code of three digits, as the second word.
fn is_message(bytes: &[u8], requests: &[&str], code_is_second: bool) -> bool {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || !byte.is_ascii_graphic();
    let mut words = bytes.split(is_end).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let is_request = requests
        .iter()
        .any(|name| name.as_bytes().eq_ignore_ascii_case(first));
    let code = if code_is_second {
        words.next().unwrap_or_default()
    } else {
        first
    };
    let begins_with_text = bytes.first().is_some_and(u8::is_ascii_graphic);
    let is_code = code.len() == 3 && code.iter().all(u8::is_ascii_digit);
    begins_with_text && (is_request || is_code)
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

/// Shows a line of printable characters; how long it was with its end, or nothing if there was no such line.
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

/// The line that names a version; what follows is binary.
pub(super) fn ssh(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "ssh";
    if data.bytes.starts_with(b"SSH-") {
        let end = data
            .bytes
            .iter()
            .position(|byte| matches!(byte, b'\r' | b'\n'));
        let version = end.map(|end| &data.bytes[..end]);
        let printable = |text: &&[u8]| {
            text.iter()
                .all(|byte| byte.is_ascii_graphic() || *byte == b' ')
        };
        if let Some(version) = version.filter(printable) {
            put!(line, ": SSH: ");
            put_chars(line, version);
        }
    }
    Ok(())
}

pub(super) fn syslog(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const FACILITIES: [&str; 24] = [
        "kernel", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron",
        "authpriv", "ftp", "ntp", "security", "console", "cron", "local0", "local1", "local2",
        "local3", "local4", "local5", "local6", "local7",
    ];
    const SEVERITIES: [&str; 8] = [
        "emergency",
        "alert",
        "critical",
        "error",
        "warning",
        "notice",
        "info",
        "debug",
    ];
    line.protocol = "syslog";
    if data.u8(0)? != b'<' {
        return Err(Stop::Invalid);
    }
    let (mut at, mut priority) = (1, 0u32);
    while at <= 3 && data.u8(at)?.is_ascii_digit() {
        priority = priority * 10 + u32::from(data.u8(at)? - b'0');
        at += 1;
    }
    if data.u8(at)? != b'>' {
        return Err(Stop::Invalid);
    }
    let (facility, severity) = (((priority & 0x3f8) >> 3) as usize, (priority & 7) as usize);
    let unknown = format!("unknown ({facility})");
    let name = FACILITIES.get(facility).copied().unwrap_or(&unknown);
    let level = SEVERITIES[severity];
    if !line.verbose() {
        put!(line, "SYSLOG {name}.{level}, length: {}", data.len);
        return Ok(());
    }
    put!(
        line,
        "SYSLOG, length: {}\n\tFacility {name} ({facility}), Severity {level} ({severity})\n\tMsg: ",
        data.len
    );
    let message = data.skip(at + 1);
    put_chars(line, message.slice(0, message.len)?);
    Ok(())
}

pub(super) fn tftp(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "tftp";
    put!(line, "TFTP, length {}", data.len);
    if data.len < 2 {
        return Err(Stop::Cut);
    }
    let code = data.u16(0)?;
    let name = match code {
        1 => "RRQ",
        2 => "WRQ",
        3 => "DATA",
        4 => "ACK",
        5 => "ERROR",
        6 => "OACK",
        _ => {
            put!(line, ", tftp-#{code}");
            return Ok(());
        }
    };
    put!(line, ", {name}");
    match code {
        3 | 4 => put!(line, " block {}", data.u16(2)?),
        1 | 2 => {
            put!(line, " \"");
            let rest = word(line, data.skip(2))?;
            put!(line, "\" ");
            let options = word(line, rest)?;
            words(line, options)?;
        }
        5 => {
            let known = [
                "EUNDEF",
                "ENOTFOUND",
                "EACCESS",
                "ENOSPACE",
                "EBADOP",
                "EBADID",
                "EEXISTS",
                "ENOUSER",
            ];
            let error = data.u16(2)?;
            match known.get(usize::from(error)) {
                Some(name) => put!(line, " {name}"),
                None => put!(line, " tftp-err-#{error} \""),
            }
            put!(line, " \"");
            word(line, data.skip(4))?;
            put!(line, "\"");
        }
        _ => words(line, data.skip(2))?,
    }
    Ok(())
}

/// Words that end with a zero byte each.
fn words(line: &mut Line<'_>, mut data: Data<'_>) -> Printed {
    while data.len > 0 {
        if data.u8(0)? != 0 {
            put!(line, " ");
        }
        data = word(line, data)?;
    }
    Ok(())
}

fn word<'a>(line: &mut Line<'_>, data: Data<'a>) -> Result<Data<'a>, Stop> {
    let end = data.bytes.iter().position(|byte| *byte == 0);
    put_chars(line, &data.bytes[..end.unwrap_or(data.bytes.len())]);
    end.map(|end| data.skip(end + 1)).ok_or(Stop::Cut)
}
