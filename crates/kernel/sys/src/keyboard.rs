//! The terminal: keys as they are typed, without waiting for the end of a line, and its size.

use std::io;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::{Error, Result};

/// Returns the columns and rows of the terminal on standard output.
pub fn window() -> Option<(usize, usize)> {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stderr())).ok()?;
    let (columns, rows) = (usize::from(size.ws_col), usize::from(size.ws_row));
    (columns > 0 && rows > 0).then_some((columns, rows))
}

/// Standard input with its terminal's line editing off; dropping this restores it.
#[derive(Debug)]
pub struct Keyboard {
    before: Option<Termios>,
}

impl Keyboard {
    /// Opens the keyboard. Without a terminal as standard input no keys arrive, which is not an error.
    pub fn open() -> Result<Self> {
        let stdin = io::stdin();
        let Ok(before) = tcgetattr(&stdin) else {
            return Ok(Self { before: None });
        };
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(|e| Error::os("cannot read single keys", e.into()))?;
        Ok(Self { before: Some(before) })
    }

    /// Returns the next key that was typed, without waiting.
    pub fn key(&self) -> Option<u8> {
        self.before.as_ref()?;
        let mut key = [0];
        let count = rustix::io::read(io::stdin(), &mut key).ok()?;
        (count == 1).then_some(key[0])
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
