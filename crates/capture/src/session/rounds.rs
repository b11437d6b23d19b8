//! The rounds of a capture, which move records to the writer until the capture ends.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use trawl_pipeline::{Blocks, Counts, Feed, LIVE, Patience, Pressure, Reader};
use trawl_ring::Bell;
use trawl_sys::events::Signal;
use trawl_sys::{Result, clock, events, memory};

use super::{Ended, Running};
use crate::event::Event;
use crate::process;
use crate::summary::Summary;

const BUSY_SLEEP: Duration = Duration::from_micros(200);
/// Bytes per round above which the next round follows at once. A round costs a few system calls.
const BUSY_BYTES: usize = 1 << 20;
/// Share of a ring that a round should find: each round costs time, however little it moves.
const RING_SHARE: usize = 64;
/// Interval at which interfaces and attachments are checked, while packets come and while none do.
const TEND_EVERY: Duration = Duration::from_millis(200);
const TEND_RARELY: Duration = Duration::from_millis(500);
/// Duration of a sleep during which records wait until another CPU has announced that it has no earlier ones.
const HELD_SLEEP: Duration = Duration::from_millis(1);

/// The result of a round.
#[derive(Clone, Copy, Debug)]
enum Round {
    /// The reader of the output does not read.
    Blocked,
    /// No record is left.
    Empty,
    /// Number of bytes that were moved. Others may wait for records of another CPU.
    Moved(usize),
}

/// The sleep between two rounds.
#[derive(Debug)]
struct Sleep {
    /// Time between rounds while records come.
    length: Duration,
    /// The event that ends the sleep early.
    bell: Bell,
    /// Number of bytes after which a bell for a segment rings.
    segment: usize,
}

impl Sleep {
    fn new(segment: usize) -> Self {
        Self { length: BUSY_SLEEP, bell: Bell::Silent, segment }
    }

    /// Notes that the bell has rung after `slept`.
    fn end_early(&mut self, slept: Duration) {
        // A bell that rings sooner than a short sleep would end costs the program more than it saves the reader.
        if self.bell == Bell::ForSegment && slept < LIVE {
            self.length = LIVE;
        }
        self.bell = Bell::Silent;
    }

    /// Decides on the sleep after a round that should move `wanted` bytes or more, of which none may wait for longer
    /// than `delay`. Returns `None` if the next round follows at once.
    fn after(&mut self, round: Round, wanted: usize, delay: Duration) -> Option<Duration> {
        let before = std::mem::replace(&mut self.bell, Bell::Silent);
        match round {
            Round::Blocked => return Some(Reader::SLEEP),
            Round::Empty if before == Bell::ForRecord => {
                // A record that was written as the bell was set has been seen by now.
                self.bell = before;
                return Some(Duration::MAX);
            }
            Round::Empty => {
                self.length = (self.length * 2).min(delay);
                if self.length < LIVE {
                    return Some(self.length);
                }
                self.bell = Bell::ForRecord;
                return Some(LIVE);
            }
            Round::Moved(0) => return Some(HELD_SLEEP),
            Round::Moved(BUSY_BYTES..) => {
                self.length = (self.length / 2).max(BUSY_SLEEP);
                return None;
            }
            // A packet after a silence may be the last one for a long time.
            Round::Moved(moved) if moved < wanted / 2 && before == Bell::ForRecord => self.length = delay,
            Round::Moved(moved) if moved < wanted / 2 => {
                // Longer sleeps would end by a bell soon.
                let is_long_enough = self.length <= LIVE && moved >= self.segment / 2;
                self.length = (self.length * 2).min(if is_long_enough { delay.min(LIVE) } else { delay });
            }
            Round::Moved(moved) if moved > wanted => self.length = (self.length / 2).max(BUSY_SLEEP),
            Round::Moved(_) => {}
        }
        if self.length > LIVE {
            self.bell = Bell::ForSegment;
        }
        Some(self.length)
    }
}

impl Running<'_> {
    /// Records until the capture ends, and computes the summary.
    pub(super) fn run(mut self) -> Result<(Summary, Ended)> {
        events::precise_sleeps();
        memory::trim();
        for at in &mut self.capture.taps {
            at.tap.start()?;
        }
        if !self.capture.options.joins {
            self.capture.assembly.may_run_first = None;
        }
        let header = self.capture.file_header(&self.steps);
        let begun = self.feed.write(Blocks::Bytes(&header)).and_then(|()| self.feed.flush());
        self.observer.started(&self.capture.assembly.points);
        let ended = match begun {
            Ok(()) if self.is_full() => Ended::Size,
            Ok(()) => self.move_until_end()?,
            Err(error) => Ended::Output(error),
        };
        self.end(ended)
    }

    fn move_until_end(&mut self) -> Result<Ended> {
        let geometry = self.capture.geometry();
        let mut sleep = Sleep::new(geometry.segment_size);
        let wanted = (geometry.pool_size / RING_SHARE).min(BUSY_BYTES);
        let mut asleep = Instant::now();
        let mut tended = Instant::now();
        let mut reported = Instant::now();
        let mut tend_every = TEND_EVERY;
        let mut is_called = false;
        loop {
            if self.capture.assembly.rings.has_rung() {
                sleep.end_early(asleep.elapsed());
            }
            let moved = match self.capture.merge.round(&mut self.feed) {
                Ok(moved) => moved,
                Err(error) => return Ok(Ended::Output(error)),
            };
            if moved < BUSY_BYTES
                && let Err(error) = self.feed.flush()
            {
                return Ok(Ended::Output(error));
            }
            if let Some(ended) = self.handle_events()? {
                return Ok(ended);
            }
            if self.is_full() {
                return Ok(Ended::Size);
            }
            let is_urgent = self.observer.is_urgent();
            if tended.elapsed() >= tend_every || is_urgent || std::mem::take(&mut is_called) {
                tended = Instant::now();
                if self.observer.is_over() {
                    return Ok(Ended::Command);
                }
                if let Some(ended) = self.tend()? {
                    return Ok(ended);
                }
                let (capture, past) = (&mut self.capture, &self.past);
                self.observer.tick(&mut || capture.figures(past));
                self.enter();
                if self.capture.options.joins
                    && let Err(error) = self.join(is_urgent)
                {
                    return Ok(Ended::Output(error));
                }
            }
            if is_urgent {
                // The next call of `is_urgent` lets the command's processes continue.
                continue;
            }
            let interval = self.observer.interval();
            // While the capture sleeps, it wakes up for checks and statistics together, so these may be a little early.
            let early = if sleep.bell == Bell::Silent { Duration::ZERO } else { tend_every / 2 };
            if interval.is_some_and(|interval| reported.elapsed() + early.min(interval / 4) >= interval) {
                reported = Instant::now();
                self.observer.figures(&self.capture.figures(&self.past));
            }
            let delay = self.delay();
            let rests = moved == 0 && self.capture.merge.is_at_rest();
            let round = if self.feed.is_blocked() {
                // The reader wakes it.
                Round::Blocked
            } else if rests {
                Round::Empty
            } else {
                Round::Moved(moved)
            };
            let Some(at_most) = sleep.after(round, wanted, delay) else {
                continue;
            };
            self.capture.assembly.rings.set_bell(sleep.bell);
            asleep = Instant::now();
            // A burst that ends the sleep is not divided between two statistics.
            tend_every = self.tend_every(sleep.bell);
            let until_tended = tend_every.saturating_sub(tended.elapsed());
            let is_with_checks = sleep.bell != Bell::Silent && interval.is_some_and(|interval| interval >= tend_every);
            let until_figures = interval.filter(|_| !is_with_checks).map(|all| all.saturating_sub(reported.elapsed()));
            is_called = self.wait(at_most.min(until_tended).min(until_figures.unwrap_or(at_most)))?;
        }
    }

    /// Returns how long records may wait in their rings.
    fn delay(&self) -> Duration {
        if self.capture.options.is_prompt() { LIVE } else { self.feed.delay() }
    }

    /// Returns the interval at which interfaces, attachments and the observer's matters are checked.
    fn tend_every(&self, bell: Bell) -> Duration {
        let usual = if bell == Bell::Silent { TEND_EVERY } else { TEND_RARELY };
        usual.min(self.observer.attention())
    }

    fn is_full(&self) -> bool {
        matches!(self.feed.pressure, Pressure::Full)
    }

    /// Detaches the taps, waits for the writer, and computes the summary.
    fn end(mut self, mut ended: Ended) -> Result<(Summary, Ended)> {
        self.stop();
        let handed = match ended {
            Ended::Output(_) => Ok(()),
            _ => self.hand_over(),
        };
        if let Err(error) = handed {
            ended = Ended::Output(error);
        }
        self.tend_memory();
        let mut outcome = self.feed.finish();
        self.note_report();
        // Added interface blocks count sightings before they are merged.
        let current = self.capture.current.borrow();
        for (interface, packets) in &mut outcome.added {
            *packets = packets.saturating_sub(current.report.merged.sum(&[*interface]));
        }
        drop(current);
        if let Some(error) = outcome.error.take() {
            ended = Ended::Output(error);
        }
        self.report_processes();
        let mut in_rings = Counts::default();
        let mut rest = Feed::new(Vec::new(), &mut in_rings);
        self.capture.merge.finish(&mut rest)?;
        drop(rest);
        outcome.unwritten.add_all(&in_rings);
        let is_complete = !matches!(ended, Ended::Output(_)) && outcome.not_read.is_none();
        let mut summary = self.capture.final_summary(&self.past, &outcome, &ended);
        if is_complete {
            let trailer = self.capture.file_trailer(&summary, &outcome.added);
            let written = self.feed.write(Blocks::Bytes(&trailer));
            let error = match written {
                Ok(()) => self.feed.finish().error,
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                ended = Ended::Output(error);
            }
        }
        if let Some(output) = outcome.not_read {
            let packets = outcome.unwritten.total();
            self.observer.event(&Event::NotRead { output, packets });
        }
        summary.ended = ended.to_string();
        Ok((summary, ended))
    }

    /// Moves all records left in the rings, as long as the writer's reader reads.
    fn hand_over(&mut self) -> Result<()> {
        let mut patience = Patience::begin();
        loop {
            self.capture.merge.finish(&mut self.feed)?;
            let Pressure::Blocked(reader) = &self.feed.pressure else {
                return Ok(());
            };
            if patience.is_over(reader) {
                return Ok(());
            }
            let signals = [self.capture.signals.as_fd()];
            events::wait_also(&signals, reader.outlet(), Reader::SLEEP)?;
            self.feed.flush()?;
        }
    }

    /// Sleeps until the time is over, or something happens that ends the sleep. Returns true if the observer is to be
    /// called.
    fn wait(&self, mut sleep: Duration) -> Result<bool> {
        if let Some(due) = self.feed.due() {
            sleep = sleep.min(due.saturating_duration_since(Instant::now()).max(LIVE));
        }
        if let Some(duration) = self.capture.options.duration {
            sleep = sleep.min(duration.saturating_sub(self.capture.started.elapsed()));
        }
        let outlet = match &self.feed.pressure {
            Pressure::Blocked(reader) => reader.outlet(),
            _ => None,
        };
        let mut wakes = vec![self.capture.signals.as_fd()];
        wakes.extend(self.capture.assembly.rings.bells());
        wakes.extend(self.capture.assembly.processes.iter().map(|processes| processes.watch.as_fd()));
        let of_observer = self.observer.wakes();
        wakes.extend(&of_observer);
        events::wait_also(&wakes, outlet, sleep)?;
        Ok(of_observer.into_iter().any(events::is_readable))
    }

    /// Handles signals, events and limits, which every round checks.
    fn handle_events(&mut self) -> Result<Option<Ended>> {
        let is_over = self.note_report();
        let by_signal = self.capture.options.trigger.as_ref().is_some_and(|plan| plan.signal);
        let mut ended = None;
        while let Some(signal) = self.capture.signals.next() {
            match signal {
                Signal::Report => self.observer.figures(&self.capture.figures(&self.past)),
                // An unexpected trigger must not end the process without a summary.
                Signal::Trigger if by_signal => self.feed.signal(clock::wall()),
                Signal::Trigger => self.observer.triggered(),
                // A trigger that arrived together with it still counts.
                Signal::Interrupt | Signal::Terminate | Signal::Hangup => {
                    ended = Some(Ended::Signal);
                }
            }
        }
        if is_over {
            return Ok(Some(Ended::Triggers));
        }
        if ended.is_some() {
            return Ok(ended);
        }
        if self.capture.options.duration.is_some_and(|duration| self.capture.started.elapsed() >= duration) {
            return Ok(Some(Ended::Duration));
        }
        let Some(count) = self.capture.options.count else {
            return Ok(None);
        };
        let recorded = match self.capture.current.borrow().report.handed_on {
            Some(packets) => packets,
            // Summing the counters of many interfaces on many CPUs takes long: only once all tickets are handed out.
            None if !self.capture.assembly.rings.tickets.exhausted() => return Ok(None),
            None => self.capture.assembly.points.iter().map(|point| point.account().recorded).sum::<u64>(),
        };
        Ok((recorded >= count).then_some(Ended::Count))
    }

    /// Stores the stages' report and reports new events. Returns true if the limit of events is reached.
    fn note_report(&mut self) -> bool {
        let mut report = self.feed.report();
        for firing in report.triggers.iter_mut().flat_map(|triggers| triggers.list.drain(..)) {
            self.observer.event(&Event::Triggered(firing.clone()));
            self.past.fired.push(firing);
        }
        let is_over = report.is_over;
        self.capture.current.borrow_mut().report = report;
        is_over
    }

    /// Reports what is not known about processes.
    fn report_processes(&mut self) {
        let (Some(processes), false) =
            (&self.capture.assembly.processes, self.capture.options.process.as_ref().is_some_and(|plan| plan.optional))
        else {
            return;
        };
        let counts = process::counts(processes);
        let undescribed = processes.undescribed.get();
        if counts.unknown + counts.undecided + counts.begun_before + undescribed > 0 {
            self.observer.event(&Event::ProcessesUnknown {
                recorded: counts.unknown,
                left_out: counts.undecided,
                begun_before: counts.begun_before,
                undescribed,
            });
        }
    }

    fn stop(&mut self) {
        // Events since the last check. The capture ends in any case.
        self.watched = 0;
        self.watch(usize::MAX);
        self.capture.assembly.points.iter().for_each(|point| point.rings.stop());
        if self.gave_up_rights {
            self.capture.assembly.undo.warden.carry_out();
        }
        for at in &mut self.capture.taps {
            at.tap.detach().into_iter().for_each(|notice| self.observer.event(&notice));
        }
        events::wait_for_running_programs();
    }
}

#[cfg(test)]
mod tests {
    use trawl_pipeline::UNWATCHED;

    use super::*;

    const WANTED: usize = 1 << 18;
    const SEGMENT: usize = 1 << 16;

    fn falls_asleep(sleep: &mut Sleep, delay: Duration) {
        let rounds = (0..10).find(|_| sleep.after(Round::Empty, WANTED, delay) == Some(Duration::MAX));
        assert!(rounds.is_some() && sleep.bell == Bell::ForRecord, "{sleep:?}");
    }

    #[test]
    fn bell_is_trusted_only_after_another_round() {
        let mut sleep = Sleep { length: LIVE, ..Sleep::new(SEGMENT) };
        assert_eq!((sleep.after(Round::Empty, WANTED, LIVE), sleep.bell), (Some(LIVE), Bell::ForRecord));
        assert_eq!((sleep.after(Round::Empty, WANTED, LIVE), sleep.bell), (Some(Duration::MAX), Bell::ForRecord));
        // It has rung, and the record was read in the round before.
        sleep.bell = Bell::Silent;
        assert_eq!((sleep.after(Round::Empty, WANTED, LIVE), sleep.bell), (Some(LIVE), Bell::ForRecord));
    }

    #[test]
    fn records_wait_as_long_as_the_output_allows() {
        for (delay, bell) in [(LIVE, Bell::Silent), (UNWATCHED, Bell::ForSegment)] {
            let mut sleep = Sleep::new(SEGMENT);
            falls_asleep(&mut sleep, delay);
            assert_eq!(sleep.after(Round::Moved(100), WANTED, delay), Some(delay));
            assert_eq!(sleep.bell, bell);
        }
    }

    #[test]
    fn bell_is_silent_while_segments_fill_sooner_than_a_short_sleep_ends() {
        let mut sleep = Sleep::new(SEGMENT);
        while sleep.bell == Bell::Silent {
            sleep.after(Round::Moved(100), WANTED, UNWATCHED);
        }
        sleep.end_early(LIVE * 2);
        sleep.after(Round::Moved(SEGMENT / 2), WANTED, UNWATCHED);
        assert_eq!(sleep.bell, Bell::ForSegment);
        sleep.end_early(LIVE / 4);
        for _ in 0..10 {
            assert_eq!(sleep.after(Round::Moved(SEGMENT), WANTED, UNWATCHED), Some(LIVE));
            assert_eq!(sleep.bell, Bell::Silent);
            // A full round is followed by one that finds little.
            assert_eq!(sleep.after(Round::Moved(BUSY_BYTES), WANTED, UNWATCHED), None);
        }
    }

    #[test]
    fn load_keeps_the_capture_awake() {
        let mut sleep = Sleep::new(SEGMENT);
        falls_asleep(&mut sleep, UNWATCHED);
        assert_eq!((sleep.after(Round::Moved(BUSY_BYTES), WANTED, UNWATCHED), sleep.bell), (None, Bell::Silent));
        for _ in 0..20 {
            assert!(sleep.after(Round::Moved(WANTED - 1), WANTED / 2, UNWATCHED).is_some());
        }
        assert_eq!((sleep.length, sleep.bell), (BUSY_SLEEP, Bell::Silent));
        // A reader that does not read is waited for by itself, and records of another CPU by short sleeps.
        assert_eq!((sleep.after(Round::Blocked, WANTED, LIVE), sleep.bell), (Some(Reader::SLEEP), Bell::Silent));
        assert_eq!((sleep.after(Round::Moved(0), WANTED, LIVE), sleep.bell), (Some(HELD_SLEEP), Bell::Silent));
    }
}
