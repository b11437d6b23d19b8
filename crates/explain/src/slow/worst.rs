//! The connection with the most important verdict now, for live views.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use trawl_bpf::process_watch::FrequentPrograms;
use trawl_capture::process::{self, ProcessStage, cgroups};
use trawl_capture::taps::drop::DropWatch;
use trawl_plan::options::{ProcessDetail, ProcessPlan};
use trawl_slow::drops::Dropped;
pub use trawl_slow::sockets::SocketFinding;
use trawl_sys::{Result, clock};
use trawl_view::why::{NETFILTER, reason};

use super::chosen::Chosen;
use super::segments::{Reasons, dropped};
use super::sockets::Sockets;

/// Time for which a verdict about a connection remains that says nothing more, or has ended.
const KEPT: Duration = Duration::from_secs(10);

/// The measures of the sockets, and the counter of drops that notes lost segments.
#[derive(Debug)]
pub struct Worst {
    sockets: Sockets,
    processes: ProcessStage,
    drops: DropWatch,
    reasons: Reasons,
    chosen: Chosen<'static>,
    found: Option<SocketFinding>,
}

impl Worst {
    /// Begins the measures of connections in the namespaces with these numbers.
    pub fn attach(namespaces: HashSet<u32>) -> Result<Self> {
        let frequent = FrequentPrograms { soft_interrupts: false, uses: false };
        let processes = Rc::new(process::attach(&ProcessPlan::default(), cgroups()?, frequent)?);
        let sockets = Sockets::attach(&processes)?;
        Ok(Self {
            drops: DropWatch::attach(None, Some(sockets.watch()))?,
            sockets,
            processes: ProcessStage::new(processes, ProcessDetail::Plain),
            reasons: Reasons::default(),
            chosen: Chosen { namespaces: Some(namespaces), ..Chosen::default() },
            found: None,
        })
    }

    /// Returns the time of the next look.
    pub fn due(&self) -> Instant {
        self.sockets.due()
    }

    /// Looks at the sockets, and judges them.
    pub fn look(&mut self) -> Result<()> {
        self.processes.refresh();
        for segment in self.sockets.look()? {
            let named = |number, location| {
                let (name, function) = self.drops.named(number, location);
                reason(&name, &function).to_owned()
            };
            let cause = self.reasons.number(&segment, named);
            let is_filtered = self.reasons.name(cause) == NETFILTER;
            let place = segment.ends.netns.to_string();
            self.sockets.drops.add(&Dropped { is_filtered, ..dropped(&segment, &place, cause) });
        }
        self.sockets.forget_before(clock::monotonic().saturating_sub(KEPT.as_nanos() as u64));
        let are_incomplete = self.sockets.lost_events() > 0;
        let mut named = |cause| self.reasons.name(cause).to_owned();
        let judged = self.sockets.judge(&mut self.chosen, are_incomplete, 0, &mut named)?;
        self.found = judged.findings.sorted().into_iter().next();
        Ok(())
    }

    /// Returns the most important verdict at the last look.
    pub fn found(&self) -> Option<&SocketFinding> {
        self.found.as_ref()
    }
}
