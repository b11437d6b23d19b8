//! A packet socket: works everywhere.

mod together;

use trawl_kernel::Result;
use trawl_kernel::send::{PACKET_BATCH, PacketSender};

use super::{Engine, Sent};
use crate::source::{Next, Source};
use together::Joint;

/// Frames that one call is asked for where many go together.
const MOST_TOGETHER: usize = 1024;

/// Frames wait here until the device took them.
#[derive(Debug)]
pub struct Packet {
    socket: PacketSender,
    /// For frames that are alike; `None` where the kernel or the device wants each by itself.
    joint: Option<Joint>,
    room: usize,
    bytes: Vec<u8>,
    /// The lengths of the frames that wait, from `first` on; each has `room` bytes.
    lengths: [usize; PACKET_BATCH],
    first: usize,
    end: usize,
}

impl Packet {
    /// For an interface of the calling thread's namespace, and frames up to that length.
    pub fn open(interface: &str, longest: usize) -> Result<Self> {
        let mut packet = Self::over(PacketSender::open(interface)?, longest);
        packet.joint = Joint::open(interface)?;
        Ok(packet)
    }

    /// As programs send that take no trouble: through the queueing discipline, each frame by itself. For comparison.
    pub fn plain(interface: &str, longest: usize) -> Result<Self> {
        Ok(Self::over(PacketSender::queued(interface)?, longest))
    }

    fn over(socket: PacketSender, longest: usize) -> Self {
        Self {
            socket,
            joint: None,
            room: longest,
            bytes: vec![0; longest * PACKET_BATCH],
            lengths: [0; PACKET_BATCH],
            first: 0,
            end: 0,
        }
    }

    /// Takes frames from the source until this many wait, and says how it answered when it gave none.
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
        let taken = self.socket.offer(&frames[..waiting.len()])?;
        sent.frames += taken as u64;
        sent.bytes += lengths[self.first..self.first + taken]
            .iter()
            .sum::<usize>() as u64;
        sent.refused += u64::from(taken < waiting.len());
        self.first += taken;
        Ok(())
    }

    fn send_batch(&mut self, source: &mut dyn Source, now: u64, want: usize) -> Result<Sent> {
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

    /// Sends batches as long as each is of frames that are alike, and counts what the device dropped of them.
    fn send_joint(
        &mut self,
        joint: &mut Joint,
        source: &mut dyn Source,
        now: u64,
        want: usize,
    ) -> Result<Option<Sent>> {
        let Some(mtu) = joint.begin()? else {
            return Ok(None);
        };
        let mut sent = Sent::default();
        while sent.frames as usize + PACKET_BATCH <= want && sent.refused == 0 {
            if self.fetch(source, now, PACKET_BATCH)?.is_some() {
                break;
            }
            let frames = (self.first..self.end)
                .map(|slot| &self.bytes[slot * self.room..][..self.lengths[slot]]);
            let Some(done) = joint.offer(frames, mtu)? else {
                break;
            };
            self.first += done.frames as usize;
            sent.frames += done.frames;
            sent.bytes += done.bytes;
            sent.refused += done.refused;
        }
        if sent.frames == 0 {
            return Ok(None);
        }
        joint.settle(&mut sent)?;
        Ok(Some(sent))
    }
}

impl Engine for Packet {
    fn name(&self) -> &'static str {
        "packet"
    }

    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent> {
        let want = usize::try_from(want).map_or(MOST_TOGETHER, |want| want.min(MOST_TOGETHER));
        // Of frames that go together it is not known which ones the device dropped: those of a pattern may be others
        // in their place, those of a recording may not. And the device counts the drops of all threads in one.
        if want >= PACKET_BATCH
            && source
                .pattern()
                .is_some_and(|pattern| pattern.stride() == 1)
            && let Some(mut joint) = self.joint.take()
        {
            let sent = self.send_joint(&mut joint, source, now, want);
            self.joint = joint.is_supported().then_some(joint);
            if let Some(sent) = sent? {
                return Ok(sent);
            }
        }
        self.send_batch(source, now, want.min(PACKET_BATCH))
    }

    fn most(&self) -> u64 {
        match self.joint {
            Some(_) => MOST_TOGETHER as u64,
            None => PACKET_BATCH as u64,
        }
    }

    fn has_frames(&self) -> bool {
        self.first < self.end
    }
}
