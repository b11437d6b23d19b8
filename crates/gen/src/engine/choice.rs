//! The choice of an engine: the requested one, or the fastest that works in a trial.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use trawl_attach::Site;
use trawl_attach::passing::XdpSending;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::{Error, Result};

use super::device::Reading;
use super::{Device, Engine, Live, Packet, Sent, Xsk};
use crate::source::{Next, Source};

/// Time that an engine has for its first frame.
const TRIAL_PATIENCE: Duration = Duration::from_millis(100);
const CHECK_EVERY: Duration = Duration::from_millis(2);
const NOT_ACCEPTED: &str = "the device did not accept the first frame";

/// The requested engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The fastest that works.
    #[default]
    Auto,
    Live,
    Xsk,
    Packet,
}

/// The engines, fastest first.
const ORDER: [EngineChoice; 3] = [EngineChoice::Live, EngineChoice::Xsk, EngineChoice::Packet];

impl EngineChoice {
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Live => "live",
            Self::Xsk => "xsk",
            Self::Packet => "packet",
        }
    }
}

/// Notes on the choice, each reported once for all threads.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<NoteList>>);

#[derive(Debug, Default)]
struct NoteList {
    all: Vec<String>,
    returned: usize,
}

impl Notes {
    pub(super) fn add(&self, text: String) {
        if let Ok(mut list) = self.0.lock()
            && !list.all.contains(&text)
        {
            list.all.push(text);
        }
    }

    /// Returns the notes since the last call.
    pub fn take(&self) -> Vec<String> {
        let Ok(mut list) = self.0.lock() else {
            return Vec::new();
        };
        let new = list.all[list.returned..].to_vec();
        list.returned = list.all.len();
        new
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().map(|list| list.all.clone()).unwrap_or_default()
    }
}

/// Parameters for opening an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub choice: EngineChoice,
    /// Number of frames that the live engine makes before it hands them over.
    pub batch: Option<u32>,
    /// Queue of an AF_XDP socket.
    pub queue: u32,
    pub notes: Notes,
    /// The device of the run, the same for all its threads.
    pub device: Device,
}

/// Returns the conditions for XDP frames of an interface in the calling thread's namespace.
fn sending(interface: &str) -> Result<XdpSending> {
    XdpSending::of(&Site::named(None, interface)?)
}

/// Opens an engine for an interface of the calling thread's namespace.
pub fn open(interface: &str, source: &mut dyn Source, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let mut chooser = Chooser {
        interface: interface.to_owned(),
        options: options.clone(),
        left: match options.choice {
            EngineChoice::Auto => ORDER.to_vec(),
            one => vec![one],
        },
        first_frame: None,
        opened: None,
        chosen: None,
    };
    // A requested engine that cannot be opened is an error at once.
    if options.choice != EngineChoice::Auto {
        chooser.opened = Some(chooser.open(options.choice, source)?);
    }
    Ok(Box::new(chooser))
}

/// Sends the first frame as a trial: of the requested engine, or of one after the other until the device accepts it.
#[derive(Debug)]
struct Chooser {
    interface: String,
    options: EngineOptions,
    left: Vec<EngineChoice>,
    /// Frame of a failed trial.
    first_frame: Option<Vec<u8>>,
    /// Engine whose trial is not over.
    opened: Option<Box<dyn Engine>>,
    chosen: Option<Box<dyn Engine>>,
}

/// A source whose first frame survives a failed trial.
struct Trial<'a> {
    first_frame: &'a mut Option<Vec<u8>>,
    source: &'a mut dyn Source,
    given: bool,
}

impl Source for Trial<'_> {
    fn next(&mut self, now: u64, room: &mut [u8]) -> Result<Next> {
        if self.given {
            return Ok(Next::Later(now));
        }
        if self.first_frame.is_none() {
            match self.source.next(now, room)? {
                Next::Frame(length) => *self.first_frame = Some(room[..length].to_vec()),
                other => return Ok(other),
            }
        }
        let Some(frame) = self.first_frame.as_ref() else {
            return Ok(Next::End);
        };
        room[..frame.len()].copy_from_slice(frame);
        self.given = true;
        Ok(Next::Frame(frame.len()))
    }

    fn longest(&self) -> usize {
        self.source.longest()
    }
}

impl Chooser {
    fn refuse(&self, one: EngineChoice, why: &dyn std::fmt::Display) {
        self.options.notes.add(format!("not the {} engine: {why}", one.name()));
    }

    /// Opens an engine, and makes the device ready for it.
    fn open(&self, one: EngineChoice, source: &mut dyn Source) -> Result<Box<dyn Engine>> {
        let (interface, options) = (&self.interface, &self.options);
        let (device, notes) = (&options.device, &options.notes);
        Ok(match one {
            EngineChoice::Live => {
                device.make_peer_accept(interface, notes)?;
                match sending(interface)? {
                    XdpSending::Never => {
                        let about = Interface::find(None, interface)?;
                        return Err(Error::failed(
                            format!("cannot send live XDP frames out of {interface}"),
                            format!("its driver ({}) sends none", about.driver_name()),
                        )
                        .fix("use --engine xsk or --engine packet"));
                    }
                    XdpSending::WithProgram => device.make_driver_accept(interface, notes)?,
                    _ => {}
                }
                Box::new(Live::open(interface, source, options.batch)?)
            }
            EngineChoice::Xsk => {
                let open = || Xsk::open(interface, options.queue, source.longest());
                let mut xsk = open()?;
                if !xsk.is_served() {
                    drop(xsk);
                    device.make_driver_accept(interface, notes)?;
                    xsk = open()?;
                }
                notes.add(xsk.copy_mode().to_owned());
                Box::new(xsk)
            }
            EngineChoice::Auto | EngineChoice::Packet => Box::new(Packet::open(interface, source.longest())?),
        })
    }

    /// Tries the remaining engines until one sends a frame.
    fn choose(&mut self, source: &mut dyn Source, now: u64) -> Result<Sent> {
        let only = self.options.choice != EngineChoice::Auto;
        let mut last: Option<Error> = None;
        while let Some(one) = self.left.first().copied() {
            if one == EngineChoice::Live && source.pattern().is_none() && !only {
                self.refuse(one, &"these frames do not follow a pattern that the kernel could make");
                self.left.remove(0);
                continue;
            }
            let opened = match self.opened.take() {
                Some(engine) => Ok(engine),
                None => self.open(one, source),
            };
            let mut tried = opened.and_then(|engine| self.try_one(one, engine, source, now));
            if matches!(tried, Ok(None)) && self.may_accept_with_program(one)? {
                let (device, notes) = (&self.options.device, &self.options.notes);
                tried = device
                    .make_driver_accept(&self.interface, notes)
                    .and_then(|()| self.open(one, source))
                    .and_then(|engine| self.try_one(one, engine, source, now));
            }
            match tried {
                Ok(Some(sent)) => return Ok(sent),
                Ok(None) => self.refuse(one, &NOT_ACCEPTED),
                Err(error) if only => return Err(error),
                Err(error) => {
                    self.refuse(one, &error);
                    last = Some(error);
                }
            }
            self.options.device.remove_unused_programs();
            self.left.remove(0);
        }
        Err(last.unwrap_or_else(|| {
            let why = if only { NOT_ACCEPTED } else { "the device accepts no frame from any engine" };
            Error::failed(
                format!("cannot send out of {}", self.interface),
                format!("{why}: check that it and its other end are up"),
            )
        }))
    }

    /// Sends one frame; `None` if it was not accepted. An engine that accepts it is the chosen one.
    fn try_one(
        &mut self,
        one: EngineChoice,
        mut engine: Box<dyn Engine>,
        source: &mut dyn Source,
        now: u64,
    ) -> Result<Option<Sent>> {
        let before = Reading::now(&self.interface)?;
        let is_live = one == EngineChoice::Live;
        let number = source.pattern().map(|pattern| pattern.number());
        let rewind = |source: &mut dyn Source| {
            if let (true, Some(number), Some(pattern)) = (is_live, number, source.pattern()) {
                pattern.go_to(number);
            }
        };
        let start = Instant::now();
        loop {
            let sent = if is_live {
                engine.send(source, now, 1)?
            } else {
                let mut trial = Trial { first_frame: &mut self.first_frame, source, given: engine.has_frames() };
                engine.send(&mut trial, now, 1)?
            };
            if sent.frames > 0 {
                let counted = self.options.device.calibrate(&self.interface, &before)?;
                // Without any count, the kernel would not report that the driver accepts no frame.
                if !counted && !engine.counts_refused() && sending(&self.interface)? != XdpSending::Always {
                    rewind(source);
                    return Ok(None);
                }
                self.options.device.keep_programs();
                self.first_frame = None;
                self.chosen = Some(engine);
                return Ok(Some(Sent { later: None, ..sent }));
            }
            // A source without a frame proves nothing about the engine.
            let nothing_given = if is_live { sent.later.is_some() || sent.ended } else { self.first_frame.is_none() };
            if nothing_given {
                self.opened = Some(engine);
                return Ok(Some(sent));
            }
            rewind(source);
            if start.elapsed() > TRIAL_PATIENCE {
                if self.options.choice == EngineChoice::Auto || is_live {
                    return Ok(None);
                }
                // The run goes on to offer the frame, for longer.
                self.chosen = Some(engine);
                return Ok(Some(sent));
            }
            std::thread::sleep(CHECK_EVERY);
        }
    }

    /// Returns true if a driver that refused a live frame may accept it with an XDP program.
    fn may_accept_with_program(&self, one: EngineChoice) -> Result<bool> {
        Ok(one == EngineChoice::Live && sending(&self.interface)? == XdpSending::Unknown)
    }
}

impl Engine for Chooser {
    fn name(&self) -> &'static str {
        let requested = self.options.choice.name();
        self.chosen.as_ref().map_or(requested, |engine| engine.name())
    }

    fn prepare(&mut self, source: &mut dyn Source) -> Result<Sent> {
        self.choose(source, 0)
    }

    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
        match &mut self.chosen {
            Some(engine) => engine.send(source, now, want),
            None => self.choose(source, now),
        }
    }

    fn most(&self) -> u64 {
        self.chosen.as_ref().map_or(1, |engine| engine.most())
    }

    fn suspicion(&self) -> &'static str {
        self.chosen.as_ref().map_or("check that it and its other end are up", |engine| engine.suspicion())
    }

    fn has_frames(&self) -> bool {
        self.chosen.as_ref().is_some_and(|engine| engine.has_frames())
    }

    fn finish(&mut self) -> Result<Sent> {
        match &mut self.chosen {
            Some(engine) => engine.finish(),
            None => Ok(Sent::default()),
        }
    }
}
