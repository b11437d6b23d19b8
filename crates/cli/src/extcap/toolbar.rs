//! Wireshark's toolbar, by which a running capture's filter, snap length and verdict are changed.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use trawl_filter::select::{Question, Selector};
use trawl_packet::pcapng::block::ByteOrder;
use trawl_packet::verdict::{VerdictKind, VerdictSet};
use trawl_sink::Choice;

use crate::capture::recording;

/// Commands of the toolbar's protocol, and the first byte of its messages.
const SYNC: u8 = b'T';
const SET: u8 = 1;
const STATUS_BAR: u8 = 6;
/// Length of a message's header: the length of the rest in three bytes, number and command.
const HEADER_LEN: usize = 6;
/// Maximum length of a message: a greater length can only come from damaged data.
const MAX_MESSAGE: usize = 65_536;

/// The value of `toolbar.txt` for all verdicts. Wireshark leaves out empty values.
const ALL: &str = "all";

/// The toolbar's fields, by the numbers of `toolbar.txt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Filter,
    Snaplen,
    Verdict,
}

impl Field {
    fn of(control: u8) -> Option<Self> {
        [Self::Filter, Self::Snaplen, Self::Verdict].get(usize::from(control)).copied()
    }
}

/// Returns the next field that the toolbar sets and its text, or `None` once the toolbar is closed.
fn next_change(source: &mut impl Read) -> Option<(Field, String)> {
    loop {
        let mut header = [0; HEADER_LEN];
        source.read_exact(&mut header).ok()?;
        let [sync, a, b, c, control, command] = header;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if sync != SYNC || !(2..=MAX_MESSAGE).contains(&len) {
            return None;
        }
        let mut payload = vec![0; len - 2];
        source.read_exact(&mut payload).ok()?;
        if let (Some(field), SET) = (Field::of(control), command) {
            return Some((field, String::from_utf8_lossy(&payload).trim().to_owned()));
        }
    }
}

/// The toolbar's pipes, and the choice that it changes.
#[derive(Debug)]
pub(super) struct Toolbar {
    pub source: File,
    pub answers: Option<File>,
    pub choice: Arc<Mutex<Choice>>,
}

impl Toolbar {
    /// Applies each valid change. Wireshark's status bar shows the error of an invalid one at once, even if no packet
    /// arrives.
    pub fn apply_changes(mut self) {
        while let Some((field, text)) = next_change(&mut self.source) {
            let applied = match field {
                Field::Filter => self.set_filter(&text),
                Field::Snaplen => self.set_snaplen(&text),
                Field::Verdict => self.set_verdict(&text),
            };
            let status = applied.unwrap_or_else(|why| why);
            self.show_status(&format!("trawl: {status}"));
        }
    }

    fn set_filter(&self, filter: &str) -> Result<String, String> {
        if filter.is_empty() {
            self.choice.lock().selector = None;
            return Ok("no filter".to_owned());
        }
        let question = Question::Expression(filter.to_owned());
        let mut selector = Selector::new(question, trawl_filter::CompilerOptions::default());
        selector.prepare((1, ByteOrder::Little)).map_err(|error| error.to_string())?;
        self.choice.lock().selector = Some(selector);
        Ok(format!("filter {filter}"))
    }

    fn set_snaplen(&self, text: &str) -> Result<String, String> {
        let bytes = match text {
            "" | "0" => None,
            number => {
                let number = number.parse().map_err(|_| format!("{number:?} is not a number of bytes"))?;
                Some(recording::snaplen(number).map_err(|error| error.to_string())?)
            }
        };
        self.choice.lock().snaplen = bytes;
        Ok(bytes.map_or_else(|| "whole packets".to_owned(), |bytes| format!("{bytes} bytes of each packet")))
    }

    fn set_verdict(&self, name: &str) -> Result<String, String> {
        if name == ALL {
            self.choice.lock().verdicts.clear();
            return Ok("all verdicts".to_owned());
        }
        let xdp = VerdictSet::parse(VerdictKind::Xdp, name).map_err(|error| error.to_string())?;
        // A verdict such as TX has no name at tc.
        let tc = VerdictSet::parse(VerdictKind::Tc, name).ok();
        self.choice.lock().verdicts = [xdp].into_iter().chain(tc).collect();
        Ok(format!("verdict {}", name.to_uppercase()))
    }

    fn show_status(&mut self, text: &str) {
        let Some(answers) = &mut self.answers else {
            return;
        };
        let len = (text.len() + 2) as u32;
        let mut message = len.to_be_bytes();
        message[0] = SYNC;
        let parts = [&message[..], &[0, STATUS_BAR], text.as_bytes()].concat();
        // A closed toolbar does not end the capture.
        let _ = answers.write_all(&parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wireshark leaves out values without a text.
    #[test]
    fn all_values_are_shown() {
        let controls = include_str!("toolbar.txt");
        assert!(controls.contains(&format!("{{value={ALL}}}")) && !controls.contains("{value=}"), "{controls}");
    }

    #[test]
    fn the_toolbars_messages() {
        let message = |control: u8, command: u8, text: &str| {
            let mut len = (text.len() as u32 + 2).to_be_bytes();
            len[0] = SYNC;
            [&len[..], &[control, command], text.as_bytes()].concat()
        };
        let parts = [message(3, SET, "x"), message(1, 0, ""), message(0, SET, " udp "), message(1, SET, "64")];
        let bytes = parts.concat();
        let mut source = &bytes[..];
        assert_eq!(next_change(&mut source), Some((Field::Filter, "udp".to_owned())));
        assert_eq!(next_change(&mut source), Some((Field::Snaplen, "64".to_owned())));
        assert_eq!(next_change(&mut source), None);
        assert_eq!(next_change(&mut &b"T\xff\xff\xff\x00\x01"[..]), None);
        assert_eq!(next_change(&mut &b"X\x00\x00\x02\x00\x01"[..]), None);
    }
}
