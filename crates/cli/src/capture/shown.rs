//! The sink that shows packets on standard output, in whichever form.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use trawl_sys::{Error, Result};
use trawl_tap::session::Session;
use trawl_tap::sink::Sink;
use trawl_tap::stream::{End, Stream};
use trawl_view::Show;
use trawl_view::record::{BlockOrigin, RingBlocks, Source, add_places};

/// The interface and the hook of each interface block that a capture begins with.
pub(crate) fn origins(session: &Session) -> Vec<BlockOrigin> {
    session
        .interfaces()
        .iter()
        .zip(session.hook_names())
        .map(|(interface, hook)| BlockOrigin::new(interface, hook))
        .collect()
}

pub(super) struct Shown<S> {
    form: S,
    places: Vec<BlockOrigin>,
    described: usize,
    text: String,
    stream: Stream,
}

impl<S: Show> Shown<S> {
    pub(super) fn new(form: S, places: Vec<BlockOrigin>) -> Result<Self> {
        let name = "standard output";
        let output = io::stdout().as_fd().try_clone_to_owned();
        let output = output.map_err(|e| Error::os(format!("cannot write to {name}"), e))?;
        Ok(Self {
            form,
            places,
            described: 0,
            text: String::new(),
            stream: Stream::new(File::from(output), name.to_owned()),
        })
    }
}

impl<S: Show> Sink for Shown<S> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut ends: Vec<End> = Vec::new();
        add_places(&mut self.places, &mut self.described, bytes);
        let mut source = RingBlocks::new(bytes, &self.places);
        while let Ok(true) = source.advance() {
            if let Some(packet) = source.current() {
                self.form.show(&mut self.text, &packet);
            }
            ends.push((self.text.len(), source.passed()));
        }
        let result = self.stream.put(self.text.as_bytes(), bytes, || ends);
        self.text.clear();
        result
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        self.stream.take_unwritten()
    }

    fn stream(&mut self) -> Option<&mut Stream> {
        Some(&mut self.stream)
    }
}
