//! The terminal: keys as they are typed, without waiting for the end of a line, and its size.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::{Error, Result, events};

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
    /// True once the terminal is gone: it seems readable then.
    is_gone: Cell<bool>,
}

impl Keyboard {
    /// Opens the keyboard. Without a terminal as standard input no keys arrive, which is not an error.
    pub fn open() -> Result<Self> {
        let stdin = io::stdin();
        let Ok(before) = tcgetattr(&stdin) else {
            return Ok(Self { before: None, is_gone: Cell::new(true) });
        };
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(|e| Error::os("cannot read single keys", e.into()))?;
        Ok(Self { before: Some(before), is_gone: Cell::new(false) })
    }

    /// Returns the next key that was typed, without waiting.
    pub fn key(&self) -> Option<u8> {
        self.before.as_ref()?;
        if self.is_gone.get() || !events::is_readable(io::stdin().as_fd()) {
            return None;
        }
        let mut key = [0];
        let count = rustix::io::read(io::stdin(), &mut key).unwrap_or(0);
        self.is_gone.set(count == 0);
        (count == 1).then_some(key[0])
    }

    /// Returns whether keys can still be typed: standard input becomes readable then.
    pub fn is_there(&self) -> bool {
        !self.is_gone.get()
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
