//! The writer that shows packets on standard output, in any form.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use trawl_capture::session::Session;
use trawl_pipeline::{Blocks, Outcome, Pressure, Stream, Unit, Writer};
use trawl_sys::{Error, Result};
use trawl_view::Show;
use trawl_view::record::{BlockOrigin, RingBlocks, Source, add_places};

/// Returns the interface and the hook of each interface block at the start of a capture.
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

impl<S: Show> Writer for Shown<S> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let bytes = blocks.bytes();
        let mut units: Vec<Unit> = Vec::new();
        add_places(&mut self.places, &mut self.described, bytes);
        let mut source = RingBlocks::new(bytes, &self.places);
        while let Ok(true) = source.advance() {
            if let Some(packet) = source.current() {
                self.form.show(&mut self.text, &packet);
            }
            units.push(Unit {
                end: self.text.len(),
                interface: source.interface(),
            });
        }
        let put = self.stream.put(self.text.as_bytes(), || units);
        self.text.clear();
        put
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.stream.push()
    }

    fn finish(&mut self) -> Outcome {
        self.stream.finish()
    }
}
