//! Selection of packets by properties outside their bytes: time, interface, hook and verdict.

use clap::ValueEnum;
use trawl_front::bound::Bound;
use trawl_packet::pcapng::{Direction, Verdict};
use trawl_packet::verdict::{VerdictKind, VerdictSet};
use trawl_sys::{Error, Result, clock, names};
use trawl_view::record::PacketView;

/// The end of an XDP program, or the side of the stack, at which a packet was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum End {
    Entry,
    Exit,
    Ingress,
    Egress,
}

impl End {
    fn is_of(self, hook: &str) -> bool {
        let word = match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        };
        hook.split_whitespace().any(|part| part == word)
    }
}

/// The verdicts of a list, by the names of XDP programs and tc programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdicts {
    xdp: Option<VerdictSet>,
    tc: Option<VerdictSet>,
}

impl Verdicts {
    pub fn parse(list: &str) -> Result<Self> {
        let mut named: [Vec<&str>; 2] = [Vec::new(), Vec::new()];
        for name in list.split(',').map(str::trim) {
            let kinds = [VerdictKind::Xdp, VerdictKind::Tc];
            let known = kinds.map(|kind| kind.action(name).is_some());
            if known == [false, false] {
                let error = VerdictSet::parse(VerdictKind::Xdp, name).err();
                let why = error.map_or_else(String::new, |error| error.to_string());
                return Err(Error::usage("cannot understand --verdict", why));
            }
            for (names, known) in named.iter_mut().zip(known) {
                names.extend(known.then_some(name));
            }
        }
        let [xdp, tc] = named;
        Ok(Self {
            xdp: VerdictSet::parse(VerdictKind::Xdp, &xdp.join(",")).ok(),
            tc: VerdictSet::parse(VerdictKind::Tc, &tc.join(",")).ok(),
        })
    }

    fn contain(&self, verdict: Verdict<'_>) -> bool {
        match verdict {
            Verdict::Xdp(action) => self.xdp.is_some_and(|set| set.contains(action)),
            Verdict::Tc(action) => self.tc.is_some_and(|set| set.contains(action)),
            Verdict::Other { .. } => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(super) verdicts: Option<Verdicts>,
    pub(super) at: Option<End>,
    pub(super) interfaces: Vec<String>,
    pub(super) unwanted_direction: Option<Direction>,
    pub(super) bounds: (Option<Bound>, Option<Bound>),
    pub(super) utc_offset: fn(i64) -> i32,
    /// The bounds in nanoseconds since 1970, known once the first packet is.
    pub(super) times: Option<(u64, u64)>,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            verdicts: None,
            at: None,
            interfaces: Vec::new(),
            unwanted_direction: None,
            bounds: (None, None),
            utc_offset: clock::local_offset(),
            times: None,
        }
    }
}

impl Selection {
    /// Returns the option about a property that pcap files do not store.
    pub fn only_in_pcapng(&self) -> Option<&'static str> {
        let options = [
            (self.verdicts.is_some(), "--verdict"),
            (self.at.is_some(), "--at"),
            (!self.interfaces.is_empty(), "--interface"),
        ];
        options.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
    }

    /// Returns true if any option needs more than the packet's bytes.
    pub fn wants_more_than_bytes(&self) -> bool {
        let (from, to) = &self.bounds;
        self.verdicts.is_some()
            || self.at.is_some()
            || !self.interfaces.is_empty()
            || self.unwanted_direction.is_some()
            || from.is_some()
            || to.is_some()
    }

    /// Returns the earliest time and the end, in nanoseconds since 1970. `first` is the time of the first packet.
    pub fn span(&self, first: u64) -> (u64, u64) {
        let (from, to) = self.bounds;
        let absolute = |bound: Bound| bound.absolute(first, clock::wall(), self.utc_offset);
        (from.map_or(0, absolute), to.map_or(u64::MAX, absolute))
    }

    /// Returns true if the times exclude packets of a file regardless of the other files.
    pub fn can_leave_out(&self, files: usize) -> bool {
        let (from, to) = self.bounds;
        let bounds = [from, to].into_iter().flatten();
        let by_first = |bound| matches!(bound, Bound::AfterFirst(_) | Bound::TimeOfDay(_));
        bounds.clone().next().is_some() && (files == 1 || !bounds.into_iter().any(by_first))
    }

    pub fn matches(&mut self, packet: &PacketView<'_>) -> bool {
        let (earliest, end) = match self.times {
            Some(times) => times,
            None => *self.times.insert(self.span(packet.timestamp_ns)),
        };
        let in_time = (earliest..end).contains(&packet.timestamp_ns)
            || (self.bounds.1.is_none() && packet.timestamp_ns >= earliest);
        let wanted_interface = |name: &str| {
            let mut wanted = self.interfaces.iter();
            wanted.any(|wanted| wanted == name || names::matches(wanted, name))
        };
        in_time
            && (packet.direction.is_none() || packet.direction != self.unwanted_direction)
            && (self.interfaces.is_empty() || packet.interface.is_some_and(wanted_interface))
            && self.at.is_none_or(|end| packet.hook.is_some_and(|hook| end.is_of(hook)))
            && self.verdicts.is_none_or(|verdicts| packet.verdict.is_some_and(|verdict| verdicts.contain(verdict)))
    }
}
