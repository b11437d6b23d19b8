//! Packets that were read, as text on standard output.

use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::TSRESOL_DEFAULT;
use trawl_source::{Input, Notice};
use trawl_sys::Result;
use trawl_view::Show;
use trawl_view::json::{JsonArray, JsonLines};
use trawl_view::print::{Precision, Printer};
use trawl_view::record::{PacketSource, PacketView, RingPackets};
use trawl_view::rewrite::{Privacy, Rewriter};

use super::args::{Form, Request};
use crate::terminal;

/// Text is buffered up to this size.
const GATHER: usize = 256 << 10;

/// Packets as text on standard output.
pub(super) struct Shown {
    form: Shape,
    text: String,
    precision_of_file: bool,
    /// Names of each file's interfaces.
    names: Vec<Names>,
    private: Option<PrivatePackets>,
}

/// The answer so far to the question if the interfaces of a file have different names.
#[derive(Default)]
struct Names {
    /// Number of interfaces seen: each of many sections may describe some more.
    known: usize,
    differ: bool,
}

impl Names {
    fn add(&mut self, interfaces: &[Interface]) {
        // A smaller number means that this is the next file of a ring.
        if interfaces.len() < self.known {
            *self = Self::default();
        }
        let first = interfaces.first().map(|interface| &interface.name);
        let new = interfaces.get(self.known..).unwrap_or_default();
        self.differ |= new.iter().any(|one| Some(&one.name) != first);
        self.known = interfaces.len();
    }
}

enum Shape {
    Lines(Box<Printer>),
    /// Number of packets.
    Count(u64),
    JsonLines,
    /// An array; true once it has an element.
    Json(JsonArray),
}

impl Shape {
    fn show(&mut self, out: &mut String, packet: &PacketView<'_>) {
        match self {
            Self::Lines(printer) => printer.line(out, packet),
            Self::Count(_) => {}
            Self::JsonLines => JsonLines.show(out, packet),
            Self::Json(array) => array.show(out, packet),
        }
    }
}

/// Packets without the parts that are left out for privacy.
struct PrivatePackets {
    rewriter: Rewriter,
    bytes: Vec<u8>,
    packets: RingPackets,
}

impl PrivatePackets {
    fn new(privacy: Privacy) -> Self {
        Self {
            rewriter: Rewriter::new(false, String::new()).in_nanoseconds().with_privacy(privacy),
            bytes: Vec::new(),
            packets: RingPackets::default(),
        }
    }

    fn block(&mut self, index: usize, input: &Input, kind: u32) {
        self.bytes.clear();
        self.rewriter.block(&mut self.bytes, index, &input.reader, kind);
        self.packets.each(&self.bytes, |_, _| {});
    }

    fn each(&mut self, index: usize, input: &Input, mut show: impl FnMut(PacketView<'_>)) {
        self.bytes.clear();
        self.rewriter.packet(&mut self.bytes, index, &input.reader);
        self.packets.each(&self.bytes, |packet, _| show(*packet));
    }
}

impl Shown {
    pub fn new(form: Form, request: &Request, privacy: Option<Privacy>) -> Self {
        Self {
            form: match form {
                Form::Lines => Shape::Lines(Box::new(Printer::new(request.print))),
                Form::Count => Shape::Count(0),
                Form::JsonLines => Shape::JsonLines,
                Form::Json => Shape::Json(JsonArray::default()),
            },
            text: String::new(),
            precision_of_file: request.precision_of_file,
            names: Vec::new(),
            private: privacy.map(PrivatePackets::new),
        }
    }

    /// Returns the notice about the parts that were left out for privacy.
    pub fn privacy_notice(&self) -> Option<Notice> {
        self.private.as_ref().and_then(|private| private.rewriter.left_out_for_privacy()).and_then(Notice::of_privacy)
    }

    /// Adds a block that packets may refer to.
    pub fn block(&mut self, index: usize, input: &Input, kind: u32) {
        self.private.iter_mut().for_each(|private| private.block(index, input, kind));
    }

    /// Adds a packet. Returns false once the reader of the text is gone.
    pub fn packet(&mut self, index: usize, input: &Input) -> Result<bool> {
        self.append(index, input);
        if self.text.len() >= GATHER { self.flush() } else { Ok(true) }
    }

    fn append(&mut self, index: usize, input: &Input) {
        let Self { form, text, precision_of_file, names, private } = self;
        let mut is_named = true;
        if let Shape::Count(count) = form {
            *count += 1;
            return;
        }
        if let Shape::Lines(printer) = form {
            let interfaces = input.reader.interfaces();
            if names.len() <= index {
                names.resize_with(index + 1, Names::default);
            }
            let names = &mut names[index];
            names.add(interfaces);
            is_named = names.differ;
            if *precision_of_file {
                let index = input.reader.time_and_interface().map(|(_, index)| index);
                let interface = index.and_then(|index| interfaces.get(index));
                let is_coarse = interface.is_some_and(|i| i.tsresol <= TSRESOL_DEFAULT);
                printer.set_precision(if is_coarse { Precision::Micro } else { Precision::Nano });
            }
        }
        let show = |mut packet: PacketView<'_>| {
            if packet.hook.is_none() && !is_named {
                packet.interface = None;
            }
            form.show(text, &packet);
        };
        match private {
            Some(private) => private.each(index, input, show),
            None => PacketSource::current(&input.reader).into_iter().for_each(show),
        }
    }

    /// Completes the text after the last packet.
    pub fn end(&mut self) -> Result<bool> {
        match &mut self.form {
            Shape::Json(array) => array.end(&mut self.text),
            Shape::Count(1) => self.text.push_str("1 packet\n"),
            Shape::Count(count) => self.text.push_str(&format!("{count} packets\n")),
            Shape::Lines(_) | Shape::JsonLines => {}
        }
        self.flush()
    }

    /// Writes the text. Returns false once its reader is gone.
    pub fn flush(&mut self) -> Result<bool> {
        let written = terminal::write_to_reader(&self.text);
        self.text.clear();
        written
    }
}
