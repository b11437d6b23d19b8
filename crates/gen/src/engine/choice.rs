//! The choice of an engine: the requested one, or the fastest that works in a trial.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use trawl_attach::Site;
use trawl_io::send::passing_program;
use trawl_sys::ethtool::Ethtool;
use trawl_sys::netlink::{Netlink, Peer, XdpMode, veth_peer};
use trawl_sys::{Error, Result};

use super::{Engine, Live, Packet, Sent, Xsk};
use crate::source::{Next, Source};
use trawl_sys::words::word;

/// Time that a counter of the device may need to show the first frame.
const COUNTER_PATIENCE: Duration = Duration::from_millis(200);
/// Time that an engine has for its first frame.
const TRIAL_PATIENCE: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(2);

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
pub struct Notes(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    all: Vec<String>,
    taken: usize,
}

impl Notes {
    pub(super) fn say(&self, text: String) {
        if let Ok(mut said) = self.0.lock()
            && !said.all.contains(&text)
        {
            said.all.push(text);
        }
    }

    /// Returns the notes since the last call.
    pub fn take(&self) -> Vec<String> {
        let Ok(mut said) = self.0.lock() else {
            return Vec::new();
        };
        let new = said.all[said.taken..].to_vec();
        said.taken = said.all.len();
        new
    }

    pub fn all(&self) -> Vec<String> {
        self.0
            .lock()
            .map(|said| said.all.clone())
            .unwrap_or_default()
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
}

/// Opens an engine for an interface of the calling thread's namespace.
pub fn open(
    interface: &str,
    source: &mut dyn Source,
    options: &EngineOptions,
) -> Result<Box<dyn Engine>> {
    match options.choice {
        EngineChoice::Auto => Ok(Box::new(Auto {
            interface: interface.to_owned(),
            options: options.clone(),
            left: ORDER.to_vec(),
            held: None,
            chosen: None,
            _peer_programs: Vec::new(),
        })),
        one => open_one(one, interface, source, options),
    }
}

fn open_one(
    one: EngineChoice,
    interface: &str,
    source: &mut dyn Source,
    options: &EngineOptions,
) -> Result<Box<dyn Engine>> {
    Ok(match one {
        EngineChoice::Live => Box::new(Live::open(interface, source, options.batch)?),
        EngineChoice::Xsk => {
            let xsk = Xsk::open(interface, options.queue, source.longest())?;
            options.notes.say(xsk.copy_mode().to_owned());
            Box::new(xsk)
        }
        EngineChoice::Auto | EngineChoice::Packet => {
            Box::new(Packet::open(interface, source.longest())?)
        }
    })
}

/// Chooses the engine with the first frame.
#[derive(Debug)]
struct Auto {
    interface: String,
    options: EngineOptions,
    left: Vec<EngineChoice>,
    /// Frame of a failed trial.
    held: Option<Vec<u8>>,
    chosen: Option<Box<dyn Engine>>,
    /// Temporary programs, attached for the duration of the run.
    _peer_programs: Vec<PeerProgram>,
}

/// A source whose first frame survives a failed trial.
struct Trial<'a> {
    held: &'a mut Option<Vec<u8>>,
    source: &'a mut dyn Source,
    given: bool,
}

impl Source for Trial<'_> {
    fn next(&mut self, now: u64, room: &mut [u8]) -> Result<Next> {
        if self.given {
            return Ok(Next::Later(now));
        }
        if self.held.is_none() {
            match self.source.next(now, room)? {
                Next::Frame(length) => *self.held = Some(room[..length].to_vec()),
                other => return Ok(other),
            }
        }
        let Some(frame) = self.held.as_ref() else {
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

impl Auto {
    fn refuse(&self, one: EngineChoice, why: &dyn std::fmt::Display) {
        self.options
            .notes
            .say(format!("not the {} engine: {why}", one.name()));
    }

    /// Tries the remaining engines until one sends a frame.
    fn choose(&mut self, source: &mut dyn Source, now: u64) -> Result<Sent> {
        let mut last: Option<Error> = None;
        while let Some(one) = self.left.first().copied() {
            if one == EngineChoice::Live && source.pattern().is_none() {
                self.refuse(
                    one,
                    &"these frames do not follow a pattern that the kernel could make",
                );
                self.left.remove(0);
                continue;
            }
            if one == EngineChoice::Live {
                match make_peer_accept(&self.interface) {
                    Ok(Some(program)) => {
                        self.options.notes.say(program.notice().to_owned());
                        self._peer_programs.push(program);
                    }
                    Ok(None) => {}
                    Err(why) => {
                        self.refuse(one, &why);
                        self.left.remove(0);
                        continue;
                    }
                }
            }
            let tried = match open_one(one, &self.interface, source, &self.options) {
                Ok(engine) => self.try_one(engine, source, now),
                Err(error) => Err(error),
            };
            match tried {
                Ok(Some(sent)) => return Ok(sent),
                Ok(None) => self.refuse(one, &"the device did not accept the first frame"),
                Err(error) => {
                    self.refuse(one, &error);
                    last = Some(error);
                }
            }
            self.left.remove(0);
        }
        Err(last.unwrap_or_else(|| {
            Error::failed(
                format!("cannot send out of {}", self.interface),
                "the device accepts no frame from any engine: check that it and its other end are up",
            )
        }))
    }

    /// Sends one frame; `None` if it was not accepted. An engine that accepts it is the chosen one.
    fn try_one(
        &mut self,
        mut engine: Box<dyn Engine>,
        source: &mut dyn Source,
        now: u64,
    ) -> Result<Option<Sent>> {
        let before = sent_packets(&self.interface)?;
        let number = source.pattern().map(|pattern| pattern.number());
        let is_live = engine.name() == EngineChoice::Live.name();
        let start = Instant::now();
        let sent = loop {
            let sent = if is_live {
                engine.send(source, now, 1)?
            } else {
                let mut trial = Trial {
                    held: &mut self.held,
                    source,
                    given: engine.has_frames(),
                };
                engine.send(&mut trial, now, 1)?
            };
            // A source without a frame proves nothing about the engine.
            let nothing_given = !is_live && self.held.is_none();
            if sent.frames > 0 || nothing_given {
                break sent;
            }
            if let (Some(number), Some(pattern)) = (number, source.pattern())
                && is_live
            {
                pattern.go_to(number);
            }
            if start.elapsed() > TRIAL_PATIENCE {
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        };
        if sent.frames > 0 {
            self.held = None;
            if !counter_moved(&self.interface, before)? {
                self.options.notes.say(format!(
                    "{} does not count the frames of the {} engine",
                    self.interface,
                    engine.name()
                ));
            }
            self.chosen = Some(engine);
            return Ok(Some(Sent {
                later: None,
                ..sent
            }));
        }
        Ok(Some(sent))
    }
}

fn sent_packets(interface: &str) -> Result<u64> {
    Ok(Netlink::current()?.link(interface)?.statistics.tx_packets)
}

fn counter_moved(interface: &str, before: u64) -> Result<bool> {
    let start = Instant::now();
    while sent_packets(interface)? == before {
        if start.elapsed() > COUNTER_PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(true)
}

impl Engine for Auto {
    fn name(&self) -> &'static str {
        self.chosen.as_ref().map_or("auto", |engine| engine.name())
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
        self.chosen
            .as_ref()
            .map_or("check that it and its other end are up", |engine| {
                engine.suspicion()
            })
    }

    fn has_frames(&self) -> bool {
        self.chosen
            .as_ref()
            .is_some_and(|engine| engine.has_frames())
    }

    fn finish(&mut self) -> Result<Sent> {
        match &mut self.chosen {
            Some(engine) => engine.finish(),
            None => Ok(Sent::default()),
        }
    }
}

// A veth accepts XDP frames only if its other end has an XDP program or GRO. If it has neither, a program that passes every
// packet is attached there for the duration of the run.

const GRO: &str = "rx-gro";

/// A temporary program, detached on drop or when the process ends.
#[derive(Debug)]
pub(super) struct PeerProgram {
    _link: OwnedFd,
    notice: String,
}

impl PeerProgram {
    pub fn notice(&self) -> &str {
        &self.notice
    }
}

/// Makes the other end of a veth accept XDP frames, if it does not; an error is the reason why it cannot.
pub(super) fn make_peer_accept(interface: &str) -> Result<Option<PeerProgram>> {
    let link = Netlink::current()?.link(interface)?;
    if link.kind.as_deref() != Some("veth") {
        return Ok(None);
    }
    // An end that cannot be inspected may work: the trial decides.
    let Some(peer) = veth_peer(None, &link)? else {
        return Ok(None);
    };
    let label = peer.label();
    if !peer.link.is_up() {
        return Err(
            Error::failed(format!("its other end, {label}"), "it is down").fix(format!(
                "{}ip link set {} up",
                peer.exec_prefix(),
                word(&peer.link.name)
            )),
        );
    }
    let native = peer.link.xdp.iter().any(|one| one.mode == XdpMode::Native);
    if native || has_gro(&peer) {
        return Ok(None);
    }
    let cannot = |why: &str| {
        Error::failed(
            format!("its other end, {label}, has neither native XDP nor GRO"),
            format!("a program that passes every packet could not be attached: {why}"),
        )
        .fix(format!(
            "{}ethtool -K {} gro on",
            peer.exec_prefix(),
            word(&peer.link.name)
        ))
    };
    let attach = || -> Result<OwnedFd> {
        let program = passing_program()?;
        let site = Site::named(peer.namespace.clone(), &peer.link.name)?;
        trawl_attach::hold(&site, program.as_fd(), Some(XdpMode::Native))
            .map(|(link, _)| link)
            .map_err(|refused| cannot(refused.explain(&site, "trawl_pass").why()))
    };
    let link = attach()?;
    Ok(Some(PeerProgram {
        _link: link,
        notice: format!(
            "{label} accepts XDP frames during this run: an XDP program that passes every packet is attached"
        ),
    }))
}

fn has_gro(peer: &Peer) -> bool {
    let ethtool = Ethtool::open(peer.namespace.as_ref(), &peer.link.name);
    ethtool
        .and_then(|ethtool| ethtool.feature(GRO))
        .ok()
        .flatten()
        == Some(true)
}
