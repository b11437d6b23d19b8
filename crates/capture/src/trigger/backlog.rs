//! The packets before an event on their way out: in pieces, so that the rings are emptied meanwhile, and no faster than the
//! sink accepts them. Later packets wait behind them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use trawl_packet::pcapng::block::blocks;
use trawl_pipeline::{Blocks, Pressure};
use trawl_sys::Result;

use super::history::{Chunk, History};
use super::{Armed, Trigger};

/// Bytes written in one round, in addition to twice the received ones.
const PIECE: usize = 16 << 20;
/// Time that a piece waits for a busy sink.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Backlog {
    packets: History,
    /// True if the time after the event is over as well.
    pub is_closed: bool,
    written: Instant,
}

impl Backlog {
    pub fn new(packets: History) -> Self {
        Self {
            packets,
            is_closed: false,
            written: Instant::now(),
        }
    }
}

impl Armed<'_> {
    /// Writes these blocks, or appends them to the backlog.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<()> {
        if self.trigger.backlog.is_none() {
            return self.write(Blocks::Bytes(bytes));
        }
        for block in blocks(bytes) {
            match (block.enhanced_packet(), &mut self.trigger.backlog) {
                (Some(packet), Some(backlog)) => {
                    backlog.packets.push(block.bytes, packet.timestamp);
                }
                // An interface description precedes its packets.
                _ => self.write(Blocks::Bytes(block.bytes))?,
            }
        }
        Ok(())
    }

    /// Writes a part of the backlog, larger than the incoming bytes.
    pub(super) fn catch_up(&mut self, coming: usize) -> Result<()> {
        let memory = self.trigger.plan.memory as usize;
        let mut left = PIECE + 2 * coming;
        while let Some(backlog) = &self.trigger.backlog {
            let fits = backlog.packets.used() + coming <= memory;
            let waits = self.is_busy() && backlog.written.elapsed() < PATIENCE;
            if fits && (left == 0 || waits) {
                break;
            }
            left = left.saturating_sub(self.write_chunk()?);
        }
        let used = self.trigger.backlog.as_mut().map_or(0, |backlog| {
            if left < PIECE + 2 * coming {
                backlog.written = Instant::now();
            }
            backlog.packets.used()
        });
        self.trigger.history.set_memory(memory.saturating_sub(used));
        Ok(())
    }

    /// Writes the whole backlog. `is_patient` waits for a busy sink, as long as it makes progress.
    pub(super) fn finish(&mut self, mut is_patient: bool) -> Result<()> {
        while self.trigger.backlog.is_some() {
            let since = Instant::now();
            while is_patient && matches!(self.trigger.pressure, Pressure::Busy { .. }) {
                is_patient = since.elapsed() < PATIENCE;
                sleep(LOOK_EVERY);
                self.trigger.pressure = self.next.flush()?;
            }
            self.write_chunk()?;
        }
        self.catch_up(0)
    }

    fn is_busy(&self) -> bool {
        matches!(
            self.trigger.pressure,
            Pressure::Busy { .. } | Pressure::Blocked(_)
        )
    }

    /// Writes a chunk, and returns its length. The last chunk may end the event.
    fn write_chunk(&mut self) -> Result<usize> {
        match self.trigger.next_chunk() {
            Some(chunk) => {
                self.write(Blocks::Bytes(chunk.bytes()))?;
                Ok(chunk.bytes().len())
            }
            None => match self.trigger.backlog.take() {
                Some(backlog) if backlog.is_closed => self.write(Blocks::EventEnd).map(|()| 0),
                _ => Ok(0),
            },
        }
    }
}

impl Trigger {
    /// Counts packets of an event that could not be written.
    pub(super) fn spill(&mut self) {
        while let Some(chunk) = self.next_chunk() {
            self.unwritten.add_blocks(chunk.bytes());
        }
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        let chunk = self.backlog.as_mut()?.packets.pop()?;
        self.shared.borrow_mut().passed.add_blocks(chunk.bytes());
        Some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::write::{EnhancedPacket, enhanced_packet};
    use trawl_pipeline::{Outcome, Stage, Writer};

    use super::*;
    use crate::trigger::TriggerPlan;

    /// Keeps the times of packets, and may be busy.
    #[derive(Default)]
    struct Times {
        times: Vec<u64>,
        bytes: usize,
        is_busy: bool,
        events_over: usize,
    }

    impl Writer for Times {
        fn write(&mut self, written: Blocks<'_>) -> Result<Pressure> {
            let bytes = written.bytes();
            self.bytes += bytes.len();
            let packets = blocks(bytes).filter_map(|block| block.enhanced_packet());
            self.times.extend(packets.map(|packet| packet.timestamp));
            self.events_over += usize::from(matches!(written, Blocks::EventEnd));
            self.flush()
        }

        fn flush(&mut self) -> Result<Pressure> {
            Ok(match self.is_busy {
                true => Pressure::Busy {
                    wants_segments: false,
                },
                false => Pressure::Idle,
            })
        }

        fn finish(&mut self) -> Outcome {
            Outcome::default()
        }
    }

    fn busy() -> Times {
        Times {
            is_busy: true,
            ..Times::default()
        }
    }

    fn packet(timestamp_ns: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let captured = &[0; 60_000];
        enhanced_packet(
            &mut bytes,
            &EnhancedPacket {
                timestamp_ns,
                captured,
                original_len: 60_000,
                ..EnhancedPacket::default()
            },
        );
        bytes
    }

    /// Returns a trigger with packets up to this time, of which the last is an event.
    fn fired(sink: &mut Times, count: u64) -> Trigger {
        let plan = TriggerPlan {
            before: Duration::from_secs(1),
            after: Duration::from_nanos(100),
            expression: None,
            verdicts: None,
            signal: true,
            memory: 64 << 20,
            events: None,
        };
        let mut trigger = Trigger::new(&plan, &[], &[], false).expect("a plan");
        for time in 0..count {
            push(&mut trigger, time, sink);
        }
        trigger.shared.borrow_mut().signal = Some(count);
        push(&mut trigger, count, sink);
        trigger
    }

    fn push(trigger: &mut Trigger, time: u64, sink: &mut Times) {
        let packet = packet(time);
        trigger.push(Blocks::Bytes(&packet), sink).expect("room");
    }

    #[test]
    fn a_history_goes_out_in_pieces_and_in_order() {
        let mut sink = Times::default();
        let mut trigger = fired(&mut sink, 1000);
        // One piece at the event, and one in its round.
        assert!(sink.bytes < 2 * PIECE + (1 << 20));
        // Packets within the time after the event, and beyond it.
        for time in 1001..1200 {
            push(&mut trigger, time, &mut sink);
        }
        trigger.finish(&mut sink).expect("all");
        assert_eq!(sink.times, (0..=1100).collect::<Vec<_>>());
        assert_eq!(sink.events_over, 1);
        assert_eq!(trigger.shared.borrow().not_kept(&[0]), 99);
    }

    #[test]
    fn a_busy_sink_gets_no_more_than_memory_requires() {
        let mut sink = busy();
        let mut trigger = fired(&mut sink, 500);
        assert_eq!(sink.bytes, 0);
        // The memory holds about as many again.
        for time in 501..=600 {
            push(&mut trigger, time, &mut sink);
        }
        sink.is_busy = false;
        trigger.flush(&mut sink).expect("room");
        trigger.flush(&mut sink).expect("room");
        assert!(sink.bytes >= PIECE);
        trigger.finish(&mut sink).expect("all");
        assert_eq!(sink.times, (0..=600).collect::<Vec<_>>());
    }

    #[test]
    fn packets_held_at_an_error_are_unwritten() {
        let mut sink = busy();
        let mut trigger = fired(&mut sink, 10);
        let mut outcome = Outcome::default();
        trigger.account(&mut outcome);
        assert_eq!(outcome.unwritten.total(), 11);
        assert_eq!(trigger.shared.borrow().not_kept(&[0]), 0);
    }
}
