//! A packet socket: works everywhere.

use trawl_io::send::{PACKET_BATCH, PacketSender};
use trawl_sys::Result;

use super::{Engine, Sent};
use crate::source::{Next, Source};

/// Frames wait here until the device took them.
#[derive(Debug)]
pub struct Packet {
    socket: PacketSender,
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
        Ok(Self::over(PacketSender::open(interface)?, longest))
    }

    /// Through the queueing discipline, as a plain loop of sendmmsg sends. For comparison.
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
