//! The protocol of NATS as clients speak it: operations of one line, some of them with a payload. The input is hostile:
//! reading never panics, and a line or payload that is too long is an error before it is kept.

/// Maximum length of a line, including CONNECT with its key and signature.
pub const LINE_MOST: usize = 4096;
/// Maximum length of headers and payload together, as nats-server's default.
pub const PAYLOAD_MOST: usize = 1 << 20;
/// Maximum length of a subject.
const SUBJECT_MOST: usize = 512;
const TOO_LONG: &str = "Maximum Control Line Exceeded";
const UNKNOWN: &str = "Unknown Protocol Operation";

#[derive(Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Credentials and options, in JSON.
    Connect(&'a str),
    Publish(Publish<'a>),
    Subscribe {
        subject: &'a str,
        sid: u64,
    },
    Unsubscribe {
        sid: u64,
        /// Number of messages after which the subscription ends; now, if `None`.
        after: Option<u64>,
    },
    Ping,
    Pong,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    pub subject: &'a str,
    pub reply: Option<&'a str>,
    pub headers: &'a [u8],
    pub payload: &'a [u8],
}

/// The text of `-ERR`, after which the connection ends.
pub type Fault = &'static str;

/// Reads the first operation and its length; returns `None` until its last byte has arrived.
pub fn read(bytes: &[u8]) -> Result<Option<(Operation<'_>, usize)>, Fault> {
    let Some(end) = bytes.iter().take(LINE_MOST).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LINE_MOST { Ok(None) } else { Err(TOO_LONG) };
    };
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| UNKNOWN)?.trim_end();
    let (verb, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let operation = match (verb.to_ascii_uppercase().as_str(), words.as_slice()) {
        ("CONNECT", _) => Operation::Connect(rest.trim()),
        ("PING", []) => Operation::Ping,
        ("PONG", []) => Operation::Pong,
        ("SUB", [subject, sid]) => Operation::Subscribe { subject: pattern(subject)?, sid: number(sid)? },
        ("SUB", [_, _, _]) => return Err("Queue Groups Are Not Supported"),
        ("UNSUB", [sid]) => Operation::Unsubscribe { sid: number(sid)?, after: None },
        ("UNSUB", [sid, after]) => Operation::Unsubscribe { sid: number(sid)?, after: Some(number(after)?) },
        ("PUB", [subject, reply @ .., length]) if reply.len() < 2 => {
            return published(bytes, end + 1, subject, reply, ["0", length]);
        }
        ("HPUB", [subject, reply @ .., headers, length]) if reply.len() < 2 => {
            return published(bytes, end + 1, subject, reply, [headers, length]);
        }
        _ => return Err(UNKNOWN),
    };
    Ok(Some((operation, end + 1)))
}

/// Reads the headers and the payload after the line of a published message.
fn published<'a>(
    bytes: &'a [u8],
    start: usize,
    subject: &'a str,
    reply: &[&'a str],
    lengths: [&str; 2],
) -> Result<Option<(Operation<'a>, usize)>, Fault> {
    let [of_headers, length] = lengths.map(number::<usize>);
    let (of_headers, length) = (of_headers?, length?);
    if length > PAYLOAD_MOST {
        return Err("Maximum Payload Violation");
    }
    if of_headers > length {
        return Err(UNKNOWN);
    }
    let reply = reply.first().map(|reply| literal(reply)).transpose()?;
    // A request that creates a consumer ends with a filter, which may have wildcards.
    let subject = pattern(subject)?;
    let end = start + length;
    let Some(line_end) = bytes.get(end..end + 2) else {
        return Ok(None);
    };
    if line_end != b"\r\n" {
        return Err(UNKNOWN);
    }
    let (headers, payload) = bytes[start..end].split_at(of_headers);
    Ok(Some((Operation::Publish(Publish { subject, reply, headers, payload }), end + 2)))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Fault> {
    text.parse().map_err(|_| UNKNOWN)
}

/// Checks a subject that may have wildcards.
fn pattern(subject: &str) -> Result<&str, Fault> {
    let mut tokens = subject.split('.').peekable();
    let mut is_right = subject.len() <= SUBJECT_MOST;
    while let Some(token) = tokens.next() {
        let is_wildcard = token == "*" || token == ">" && tokens.peek().is_none();
        is_right &= !token.is_empty() && (is_wildcard || !token.contains(['*', '>']));
        is_right &= !token.chars().any(char::is_control);
    }
    if is_right { Ok(subject) } else { Err("Invalid Subject") }
}

/// Checks a subject without wildcards.
pub fn literal(subject: &str) -> Result<&str, Fault> {
    if subject.contains(['*', '>']) { Err("Invalid Subject") } else { pattern(subject) }
}

/// Returns true if a pattern covers a subject without wildcards.
pub fn covers(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in pattern.split('.') {
        match tokens.next() {
            Some(_) if wanted == ">" => return true,
            Some(token) if wanted == "*" || wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

/// Returns the value of a header.
pub fn header<'a>(headers: &'a [u8], name: &str) -> Option<&'a str> {
    let lines = std::str::from_utf8(headers).ok()?.lines().skip(1);
    let mut values = lines.filter_map(|line| line.split_once(':'));
    values.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Appends a message for a subscriber. Headers are complete, with the empty line at their end.
pub fn write(out: &mut Vec<u8>, subject: &str, sid: u64, reply: Option<&str>, headers: &str, payload: &[u8]) {
    let reply = reply.map(|reply| format!(" {reply}")).unwrap_or_default();
    let length = headers.len() + payload.len();
    let line = if headers.is_empty() {
        format!("MSG {subject} {sid}{reply} {length}\r\n")
    } else {
        format!("HMSG {subject} {sid}{reply} {} {length}\r\n", headers.len())
    };
    for part in [line.as_bytes(), headers.as_bytes(), payload, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLES: &[u8] = b"CONNECT {\"nkey\":\"U\",\"sig\":\"x\"}\r\nPING\r\nSUB a.*.> 7\r\nUNSUB 7 3\r\n\
        PUB a.b 5\r\nhello\r\nPUB a.b c.d 0\r\n\r\nHPUB a r 17 19\r\nNATS/1.0\r\nA:b\r\n\r\nok\r\npong\r\n";

    fn all(mut bytes: &[u8]) -> Result<(usize, usize), Fault> {
        let mut count = 0;
        while let Some((_, length)) = read(bytes)? {
            assert!(length > 0 && length <= bytes.len());
            bytes = &bytes[length..];
            count += 1;
        }
        Ok((count, bytes.len()))
    }

    #[test]
    fn operations_are_read_however_they_are_cut() {
        assert_eq!(all(EXAMPLES), Ok((8, 0)));
        for length in 0..EXAMPLES.len() {
            let (count, rest) = all(&EXAMPLES[..length]).expect("a part of the examples");
            assert!(count < 8 && rest <= length, "{length}");
        }
    }

    #[test]
    fn parts_of_a_message_are_read() {
        let bytes = b"HPUB a.b r.1 26 28\r\nNATS/1.0\r\nNats-X: \t 12\r\n\r\nok\r\n";
        let Ok(Some((Operation::Publish(publish), length))) = read(bytes) else {
            panic!("a message");
        };
        assert_eq!((publish.subject, publish.reply, publish.payload), ("a.b", Some("r.1"), &b"ok"[..]));
        assert_eq!((header(publish.headers, "nats-x"), header(publish.headers, "other")), (Some("12"), None));
        assert_eq!(length, bytes.len());
    }

    #[test]
    fn operations_that_no_client_sends_are_refused() {
        let long = format!("PUB a {}\r\n", PAYLOAD_MOST + 1);
        let endless = "x".repeat(LINE_MOST);
        for text in [
            "HELLO\r\n",
            "PUB a\r\n",
            "PUB a b c 1\r\n",
            "PUB a -1\r\n",
            "PUB a 99999999999999999999\r\n",
            "PUB a.b* 0\r\n\r\n",
            "PUB a..b 0\r\n\r\n",
            "PUB a > 0\r\n\r\n",
            "PUB a 1\r\nxyz",
            "HPUB a 5 4\r\n",
            "SUB a queue 1\r\n",
            "SUB >.a 1\r\n",
            "SUB a x\r\n",
            &long,
            &endless,
        ] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(read(b"\xff\xfe\r\n").is_err());
    }

    /// Bytes that are damaged at random, from a fixed seed, neither panic nor are read beyond their end.
    #[test]
    fn damaged_operations_never_panic() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move |most: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % most as u64) as usize
        };
        for _ in 0..200_000 {
            let mut bytes = EXAMPLES.to_vec();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] = random(256) as u8,
                    1 => bytes.insert(at, b"\r\n 0.*>"[random(7)]),
                    2 => bytes.truncate(at + 1),
                    _ => drop(bytes.remove(at)),
                }
                if bytes.is_empty() {
                    bytes.push(0);
                }
            }
            let _ = all(&bytes);
        }
    }

    #[test]
    fn wildcards_cover_whole_tokens() {
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.*", "a", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("*.b", "a.b", true),
            (">", "a.b", true),
            ("a.b", "a.bc", false),
        ] {
            assert_eq!(covers(pattern, subject), expected, "{pattern} {subject}");
        }
    }
}
