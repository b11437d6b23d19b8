//! Engines, which hand frames to the device.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use trawl_io::send::{LARGEST_RUN, LiveSender, PACKET_BATCH, PacketSender};
use trawl_io::xsk::{LONGEST, XskSender};
use trawl_sys::{Error, Result};

use crate::pattern::kernel::Tables;
use crate::source::{Next, Source};

pub use choice::{EngineChoice, EngineOptions, Notes, open};

mod choice;
mod device;

pub use device::{Device, Reading, Verified};

/// Result of one call of [`Engine::send`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames that the device accepted, and their bytes, without the checksum that ends an Ethernet frame.
    pub frames: u64,
    pub bytes: u64,
    /// Number of refusals for lack of room: this frame, or another one, is offered again.
    pub refused: u64,
    /// Time before which the source has no frame: see [`crate::Next::Later`].
    pub later: Option<u64>,
    /// True if the source is at its end and the device has accepted all frames.
    pub ended: bool,
}

/// A means of sending. It belongs to one thread, and to the namespace that it was opened in.
pub trait Engine: std::fmt::Debug {
    /// Returns the name on the command line.
    fn name(&self) -> &'static str;

    /// Does slow preparations, which may send frames of the source. Called once before the run.
    fn prepare(&mut self, _source: &mut dyn Source) -> Result<Sent> {
        Ok(Sent::default())
    }

    /// Offers up to `want` frames of the source to the device. May send fewer, for lack of room on the other side.
    /// Frames that the device has not accepted yet are offered first in the next call.
    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent>;

    /// Returns the maximum number of frames for one call.
    fn most(&self) -> u64;

    /// Returns the likely cause if the device accepts nothing at all.
    fn suspicion(&self) -> &'static str {
        "check that it and its other end are up"
    }

    /// Returns true if [`Sent`] leaves out the frames that the driver refuses.
    fn counts_refused(&self) -> bool {
        true
    }

    /// Returns true if frames from the source are waiting for the device.
    fn has_frames(&self) -> bool {
        false
    }

    /// Waits, for a bounded time, until the device has handled all frames, and returns the counts that were not
    /// returned before. Called after the last frame.
    fn finish(&mut self) -> Result<Sent> {
        Ok(Sent::default())
    }
}

// A packet socket: works everywhere.

/// Frames that wait for the device.
#[derive(Debug)]
pub struct Packet {
    socket: PacketSender,
    room: usize,
    bytes: Vec<u8>,
    /// Lengths of the waiting frames, from `first` on; each has `room` bytes.
    lengths: [usize; PACKET_BATCH],
    first: usize,
    end: usize,
}

impl Packet {
    /// Opens an engine for an interface of the calling thread's namespace, and frames up to that length.
    pub fn open(interface: &str, longest: usize) -> Result<Self> {
        Ok(Self::over(PacketSender::open(interface)?, longest))
    }

    /// Opens an engine that sends through the queueing discipline, like a plain loop of sendmmsg. For comparison.
    pub fn plain(interface: &str, longest: usize) -> Result<Self> {
        Ok(Self::over(PacketSender::queued(interface)?, longest))
    }

    fn over(socket: PacketSender, longest: usize) -> Self {
        Self {
            socket,
            room: longest,
            bytes: vec![0; longest * PACKET_BATCH],
            lengths: [0; PACKET_BATCH],
            first: 0,
            end: 0,
        }
    }

    /// Fetches frames from the source until this many wait; returns the source's answer if it gave none.
    fn fetch(&mut self, source: &mut dyn Source, now: u64, want: usize) -> Result<Option<Next>> {
        if self.first == self.end {
            (self.first, self.end) = (0, 0);
        }
        while self.end - self.first < want && self.end < PACKET_BATCH {
            let room = &mut self.bytes[self.end * self.room..][..self.room];
            match source.next(now, room)? {
                Next::Frame(length) => {
                    self.lengths[self.end] = length;
                    self.end += 1;
                }
                other => return Ok(Some(other)),
            }
        }
        Ok(None)
    }

    fn offer(&mut self, want: usize, sent: &mut Sent) -> Result<()> {
        let (bytes, room, lengths) = (&self.bytes, self.room, &self.lengths);
        let mut frames: [&[u8]; PACKET_BATCH] = [&[]; PACKET_BATCH];
        let waiting = self.first..self.end.min(self.first + want);
        for (frame, slot) in frames.iter_mut().zip(waiting.clone()) {
            *frame = &bytes[slot * room..][..lengths[slot]];
        }
        let accepted = self.socket.offer(&frames[..waiting.len()])?;
        sent.frames += accepted as u64;
        sent.bytes += lengths[self.first..self.first + accepted].iter().sum::<usize>() as u64;
        sent.refused += u64::from(accepted < waiting.len());
        self.first += accepted;
        Ok(())
    }
}

impl Engine for Packet {
    fn name(&self) -> &'static str {
        "packet"
    }

    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
        let want = usize::try_from(want).map_or(PACKET_BATCH, |want| want.min(PACKET_BATCH));
        let mut sent = Sent::default();
        let answer = self.fetch(source, now, want)?;
        if self.first < self.end {
            self.offer(want, &mut sent)?;
        }
        match answer {
            Some(Next::Later(time)) => sent.later = Some(time),
            Some(Next::End) => sent.ended = self.first == self.end,
            _ => {}
        }
        Ok(sent)
    }

    fn most(&self) -> u64 {
        PACKET_BATCH as u64
    }

    fn has_frames(&self) -> bool {
        self.first < self.end
    }
}

// Live XDP frames: the kernel makes the frames of a pattern, and no frame crosses from user space.

/// Duration of a run: long enough that its setup is negligible, short enough to be stopped.
const RUN: Duration = Duration::from_millis(20);
const FIRST_RUN: u64 = 4096;

/// Live XDP frames; [`trawl_io::send`] lists the requirements for the device.
#[derive(Debug)]
pub struct Live {
    sender: LiveSender,
    frames: Frames,
    /// Number of frames in a run of about the right duration.
    most: u64,
}

/// Input of the kernel.
#[derive(Debug)]
enum Frames {
    /// A first frame; the program makes the rest.
    Made(Vec<u8>),
    /// Frames that follow no pattern: each is a run of its own. The length is the one of a refused frame.
    Given { room: Vec<u8>, waiting: Option<usize> },
}

impl Live {
    /// Opens an engine for an interface of the calling thread's namespace. Sources without a pattern are sent frame by
    /// frame, which is slow; patterns that the kernel cannot make are refused.
    pub fn open(interface: &str, source: &mut dyn Source, batch: Option<u32>) -> Result<Self> {
        let (mut sender, frames) = match source.pattern() {
            Some(source) => {
                let tables = Tables::of(source.frames())?;
                let sender = LiveSender::making(interface, &tables.plan(source))?;
                (sender, Frames::Made(tables.frame().to_vec()))
            }
            None => {
                let room = vec![0; source.longest()];
                let waiting = None;
                (LiveSender::plain(interface)?, Frames::Given { room, waiting })
            }
        };
        if let Some(batch) = batch {
            sender.set_batch(batch);
        }
        Ok(Self { sender, frames, most: FIRST_RUN })
    }

    fn send_made(&mut self, source: &mut dyn Source, want: u64) -> Result<Sent> {
        let Frames::Made(frame) = &self.frames else {
            return Ok(Sent::default());
        };
        let want = want.min(LARGEST_RUN);
        let start = Instant::now();
        let burst = self.sender.burst(frame, want)?;
        // Adjusts the length of the runs, unless this one was limited by the frames due.
        if want == self.most {
            let aim = RUN.as_secs_f64() / start.elapsed().as_secs_f64().max(1e-9);
            self.most = (want as f64 * aim.clamp(0.25, 2.0)) as u64;
            self.most = self.most.clamp(FIRST_RUN, LARGEST_RUN);
        }
        // Refused frames are not made again: the kernel went on to the next numbers.
        let offered = burst.sent + burst.refused;
        let bytes = source.pattern().map_or(0, |source| source.skip(offered));
        let lost = bytes.checked_div(offered).unwrap_or(0) * burst.refused;
        Ok(Sent { frames: burst.sent, bytes: bytes - lost, refused: burst.refused, ..Sent::default() })
    }
}

impl Engine for Live {
    fn name(&self) -> &'static str {
        "live"
    }

    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
        let Frames::Given { room, waiting } = &mut self.frames else {
            return self.send_made(source, want);
        };
        let length = match waiting.take() {
            Some(length) => length,
            None => match source.next(now, room)? {
                Next::Frame(length) => length,
                Next::Later(time) => {
                    return Ok(Sent { later: Some(time), ..Sent::default() });
                }
                Next::End => {
                    return Ok(Sent { ended: true, ..Sent::default() });
                }
            },
        };
        let burst = self.sender.burst(&room[..length], 1)?;
        if burst.sent == 0 {
            *waiting = Some(length);
        }
        Ok(Sent { frames: burst.sent, bytes: burst.sent * length as u64, refused: burst.refused, ..Sent::default() })
    }

    fn counts_refused(&self) -> bool {
        self.sender.counts_accepted()
    }

    fn suspicion(&self) -> &'static str {
        "its other end is down, or has neither an XDP program nor GRO (there: ethtool -K IF gro on)"
    }

    fn most(&self) -> u64 {
        match self.frames {
            Frames::Made(_) => self.most,
            Frames::Given { .. } => 1,
        }
    }
}

// AF_XDP: frames are written into slots of memory that is shared with the kernel.

/// Time that the device has to release the frames.
const FINISH: Duration = Duration::from_millis(500);
const CHECK_EVERY: Duration = Duration::from_millis(1);
const XSK_BATCH: u64 = 256;

/// AF_XDP; see [`trawl_io::xsk`].
#[derive(Debug)]
pub struct Xsk {
    device: XskSender,
    /// Lengths of the frames that wait in slots, oldest first.
    lengths: VecDeque<usize>,
}

impl Xsk {
    /// Opens an engine for a queue of an interface of the calling thread's namespace, and frames up to that length.
    pub fn open(interface: &str, queue: u32, longest: usize) -> Result<Self> {
        if longest > LONGEST {
            return Err(Error::failed(
                format!("cannot send by AF_XDP out of {interface}"),
                format!("frames of {longest} bytes exceed its maximum of {LONGEST}"),
            )
            .fix("use --engine packet"));
        }
        Ok(Self { device: XskSender::open(interface, queue)?, lengths: VecDeque::new() })
    }

    /// Returns a text for the user that says whether frames are copied.
    pub fn copy_mode(&self) -> &'static str {
        if self.device.is_zero_copy() {
            "AF_XDP without copying: the device reads frames in place"
        } else {
            "AF_XDP with copying: the driver has no zero-copy mode on this queue"
        }
    }

    /// Returns true if the driver sends frames from this socket now; see [`XskSender::is_served`].
    fn is_served(&self) -> bool {
        self.device.is_served()
    }

    /// Puts frames of the source into free slots until `want` of them wait. Returns true if the source is at its end.
    fn fill(&mut self, source: &mut dyn Source, now: u64, want: u64, sent: &mut Sent) -> Result<bool> {
        while (self.lengths.len() as u64) < want {
            let mut answer = None;
            let queued = self.device.queue(&mut |room: &mut [u8]| -> Result<Option<usize>> {
                let next = source.next(now, room)?;
                answer = Some(next);
                Ok(match next {
                    Next::Frame(length) => Some(length),
                    _ => None,
                })
            })?;
            match (queued, answer) {
                (Some(length), _) => {
                    self.lengths.push_back(length);
                    continue;
                }
                (None, Some(Next::Later(time))) => sent.later = Some(time),
                (None, Some(_)) => return Ok(true),
                // No slot is free.
                (None, None) => {}
            }
            break;
        }
        Ok(false)
    }

    /// Sends frames, and adds the ones that left their slots to `sent`.
    fn hand_over(&mut self, sent: &mut Sent) -> Result<()> {
        let kicked = self.device.kick()?;
        // The dropped frame is not known; only the last one of a call can be dropped.
        for at in 0..kicked.taken + kicked.dropped {
            let length = self.lengths.pop_front().unwrap_or(0);
            if at < kicked.taken {
                sent.frames += 1;
                sent.bytes += length as u64;
            }
        }
        sent.refused += u64::from(kicked.dropped) + u64::from(kicked.busy);
        Ok(())
    }
}

impl Engine for Xsk {
    fn name(&self) -> &'static str {
        "xsk"
    }

    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
        let mut sent = Sent::default();
        let ended = self.fill(source, now, want.min(XSK_BATCH), &mut sent)?;
        if !self.lengths.is_empty() {
            self.hand_over(&mut sent)?;
        }
        sent.ended = ended && self.lengths.is_empty();
        Ok(sent)
    }

    fn most(&self) -> u64 {
        XSK_BATCH
    }

    fn has_frames(&self) -> bool {
        !self.lengths.is_empty()
    }

    fn finish(&mut self) -> Result<Sent> {
        let mut sent = Sent::default();
        let start = Instant::now();
        while !self.lengths.is_empty() && start.elapsed() < FINISH {
            self.hand_over(&mut sent)?;
        }
        // The memory must outlive the device's use of it.
        while self.device.outstanding() > 0 && start.elapsed() < FINISH {
            std::thread::sleep(CHECK_EVERY);
        }
        Ok(sent)
    }
}
