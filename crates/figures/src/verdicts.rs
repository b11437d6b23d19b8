//! The verdicts of XDP programs since the command began, counted in the kernel. The bundled programs that count their
//! verdicts themselves are left out.

use serde::Serialize;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::taps::trace::counts::{self, NotCounted, ProgramAt, VerdictWatch, WatchedSite};
use trawl_program::bundled::stats::ProgramAccount;
use trawl_program::{Installed, Site};
use trawl_sys::Result;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netlink::{LinkRecord, Netlink};
use trawl_sys::netns::Namespace;

use crate::counters::{self, NamespaceInterfaces};
use crate::series::{Labelled, MOST, Series};
use crate::{Notice, OnNotice};

#[derive(Clone, Debug, Default, Serialize)]
pub struct ProgramVerdicts {
    pub program_verdicts: Vec<Labelled>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub programs_not_counted: Vec<UncountedProgram>,
}

/// A program whose verdicts are not counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UncountedProgram {
    pub interface: String,
    pub netns: String,
    pub program: String,
    pub id: u32,
    pub reason: String,
}

/// Names of the namespace and the interface, the interface's index, and IDs of the attached programs.
type Attached = (String, String, u32, Vec<u32>);

#[derive(Debug)]
pub struct Verdicts {
    selected: Vec<NamespaceInterfaces>,
    watch: VerdictWatch,
    /// The interfaces that had a program at the last check.
    attached: Vec<Attached>,
    series: Series,
    not_counted: Vec<UncountedProgram>,
    /// Set if programs were attached or detached since the last update.
    has_changed: bool,
    on_notice: OnNotice,
}

impl Verdicts {
    pub fn new(selected: Vec<NamespaceInterfaces>, on_notice: OnNotice) -> Self {
        let mut verdicts = Self {
            selected,
            watch: VerdictWatch::default(),
            attached: Vec::new(),
            series: Series::default(),
            not_counted: Vec::new(),
            has_changed: false,
            on_notice,
        };
        verdicts.watch_attached();
        verdicts
    }

    /// Adds the verdicts since the last call, and returns all if any changed. Programs that were attached meanwhile are
    /// counted from now on.
    pub fn update(&mut self) -> Result<Option<ProgramVerdicts>> {
        self.watch_attached();
        let taken = self.watch.take()?;
        if !std::mem::take(&mut self.has_changed) && taken.is_empty() {
            return Ok(None);
        }
        for (at, verdict, packets) in taken {
            let (netns, interface) = parts(&at);
            let labels = vec![
                ("interface", interface),
                ("netns", netns),
                ("program", at.program),
                ("id", at.id.to_string()),
                ("verdict", verdict.to_owned()),
            ];
            self.series.add(labels, packets);
        }
        Ok(Some(ProgramVerdicts {
            program_verdicts: self.series.all(),
            programs_not_counted: self.not_counted.clone(),
        }))
    }

    /// Returns the interfaces with an XDP program. A removed namespace has none.
    fn with_program(&self) -> impl Iterator<Item = (&NamespaceInterfaces, LinkRecord)> {
        self.selected.iter().flat_map(|one| {
            let links = Netlink::open(one.namespace.as_ref()).and_then(|mut open| open.links());
            let links = links.unwrap_or_default().into_iter();
            links.filter(|link| !link.xdp.is_empty() && one.includes(&link.name)).map(move |link| (one, link))
        })
    }

    fn attached(&self) -> Vec<Attached> {
        let attached = |(one, link): (&NamespaceInterfaces, LinkRecord)| {
            let programs = link.xdp.iter().map(|program| program.program_id).collect();
            (one.netns.clone(), link.name, link.index, programs)
        };
        self.with_program().map(attached).collect()
    }

    /// Watches the attached programs, if they have changed since the last call.
    fn watch_attached(&mut self) {
        let attached = self.attached();
        if attached == self.attached {
            return;
        }
        self.attached = attached;
        self.has_changed = true;
        let site = |(one, link): (&NamespaceInterfaces, LinkRecord)| {
            let namespace = one.namespace.clone();
            let interface = Interface::find(namespace.as_ref(), &link.name).ok()?;
            Some(WatchedSite {
                except: counted_by_themselves(namespace.clone(), &link.name).unwrap_or_default(),
                site: CaptureSite {
                    label: counters::label(&one.netns, &link.name),
                    namespace,
                    interface,
                    one_of_any: false,
                    pod: None,
                    lent: None,
                },
            })
        };
        let sites: Vec<WatchedSite> = self.with_program().filter_map(site).collect();
        let mut not_counted: Vec<UncountedProgram> =
            self.watch.watch(&sites).into_iter().map(UncountedProgram::from).collect();
        not_counted.truncate(MOST);
        let is_new = |one: &&UncountedProgram| !self.not_counted.contains(one);
        let mut new = not_counted.iter().filter(is_new);
        match counts::refusal() {
            // One message suffices if the kernel refuses all.
            Some(why) if self.not_counted.is_empty() && new.next().is_some() => {
                (self.on_notice)(&Notice::VerdictsNotCounted { reason: why.to_string() });
            }
            Some(_) => {}
            None => new.for_each(|one| (self.on_notice)(&Notice::ProgramNotCounted(one.clone()))),
        }
        self.not_counted = not_counted;
    }
}

/// Returns the IDs of the bundled programs with counters on an interface.
fn counted_by_themselves(namespace: Option<Namespace>, interface: &str) -> Result<Vec<u32>> {
    let all = Installed::all(&Site::named(namespace, interface)?)?;
    let counting = all.iter().filter(|one| ProgramAccount::is_available_for(one));
    Ok(counting.map(Installed::id).collect())
}

/// Returns the names of the namespace and of the interface.
fn parts(at: &ProgramAt) -> (String, String) {
    let (netns, interface) = at.interface.rsplit_once(':').unwrap_or(("", &at.interface));
    (netns.to_owned(), interface.to_owned())
}

impl From<NotCounted> for UncountedProgram {
    fn from(one: NotCounted) -> Self {
        let (netns, interface) = parts(&one.at);
        Self { interface, netns, program: one.at.program, id: one.at.id, reason: one.why }
    }
}
