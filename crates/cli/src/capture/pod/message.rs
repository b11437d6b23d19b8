//! The few messages of CRI's runtime.v1 that are needed, in protobuf's encoding.

/// A pod's sandbox, as ListPodSandbox tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub is_ready: bool,
    pub created_ns: u64,
}

/// A field of a message.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Value<'_> {
    fn text(&self) -> String {
        match self {
            Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::Number(_) => String::new(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Value::Bytes(bytes) => bytes,
            Value::Number(_) => &[],
        }
    }

    fn number(&self) -> u64 {
        match self {
            Value::Number(number) => *number,
            Value::Bytes(_) => 0,
        }
    }
}

/// The fields of a message by number, as far as it is whole.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Bytes(self.take(8)?),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => Value::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

/// PodSandboxStatusRequest: with `verbose`, whose answer tells the namespace.
pub fn status_request(id: &str) -> Vec<u8> {
    let mut message = vec![1 << 3 | 2];
    let mut length = id.len();
    while length >= 0x80 {
        message.push(length as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend_from_slice(id.as_bytes());
    message.extend_from_slice(&[2 << 3, 1]);
    message
}

/// ListPodSandboxResponse.
pub fn sandboxes(message: &[u8]) -> Vec<Sandbox> {
    let items = Fields(message).filter(|(field, _)| *field == 1);
    items.map(|(_, item)| sandbox(item.bytes())).collect()
}

fn sandbox(message: &[u8]) -> Sandbox {
    let mut sandbox = Sandbox {
        // SANDBOX_READY is zero, which is left out.
        is_ready: true,
        ..Sandbox::default()
    };
    for (field, value) in Fields(message) {
        match field {
            1 => sandbox.id = value.text(),
            2 => {
                for (field, value) in Fields(value.bytes()) {
                    match field {
                        1 => sandbox.name = value.text(),
                        3 => sandbox.namespace = value.text(),
                        _ => {}
                    }
                }
            }
            3 => sandbox.is_ready = value.number() == 0,
            4 => sandbox.created_ns = value.number(),
            _ => {}
        }
    }
    sandbox
}

/// The value of `info` in a PodSandboxStatusResponse.
pub fn info(message: &[u8]) -> Option<String> {
    let entries = Fields(message).filter(|(field, _)| *field == 2);
    entries
        .map(|(_, entry)| {
            let (mut key, mut text) = (String::new(), String::new());
            for (field, value) in Fields(entry.bytes()) {
                match field {
                    1 => key = value.text(),
                    2 => text = value.text(),
                    _ => {}
                }
            }
            (key, text)
        })
        .find_map(|(key, text)| (key == "info").then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of containerd: id "ab", metadata {name "web", uid "u", namespace "default"}, state NOTREADY.
    const ITEM: &[u8] =
        b"\x0a\x1b\x0a\x02ab\x12\x13\x0a\x03web\x12\x01u\x1a\x07default\x20\x01\x18\x01";

    #[test]
    fn a_listing_is_read_and_no_piece_of_it_panics() {
        let found = sandboxes(ITEM);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), found[0].namespace.as_str()),
            ("web", "default")
        );
        assert!(!found[0].is_ready && found[0].id == "ab");
        for end in 0..ITEM.len() {
            sandboxes(&ITEM[..end]);
            info(&ITEM[end..]);
        }
        assert_eq!(sandboxes(&[0xff; 20]), []);
    }

    #[test]
    fn a_long_id_is_written_whole() {
        let message = status_request(&"x".repeat(300));
        let fields: Vec<_> = Fields(&message)
            .map(|(field, value)| (field, value.text().len()))
            .collect();
        assert_eq!(fields, [(1, 300), (2, 0)]);
    }
}
