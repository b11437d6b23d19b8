//! The writer that shows packets on standard output, in any form.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use trawl_capture::session::Session;
use trawl_pipeline::{Blocks, Outcome, Pressure, Stream, Unit, Writer};
use trawl_sys::{Error, Result};
use trawl_view::Show;
use trawl_view::record::{BlockOrigin, RingPackets};

/// Returns the packets of a capture, by the interface blocks that it begins with.
pub(crate) fn packets(session: &Session) -> RingPackets {
    let origins = session
        .interfaces()
        .iter()
        .zip(session.hook_names())
        .map(|(interface, hook)| BlockOrigin::new(interface, hook))
        .collect();
    RingPackets::new(origins)
}

pub(super) struct Shown<S> {
    form: S,
    packets: RingPackets,
    text: String,
    stream: Stream,
}

impl<S: Show> Shown<S> {
    pub(super) fn new(form: S, packets: RingPackets) -> Result<Self> {
        let name = "standard output";
        let output = io::stdout().as_fd().try_clone_to_owned();
        let output = output.map_err(|e| Error::os(format!("cannot write to {name}"), e))?;
        Ok(Self {
            form,
            packets,
            text: String::new(),
            stream: Stream::new(File::from(output), name.to_owned()),
        })
    }
}

impl<S: Show> Writer for Shown<S> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let mut units: Vec<Unit> = Vec::new();
        self.packets.each(blocks.bytes(), |packet, interface| {
            self.form.show(&mut self.text, packet);
            units.push(Unit {
                end: self.text.len(),
                interface: Some(interface),
            });
        });
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
