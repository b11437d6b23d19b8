//! A search for drops: a writer that counts the packets of a capture, finds the objects that dropped them, and reports.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trawl_capture::capture_site::CaptureSite;
use trawl_capture::session::Attached;
use trawl_capture::subject::Spaces;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{Blocks, Pressure, UNWATCHED, WriteOutcome, Writer};
use trawl_source::packets_of;
use trawl_sys::Result;
use trawl_sys::netns::Namespace;
use trawl_view::record::RingPackets;
use trawl_view::why::Tally;

use super::Notice;
use super::counted::{Counted, Differences};
use super::culprits::Culprits;
use super::record;
use super::report::{Knowledge, LossReport};

/// Maximum number of rows for which the search finds the objects that dropped their packets.
const MOST_EXPLAINED: usize = 32;
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Receives the notices and the reports of a search while it runs.
pub trait Audience {
    fn notice(&mut self, notice: &Notice);

    /// Returns true if reports are wanted before the end.
    fn is_live(&self) -> bool;

    fn report(&mut self, so_far: &LossReport);
}

/// The packets and counters that a search is about.
#[derive(Debug, Default)]
pub struct Scope {
    /// Counts freed packets that are no losses too.
    pub no_losses_too: bool,
    /// Compares counters too. They count all packets, whatever is selected.
    pub with_counters: bool,
    /// An expression, a command or an interface selects among the dropped packets.
    pub are_chosen: bool,
    /// Allows nftables to trace packets.
    pub may_trace: bool,
    pub namespaces: Vec<Namespace>,
    /// The network namespaces of a command.
    pub spaces: Option<Arc<Spaces>>,
}

/// A running search.
pub struct Search<'a> {
    tally: Tally,
    no_losses_too: bool,
    packets: RingPackets,
    counted: Option<Counted>,
    known: Knowledge,
    culprits: Culprits,
    /// True if packets may be traced: programs do not note the rules that drop them.
    may_trace: bool,
    /// Number of rows when the objects that may have dropped their packets were last read.
    rows_read: usize,
    reported: Instant,
    /// Records the packets too.
    file: Option<&'a mut dyn Writer>,
    audience: &'a mut dyn Audience,
}

impl fmt::Debug for Search<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Search").finish_non_exhaustive()
    }
}

impl<'a> Search<'a> {
    /// Reads the counters for the first time. `sites` are the interfaces whose drops count; if empty, all do.
    pub fn begin(
        scope: Scope,
        capture: &Attached,
        sites: &[CaptureSite],
        file: Option<&'a mut dyn Writer>,
        audience: &'a mut dyn Audience,
    ) -> Result<Self> {
        let mut culprits = Culprits::new(scope.are_chosen, scope.spaces);
        let counted = if scope.with_counters {
            Some(Counted::new(sites, scope.namespaces, &mut |notice| audience.notice(notice))?)
        } else {
            None
        };
        if let Some(counted) = &counted {
            culprits.begin(counted.namespaces());
        }
        Ok(Self {
            tally: Tally::default(),
            no_losses_too: scope.no_losses_too,
            packets: packets_of(capture),
            counted,
            known: Knowledge::default(),
            culprits,
            may_trace: scope.may_trace && !capture.notes_rules(),
            rows_read: 0,
            reported: Instant::now(),
            file,
            audience,
        })
    }

    /// Finds the objects that dropped the packets, and makes the report. Appends to a recording the facts that packets
    /// do not contain.
    pub fn into_report(mut self, account: &PacketAccount) -> Result<LossReport> {
        for (key, row) in self.tally.sorted().into_iter().take(MOST_EXPLAINED) {
            self.known.blames.insert(key.clone(), self.culprits.of(key, row, &self.tally));
        }
        let differences = self.differences(true)?;
        let report = LossReport::new(&self.tally, &differences, account, &mut self.known);
        if let Some(file) = &mut self.file {
            record::append(&mut **file, &report)?;
        }
        Ok(report)
    }

    fn differences(&self, with_sockets: bool) -> Result<Differences> {
        let counted = self.counted.as_ref();
        counted.map_or_else(|| Ok(Differences::default()), |counted| counted.differences(with_sockets))
    }

    /// Reads the objects that may have dropped the packets of new rows.
    fn read_candidates(&mut self) {
        if self.tally.rows.len() <= self.rows_read {
            return;
        }
        self.rows_read = self.tally.rows.len();
        for (key, row) in &self.tally.rows {
            self.culprits.read_counters(key);
            if self.may_trace && self.culprits.trace(key, row) {
                self.audience.notice(&Notice::tracing(key.netns.as_deref()));
            }
        }
    }

    /// Reads the objects of new rows, and reports if it is time.
    fn catch_up(&mut self) {
        self.read_candidates();
        self.report_so_far();
    }

    fn report_so_far(&mut self) {
        if !self.audience.is_live() || self.reported.elapsed() < REPORT_EVERY {
            return;
        }
        self.reported = Instant::now();
        let differences = self.differences(false).unwrap_or_default();
        let report = LossReport::new(&self.tally, &differences, &PacketAccount::default(), &mut self.known);
        self.audience.report(&report);
    }
}

impl Writer for Search<'_> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let (tally, no_losses_too) = (&mut self.tally, self.no_losses_too);
        self.packets.each(blocks.bytes(), |packet, _| {
            tally.count(packet, no_losses_too);
        });
        let pressure = match &mut self.file {
            Some(file) => file.write(blocks)?,
            None => Pressure::Idle,
        };
        self.catch_up();
        Ok(pressure)
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.catch_up();
        match &mut self.file {
            Some(file) => file.flush(),
            None => Ok(Pressure::Idle),
        }
    }

    fn due(&self) -> Option<Instant> {
        self.file.as_ref().and_then(|file| file.due())
    }

    fn delay(&self) -> Duration {
        UNWATCHED
    }

    fn finish(&mut self) -> WriteOutcome {
        let file = self.file.as_mut();
        file.map_or_else(WriteOutcome::default, |file| file.finish())
    }
}
