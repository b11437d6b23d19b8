//! The writer that shows packets on standard output, in any form.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use trawl_pipeline::{Blocks, Pressure, Stream, Unit, WriteOutcome, Writer};
use trawl_sys::{Error, Result};
use trawl_view::Show;
use trawl_view::record::RingPackets;

/// Shows packets on standard output.
pub struct Shown {
    form: Box<dyn Show + Send>,
    packets: RingPackets,
    text: String,
    /// Set once the text after the last packet is written.
    is_ended: bool,
    stream: Stream,
}

impl Shown {
    pub fn new(form: Box<dyn Show + Send>, packets: RingPackets) -> Result<Self> {
        let name = "standard output";
        let output = io::stdout().as_fd().try_clone_to_owned();
        let output = output.map_err(|e| Error::os(format!("cannot write to {name}"), e))?;
        Ok(Self {
            form,
            packets,
            text: String::new(),
            is_ended: false,
            stream: Stream::new(File::from(output), name.to_owned()),
        })
    }
}

impl Writer for Shown {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let mut units: Vec<Unit> = Vec::new();
        self.packets.each(blocks.bytes(), |packet, interface| {
            self.form.show(&mut self.text, packet);
            units.push(Unit { end: self.text.len(), interface: Some(interface) });
        });
        let put = self.stream.put(self.text.as_bytes(), || units);
        self.text.clear();
        put
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.stream.push()
    }

    fn finish(&mut self) -> WriteOutcome {
        if !std::mem::replace(&mut self.is_ended, true) {
            self.form.end(&mut self.text);
        }
        let rest = Unit { end: self.text.len(), interface: None };
        let put = self.stream.put(self.text.as_bytes(), || vec![rest]);
        self.text.clear();
        if let Err(error) = put {
            return WriteOutcome { error: Some(error), ..self.stream.finish() };
        }
        self.stream.finish()
    }
}
