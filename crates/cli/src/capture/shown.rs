//! The sink that shows packets on standard output, in whichever form.

use std::io::{self, Write};

use trawl_kernel::{Error, Result};
use trawl_tap::sink::Sink;
use trawl_view::Show;
use trawl_view::record::{Place, RingBlocks, Source};

pub(super) struct Shown<S> {
    form: S,
    places: Vec<Place>,
    text: String,
}

impl<S: Show> Shown<S> {
    pub(super) fn new(form: S, places: Vec<Place>) -> Self {
        Self {
            form,
            places,
            text: String::new(),
        }
    }
}

impl<S: Show> Sink for Shown<S> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut source = RingBlocks::new(bytes, &self.places);
        while let Ok(true) = source.advance() {
            if let Some(packet) = source.current() {
                self.form.show(&mut self.text, &packet);
            }
        }
        let written = io::stdout().lock().write_all(self.text.as_bytes());
        self.text.clear();
        written.map_err(|e| Error::os("cannot write to standard output", e))
    }

    fn rest(&mut self) -> Result<()> {
        let flushed = io::stdout().lock().flush();
        flushed.map_err(|e| Error::os("cannot write to standard output", e))
    }
}
