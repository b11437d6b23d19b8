//! Output of packets that were read: standard output as text, a file, or both.

use std::collections::HashMap;

use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::TSRESOL_DEFAULT;
use trawl_sink::{Rewritten, Written};
use trawl_source::Input;
use trawl_sys::Result;
use trawl_view::Show;
use trawl_view::json::{JsonArray, JsonLines};
use trawl_view::print::{Precision, Printer};
use trawl_view::record::PacketSource;

use super::args::{Form, Request};
use crate::json;
use crate::terminal;

/// Text is buffered up to this size.
const GATHER: usize = 256 << 10;

pub(super) struct Output {
    shown: Option<Shown>,
    rewritten: Option<Rewritten>,
    flush_each: bool,
}

impl Output {
    pub fn new(request: &Request, inputs: &[Input]) -> Result<Self> {
        let rewritten = match request.write {
            Some(_) => Some(Rewritten::open(request.rewrite_plan()?, inputs, |event| json::event(event))?),
            None => None,
        };
        Ok(Self {
            shown: request.form.map(|form| Shown::new(form, request)),
            rewritten,
            flush_each: request.flush_each,
        })
    }

    pub fn packet(&mut self, index: usize, input: &Input) -> Result<Written> {
        if let Some(rewritten) = &mut self.rewritten
            && rewritten.packet(index, input)? == Written::NobodyReads
        {
            return Ok(Written::NobodyReads);
        }
        if let Some(shown) = &mut self.shown {
            shown.packet(index, input);
        }
        let full = self.shown.as_ref().is_some_and(|shown| shown.text.len() >= GATHER)
            || self.rewritten.as_ref().is_some_and(Rewritten::is_due);
        if full || self.flush_each { self.flush() } else { Ok(Written::Taken) }
    }

    pub fn block(&mut self, index: usize, input: &Input, kind: u32) -> Result<Written> {
        if let Some(rewritten) = &mut self.rewritten {
            rewritten.block(index, input, kind);
            if rewritten.is_due() {
                return self.flush();
            }
        }
        Ok(Written::Taken)
    }

    /// Writes the buffered data.
    pub fn flush(&mut self) -> Result<Written> {
        let mut written = Written::Taken;
        if let Some(rewritten) = &mut self.rewritten {
            written = rewritten.flush()?;
        }
        if let Some(shown) = &mut self.shown
            && shown.flush()? == Written::NobodyReads
        {
            written = Written::NobodyReads;
        }
        Ok(written)
    }

    pub fn finish(mut self, input: Option<&Input>) -> Result<()> {
        if let Some(shown) = &mut self.shown {
            shown.end();
        }
        if let Some(shown) = &mut self.shown {
            shown.flush()?;
        }
        let notices = self.rewritten.map(|rewritten| rewritten.finish(input)).transpose()?;
        notices.iter().flatten().for_each(json::show_notice);
        Ok(())
    }
}

/// Packets as text on standard output.
struct Shown {
    form: Shape,
    text: String,
    precision_of_file: bool,
    /// Names of each file's interfaces.
    names: HashMap<usize, Names>,
}

/// State that records if the interfaces of a file have different names.
#[derive(Default)]
struct Names {
    /// Number of interfaces seen: each of many sections may describe some more.
    known: usize,
    differ: bool,
}

impl Names {
    fn look_at(&mut self, interfaces: &[Interface]) {
        // The next file of a ring.
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

impl Shown {
    fn new(form: Form, request: &Request) -> Self {
        Self {
            form: match form {
                Form::Lines => Shape::Lines(Box::new(Printer::new(request.print))),
                Form::Count => Shape::Count(0),
                Form::JsonLines => Shape::JsonLines,
                Form::Json => Shape::Json(JsonArray::default()),
            },
            text: String::new(),
            precision_of_file: request.precision_of_file,
            names: HashMap::new(),
        }
    }

    fn packet(&mut self, index: usize, input: &Input) {
        if let Shape::Count(count) = &mut self.form {
            *count += 1;
            return;
        }
        let Some(mut packet) = PacketSource::current(&input.reader) else {
            return;
        };
        match &mut self.form {
            Shape::Count(_) => {}
            Shape::Lines(printer) => {
                let interfaces = input.reader.interfaces();
                let names = self.names.entry(index).or_default();
                names.look_at(interfaces);
                if packet.hook.is_none() && !names.differ {
                    packet.interface = None;
                }
                if self.precision_of_file {
                    let index = input.reader.time_and_interface().map(|(_, index)| index);
                    let interface = index.and_then(|index| interfaces.get(index));
                    let is_coarse = interface.is_some_and(|i| i.tsresol <= TSRESOL_DEFAULT);
                    printer.set_precision(if is_coarse { Precision::Micro } else { Precision::Nano });
                }
                printer.line(&mut self.text, &packet);
            }
            Shape::JsonLines => JsonLines.show(&mut self.text, &packet),
            Shape::Json(array) => array.show(&mut self.text, &packet),
        }
    }

    fn end(&mut self) {
        match &mut self.form {
            Shape::Json(array) => array.end(&mut self.text),
            Shape::Count(1) => self.text.push_str("1 packet\n"),
            Shape::Count(count) => self.text.push_str(&format!("{count} packets\n")),
            Shape::Lines(_) | Shape::JsonLines => {}
        }
    }

    fn flush(&mut self) -> Result<Written> {
        let taken = terminal::write_to_reader(&self.text)?;
        self.text.clear();
        Ok(if taken { Written::Taken } else { Written::NobodyReads })
    }
}
