//! The rounds of a capture: packets are moved to the sink until something ends it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use trawl_sys::events::Signal;
use trawl_sys::{Result, clock, events};

use super::{
    BUSY_BYTES, BUSY_SLEEP, Ended, IDLE_SLEEP, Observer, READER_PATIENCE, READER_SLEEP,
    READS_AT_LEAST, Session, TEND_EVERY,
};
use crate::notice::Notice;
use crate::sink::{Counting, Sink};
use crate::stream::Stream;

impl Session {
    pub(super) fn move_until_end(
        &mut self,
        sink: &mut dyn Sink,
        observer: &mut dyn Observer,
    ) -> Result<Ended> {
        let mut sleep = BUSY_SLEEP;
        let mut tended = Instant::now();
        let mut reported = Instant::now();
        loop {
            if let Some(Err(error)) = sink.stream().map(Stream::push) {
                return Ok(Ended::Output(error));
            }
            let moved = match self.merge.round(sink) {
                Ok(moved) => moved.bytes,
                Err(error) => return Ok(Ended::Output(error)),
            };
            if moved < BUSY_BYTES
                && let Err(error) = sink.rest()
            {
                return Ok(Ended::Output(error));
            }
            if let Some(ended) = self.look_around(observer)? {
                return Ok(ended);
            }
            if sink.is_full() {
                return Ok(Ended::Size);
            }
            if tended.elapsed() > TEND_EVERY {
                tended = Instant::now();
                if let Some(ended) = self.tend(observer)? {
                    return Ok(ended);
                }
                observer.looked_after(&mut || self.summary(&Counting::default(), ""));
                if self.options.joins
                    && let Err(error) = self.join(sink, observer)
                {
                    return Ok(Ended::Output(error));
                }
                if sink.wants_account() {
                    sink.account(&self.summary(&Counting::default(), ""));
                }
            }
            if observer
                .interval()
                .is_some_and(|interval| reported.elapsed() >= interval)
            {
                reported = Instant::now();
                observer.figures(&self.summary(&Counting::default(), ""));
            }
            sleep = match moved {
                0 => (sleep * 2).min(IDLE_SLEEP),
                BUSY_BYTES.. => continue,
                _ => BUSY_SLEEP,
            };
            let stream: Option<&Stream> = sink.stream().filter(|s| s.is_behind()).map(|s| &*s);
            if stream.is_some() {
                // Woken by the reader.
                sleep = READER_SLEEP;
            }
            let outlet = stream.map(Stream::as_fd);
            self.wait(sleep, outlet, reported, observer.interval())?;
        }
    }

    /// Moves all that is left, as long as the sink's reader takes it.
    pub(super) fn hand_over(&mut self, sink: &mut dyn Sink) -> Result<Handed> {
        let mut since = (Instant::now(), 0);
        loop {
            self.merge.finish(sink)?;
            let Some(stream) = sink.stream().filter(|stream| stream.is_behind()) else {
                return Ok(Handed::Over);
            };
            let told = std::iter::from_fn(|| self.signals.next()).any(|signal| signal.ends());
            if stream.taken() - since.1 >= READS_AT_LEAST {
                since = (Instant::now(), stream.taken());
            } else if told || since.0.elapsed() >= READER_PATIENCE {
                return Ok(Handed::NotRead);
            }
            let outlet = Some(stream.as_fd());
            events::wait_also(&[self.signals.as_fd()], outlet, READER_SLEEP)?;
            stream.push()?;
        }
    }

    fn wait(
        &self,
        sleep: Duration,
        outlet: Option<BorrowedFd<'_>>,
        reported: Instant,
        interval: Option<Duration>,
    ) -> Result<()> {
        let mut sleep = sleep;
        if let Some(duration) = self.options.duration {
            sleep = sleep.min(duration.saturating_sub(self.started.elapsed()));
        }
        if let Some(interval) = interval {
            sleep = sleep.min(interval.saturating_sub(reported.elapsed()));
        }
        events::wait_also(&[self.signals.as_fd()], outlet, sleep)
    }

    /// What has to be noticed in every round.
    fn look_around(&mut self, observer: &mut dyn Observer) -> Result<Option<Ended>> {
        let by_signal = self
            .options
            .trigger
            .as_ref()
            .is_some_and(|plan| plan.signal);
        let mut ended = None;
        while let Some(signal) = self.signals.next() {
            match signal {
                Signal::Report => observer.figures(&self.summary(&Counting::default(), "")),
                // Where nothing waits for it, it is not to end the process without an account.
                Signal::Trigger => {
                    if let Some(shared) = self.triggered.as_ref().filter(|_| by_signal) {
                        shared.borrow_mut().signal = Some(clock::wall());
                    }
                }
                // One that came with it is an event still.
                Signal::Interrupt | Signal::Terminate | Signal::Hangup => {
                    ended = Some(Ended::Signal);
                }
            }
        }
        if self.tell_events(observer) {
            return Ok(Some(Ended::Triggers));
        }
        if ended.is_some() {
            return Ok(ended);
        }
        if self
            .options
            .duration
            .is_some_and(|duration| self.started.elapsed() >= duration)
        {
            return Ok(Some(Ended::Duration));
        }
        let recorded = || match &self.fates {
            Some(fates) => fates.borrow().passed_total(),
            None => self
                .assembly
                .points
                .iter()
                .map(|point| point.account().recorded)
                .sum::<u64>(),
        };
        // Adding up the accounts of many interfaces on many CPUs takes a while: not before all tickets are handed out.
        let may_be_over = self.fates.is_some() || self.assembly.tickets.exhausted();
        if self
            .options
            .count
            .is_some_and(|count| may_be_over && recorded() >= count)
        {
            return Ok(Some(Ended::Count));
        }
        Ok(None)
    }

    /// Says which events there were since it was last asked. Returns whether there have been enough.
    pub(super) fn tell_events(&self, observer: &mut dyn Observer) -> bool {
        let Some(shared) = &self.triggered else {
            return false;
        };
        let (news, is_over) = {
            let shared = &mut *shared.borrow_mut();
            (std::mem::take(&mut shared.news), shared.is_over)
        };
        news.into_iter()
            .for_each(|event| observer.notice(&Notice::Triggered(event)));
        is_over
    }

    pub(super) fn stop(&mut self, observer: &mut dyn Observer) {
        // What happened since the last look. Its end is at hand in any case.
        self.watched = 0;
        self.watch(usize::MAX, observer);
        self.assembly
            .points
            .iter()
            .for_each(|point| point.rings.stop());
        if self.is_confined {
            self.assembly.warden.carry_out();
        }
        for at in &mut self.taps {
            at.tap
                .detach()
                .into_iter()
                .for_each(|notice| observer.notice(&notice));
        }
        events::wait_for_running_programs();
    }
}

/// What became of the last packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    Over,
    /// The reader at the other end of the pipe stopped reading.
    NotRead,
}
