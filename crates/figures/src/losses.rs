//! Lost packets since the command began, under the names that `trawl why` gives them: the kernel's drops, its counters
//! of drops without a packet, and losses by XDP.

use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_capture::taps::drop::{CountedDrop, DropWatch};
use trawl_sys::Result;
use trawl_sys::netlink::counters::{self, CounterKey};
use trawl_sys::netns::{self, Namespace};
use trawl_view::why::{hook, reason};

use crate::connections::Connections;
use crate::counters::NamespaceInterfaces;
use crate::processes::Processes;
use crate::series::{Labelled, Labels, OTHER, Series};
use crate::totals::UNKNOWN;
use crate::{Notice, OnNotice};
use trawl_explain::why;
use trawl_explain::why::counted::{Counted, CountedLoss};
use trawl_explain::why::report::{error_text, event_name, event_verdict, known_counters, mode};

/// Interval at which counters are read: some drivers need long to read theirs.
const COUNTERS_EVERY: Duration = Duration::from_secs(5);
const NAMESPACES_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, Serialize)]
pub struct Lost {
    pub drops: Vec<Labelled>,
    /// Drops that happened while another one was counted.
    pub drops_missed: u64,
    /// Counters of the kernel and of drivers that increased.
    pub kernel_counters: Vec<Labelled>,
    /// Packets that XDP lost without a socket buffer.
    pub xdp_losses: Vec<Labelled>,
}

#[derive(Debug)]
pub struct Losses {
    watch: Option<DropWatch>,
    counted: Counted,
    /// `None`: the whole machine.
    selected: Option<Vec<NamespaceInterfaces>>,
    /// The names of this command's own namespace among counters and drops, which metrics leave out.
    own: Vec<String>,
    drops: Series,
    read: Option<Instant>,
    searched: Instant,
    lost: Lost,
}

impl Losses {
    /// Begins to count. Drops of processes are counted separately if processes are counted, and lost segments are noted
    /// for the measures of connections.
    pub fn attach(
        selected: Option<Vec<NamespaceInterfaces>>,
        processes: Option<&Processes>,
        connections: Option<&Connections>,
        on_notice: OnNotice,
        report_counters: &mut dyn FnMut(&why::Notice),
    ) -> Result<Self> {
        let owners = processes.map(Processes::owners);
        let watch = match DropWatch::attach(owners, connections.map(Connections::watch)) {
            Ok(watch) => {
                for notice in &watch.notices {
                    on_notice(&Notice::DropsMisjudged { reason: notice.to_string() });
                }
                Some(watch)
            }
            Err(error) => {
                on_notice(&Notice::DropsNotCounted { error: error.to_string() });
                None
            }
        };
        let current = Namespace::current()?;
        let all = selected.iter().flatten();
        let namespaces = all.map(|one| one.namespace.clone().unwrap_or_else(|| current.clone()));
        Ok(Self {
            watch,
            counted: Counted::new(&[], namespaces.collect(), report_counters)?,
            selected,
            own: names_of(&current),
            drops: Series::default(),
            read: None,
            searched: Instant::now(),
            lost: Lost::default(),
        })
    }

    /// Adds the losses since the last call, and returns all losses if any may have changed.
    pub fn update(&mut self, mut processes: Option<&mut Processes>) -> Result<Option<Lost>> {
        let mut has_changed = false;
        if let Some(mut watch) = self.watch.take() {
            let taken = watch.take()?;
            processes.iter_mut().for_each(|processes| processes.refresh());
            for (drop, packets) in taken {
                has_changed |= packets > 0;
                if let Some(drop) = drop {
                    self.add(&drop, packets, processes.as_deref_mut());
                } else if packets > 0 {
                    let labels = drop_labels(OTHER, [OTHER; 4].map(str::to_owned));
                    self.drops.add(labels, packets);
                }
            }
            let missed = watch.missed();
            has_changed |= missed > 0;
            self.lost.drops_missed += missed;
            self.watch = Some(watch);
        }
        if self.read.is_none_or(|read| read.elapsed() >= COUNTERS_EVERY) {
            self.read = Some(Instant::now());
            self.add_counters()?;
            has_changed = true;
        }
        if !has_changed {
            return Ok(None);
        }
        self.lost.drops = self.drops.all();
        Ok(Some(self.lost.clone()))
    }

    /// Returns the name of a drop's reason.
    pub fn reason(&self, number: u32, location: u64) -> String {
        let named = self.watch.as_ref().map(|watch| watch.named(number, location));
        named.map_or(UNKNOWN.to_owned(), |(name, function)| reason(&name, &function).to_owned())
    }

    /// Returns the number of drops that were not counted; `None` if none are.
    pub fn missed(&self) -> Option<u64> {
        self.watch.as_ref().map(|_| self.lost.drops_missed)
    }

    fn add(&mut self, drop: &CountedDrop, packets: u64, processes: Option<&mut Processes>) {
        let netns = self.netns(drop.netns.as_deref());
        let interface = drop.interface.as_deref();
        if !self.includes(&netns, interface) {
            return;
        }
        let at = hook(&drop.reason, drop.stack.iter().map(String::as_str));
        let named = reason(&drop.reason, &drop.function);
        let mut labels = drop_labels(
            named,
            [drop.function.clone(), netns, interface.unwrap_or_default().to_owned(), at.unwrap_or_default().to_owned()],
        );
        if let Some(processes) = processes {
            let known = drop.process.map(|id| processes.names().name_of(id)).unwrap_or_default();
            labels.push(("process", known.name.unwrap_or_default()));
            labels.push(("container", known.container.unwrap_or_default()));
        }
        self.drops.add(labels, packets);
    }

    fn add_counters(&mut self) -> Result<()> {
        if self.searched.elapsed() >= NAMESPACES_EVERY {
            self.searched = Instant::now();
            self.counted.find_namespaces();
        }
        let found = self.counted.differences(false)?;
        let mut series = Series::default();
        let known: Vec<&str> = known_counters().map(|one| one.name).collect();
        let counts = |key: &&CounterKey| key.device.is_some() || known.contains(&key.name.as_str());
        for key in found.counters.keys().filter(counts) {
            let netns = self.netns(key.netns.as_deref());
            let device = key.device.as_deref();
            if self.includes(&netns, device) {
                let labels = vec![
                    ("counter", key.name.clone()),
                    ("netns", netns),
                    ("interface", device.unwrap_or_default().to_owned()),
                ];
                series.add(labels, found.counters[key]);
            }
        }
        self.lost.kernel_counters = series.all();
        let mut series = Series::default();
        for loss in &found.events {
            let netns = self.netns(loss.netns.as_deref());
            if self.includes(&netns, loss.interface.as_deref()) {
                series.add(xdp_labels(loss, netns), loss.packets);
            }
        }
        self.lost.xdp_losses = series.all();
        Ok(())
    }

    /// Returns a namespace's label: empty for the own one.
    fn netns(&self, name: Option<&str>) -> String {
        let name = name.unwrap_or_default();
        if self.own.iter().any(|own| own == name) { String::new() } else { name.to_owned() }
    }

    fn includes(&self, netns: &str, interface: Option<&str>) -> bool {
        let Some(selected) = &self.selected else {
            return true;
        };
        selected.iter().filter(|one| one.netns == netns).any(|one| match interface {
            Some(interface) => one.includes(interface),
            None => one.only.is_empty(),
        })
    }
}

/// Returns all names of a namespace: those in /run/netns, its inode number, and its label among the counters.
fn names_of(namespace: &Namespace) -> Vec<String> {
    let identity = namespace.identity();
    let mut names = netns::list();
    names.retain(|name| netns::identity_of(name) == Some(identity));
    names.push(identity.1.to_string());
    names.push(counters::label(namespace));
    names
}

fn drop_labels(reason: &str, [function, netns, interface, hook]: [String; 4]) -> Labels {
    vec![("reason", reason.to_owned()), ("where", function), ("netns", netns), ("interface", interface), ("hook", hook)]
}

fn xdp_labels(loss: &CountedLoss, netns: String) -> Labels {
    let event = &loss.event;
    let number = |number: u32| match number {
        0 => String::new(),
        number => number.to_string(),
    };
    vec![
        ("event", event_name(&event.what).to_owned()),
        ("netns", netns),
        ("interface", loss.interface.clone().unwrap_or_default()),
        ("id", number(event.program)),
        ("verdict", event_verdict(&event.what)),
        ("error", event.what.errno().map_or(String::new(), error_text)),
        ("mode", mode(event).to_owned()),
        ("where", event.function.clone()),
    ]
}
