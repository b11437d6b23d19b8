//! A capture into Wireshark's pipe, whose filter can be changed in the toolbar while it runs.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use trawl_filter::select::{Question, Selector};
use trawl_filter::{LinkType, Options};
use trawl_packet::pcapng::block::{ByteOrder, blocks};
use trawl_packet::verdict;
use trawl_pipeline::{Blocks, Outcome, Pressure, Writer};
use trawl_sys::{Error, Result, errno};
use trawl_tap::Choice;
use trawl_tap::filter::Filter;
use trawl_tap::options::{At, Direction, Options as CaptureOptions, Programs, Sample};
use trawl_tap::plan::CapturePlan;
use trawl_tap::sources::Sources;

use super::{Args, FILTER_CONTROL, TapName};
use crate::capture::args::{self, AtName, DirectionName, Taps};
use crate::capture::recording;
use crate::{live, units};

/// Commands of the toolbar's protocol, and what its messages begin with.
const SYNC: u8 = b'T';
const SET: u8 = 1;
const STATUS_BAR: u8 = 6;
/// Number, command, and the length before them in three bytes.
const HEADER_LEN: usize = 6;
/// Longer messages are damage.
const MOST: usize = 65_536;

pub(super) fn run(interface: &str, args: &Args) -> Result<ExitCode> {
    let path = args
        .fifo
        .as_deref()
        .ok_or_else(|| Error::usage("cannot capture", "--fifo is missing"))?;
    let plan = plan(interface, args)?;
    let fail = |path: &Path, e| Error::os(format!("cannot open {}", path.display()), e);
    let fifo = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(|e| fail(path, e))?;
    let toolbar = args
        .extcap_control_out
        .as_ref()
        .map(|path| {
            OpenOptions::new()
                .write(true)
                .open(path)
                .map_err(|e| fail(path, e))
        })
        .transpose()?;
    let selector = Arc::default();
    if let Some(path) = &args.extcap_control_in {
        let source = File::open(path).map_err(|e| fail(path, e))?;
        let toolbar = Toolbar {
            source,
            answers: toolbar,
            selector: Arc::clone(&selector),
        };
        std::thread::spawn(move || toolbar.obey());
    }
    let mut sink = Fifo {
        fifo,
        selector,
        kept: Vec::new(),
    };
    match live::run_into(&plan, &mut sink) {
        // Wireshark has stopped the capture.
        Err(error) if error.errno() == Some(errno::EPIPE) => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

/// The plan that Wireshark's dialog asks for. Fields that the chosen tap does not have are ignored.
fn plan(interface: &str, asked: &Args) -> Result<CapturePlan> {
    let usual = args::usual(&Taps {
        tap: match asked.tap {
            TapName::Auto => Choice::Auto,
            TapName::Xdp => Choice::Xdp,
            TapName::Hook => Choice::Hook,
            TapName::Tc => Choice::Tc,
            TapName::Packet => Choice::Packet,
        },
        with_tc: false,
        with_drops: false,
    });
    let has_ends = matches!(asked.tap, TapName::Xdp | TapName::Hook);
    let has_both = matches!(asked.tap, TapName::Tc | TapName::Packet);
    let at = asked.at.filter(|at| has_ends || *at != AtName::Exit);
    let direction = asked
        .direction
        .filter(|way| has_both || *way != DirectionName::In);
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let verdicts = given(&asked.verdict)
        .map(|list| verdict::Set::parse(verdict::Kind::Xdp, &list))
        .transpose()
        .map_err(|e| Error::usage("cannot understand --verdict", e))?;
    let sample = match asked.sample.as_str() {
        "" => None,
        number => Some(units::one_in(&format!("1/{number}")).map_err(|e| wrong("--sample", e))?),
    };
    let rate_limit = match asked.limit_rate.as_str() {
        "" => None,
        rate => Some(units::rate(rate).map_err(|e| wrong("--limit-rate", e))?),
    };
    let filter = given(&asked.extcap_capture_filter).map(|filter| match asked.inner == "true" {
        true => Filter::Inner(filter),
        false => Filter::Expression(filter),
    });
    let options = CaptureOptions {
        at: at.map(At::from),
        direction: direction.map(Direction::from),
        verdicts,
        programs: given(&asked.program).map(|text| Programs::parse(&text)),
        snaplen: match asked.snaplen {
            0 => usual.snaplen,
            bytes => recording::snaplen(bytes.into())?,
        },
        sample: sample.map(Sample::Random),
        rate_limit,
        filter,
        ..usual
    };
    let sources = Sources {
        names: vec![interface.to_owned()],
        ..Sources::default()
    };
    Ok(CapturePlan::new(sources, options))
}

fn wrong(option: &str, why: String) -> Error {
    Error::usage(format!("cannot understand {option}"), why)
}

/// The next filter that the toolbar sends; nothing when it is closed.
fn next_filter(source: &mut impl Read) -> Option<String> {
    loop {
        let mut header = [0; HEADER_LEN];
        source.read_exact(&mut header).ok()?;
        let [sync, a, b, c, control, command] = header;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if sync != SYNC || !(2..=MOST).contains(&len) {
            return None;
        }
        let mut payload = vec![0; len - 2];
        source.read_exact(&mut payload).ok()?;
        if control == FILTER_CONTROL && command == SET {
            return Some(String::from_utf8_lossy(&payload).trim().to_owned());
        }
    }
}

/// The toolbar's pipes, and the filter that it has set.
struct Toolbar {
    source: File,
    answers: Option<File>,
    selector: Arc<Mutex<Option<Selector>>>,
}

impl Toolbar {
    /// Takes each filter that can be used; Wireshark's status bar tells why not, also while no packets come.
    fn obey(mut self) {
        while let Some(filter) = next_filter(&mut self.source) {
            let said = match self.renew(&filter) {
                Ok(()) if filter.is_empty() => "trawl: no filter".to_owned(),
                Ok(()) => format!("trawl: filter {filter}"),
                Err(why) => format!("trawl: {why}"),
            };
            self.tell(&said);
        }
    }

    fn renew(&self, filter: &str) -> std::result::Result<(), String> {
        let mut renewed = None;
        if !filter.is_empty() {
            let options = Options {
                link: LinkType::ETHERNET,
                snaplen: 262_144,
                netmask: None,
                optimise: true,
                file: None,
            };
            let question = Question::Expression(filter.to_owned());
            let mut selector = Selector::new(question, options);
            selector
                .prepare((1, ByteOrder::Little))
                .map_err(|error| error.to_string())?;
            renewed = Some(selector);
        }
        *self.selector.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }

    fn tell(&mut self, text: &str) {
        let Some(answers) = &mut self.answers else {
            return;
        };
        let len = (text.len() + 2) as u32;
        let mut message = len.to_be_bytes();
        message[0] = SYNC;
        let parts = [&message[..], &[FILTER_CONTROL, STATUS_BAR], text.as_bytes()].concat();
        // A closed toolbar is no reason to end.
        let _ = answers.write_all(&parts);
    }
}

/// Wireshark's end of the pipe, with the toolbar's filter in front of it.
struct Fifo {
    fifo: File,
    selector: Arc<Mutex<Option<Selector>>>,
    kept: Vec<u8>,
}

impl Writer for Fifo {
    fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
        let bytes = written.bytes();
        let fail = |e| Error::os("cannot write to Wireshark", e);
        let mut chosen = self.selector.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(selector) = chosen.as_mut() else {
            return self
                .fifo
                .write_all(bytes)
                .map_err(fail)
                .map(|()| Pressure::Idle);
        };
        self.kept.clear();
        for block in blocks(bytes) {
            let wanted = block.enhanced_packet().is_none_or(|packet| {
                let kind = (1, ByteOrder::Little);
                selector
                    .matches(kind, packet.captured, packet.original_len)
                    .unwrap_or(true)
            });
            if wanted {
                self.kept.extend_from_slice(block.bytes);
            }
        }
        self.fifo.write_all(&self.kept).map_err(fail)?;
        Ok(Pressure::Idle)
    }

    fn flush(&mut self) -> Result<Pressure> {
        Ok(Pressure::Idle)
    }

    fn finish(&mut self) -> Outcome {
        Outcome::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_toolbars_messages() {
        let message = |control: u8, command: u8, text: &str| {
            let mut len = (text.len() as u32 + 2).to_be_bytes();
            len[0] = SYNC;
            [&len[..], &[control, command], text.as_bytes()].concat()
        };
        let bytes = [message(3, SET, "x"), message(FILTER_CONTROL, SET, " udp ")].concat();
        let mut source = &bytes[..];
        assert_eq!(next_filter(&mut source), Some("udp".to_owned()));
        assert_eq!(next_filter(&mut source), None);
        assert_eq!(next_filter(&mut &b"T\xff\xff\xff\x00\x01"[..]), None);
        assert_eq!(next_filter(&mut &b"X\x00\x00\x02\x00\x01"[..]), None);
    }
}
