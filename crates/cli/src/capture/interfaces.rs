//! The interfaces of a capture, from its plan and from pods, including later ones; and the list for -D.

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::event::Event;
use trawl_capture::pods::{PodWatcher, Pods};
use trawl_capture::taps::for_site;
use trawl_plan::CapturePlan;
use trawl_plan::TapChoice;
use trawl_plan::pod::Pod;
use trawl_plan::sources::Sources;
use trawl_sys::Result;
use trawl_sys::netlink::{LinkRecord, Netlink};
use trawl_sys::netns::Namespace;
use trawl_view::{columns, table};

use crate::json;
use crate::terminal::write_out;
use trawl_capture::subject::Spaces;

const IFF_UP: u32 = 1;

/// Sources of interfaces that a capture joins while it runs.
#[derive(Debug)]
pub(super) struct Joining {
    sources: Sources,
    tap: TapChoice,
    pods: Option<PodWatcher>,
    /// The pod whose packets are captured on all interfaces.
    pod_on_host: Option<Arc<Pod>>,
    /// The namespaces of a command.
    spaces: Option<Arc<Spaces>>,
}

impl Joining {
    pub fn new(sources: &Sources, tap: TapChoice, spaces: Option<&Arc<Spaces>>, pods: &Pods) -> Self {
        Self {
            sources: sources.clone(),
            tap,
            pods: PodWatcher::start(sources, &pods.events),
            pod_on_host: pods.on_host.clone(),
            spaces: spaces.cloned(),
        }
    }

    /// Returns true if a command waits for its interfaces to be captured.
    pub fn is_urgent(&self) -> bool {
        self.spaces.as_ref().is_some_and(|spaces| spaces.is_urgent())
    }

    /// Returns matching interfaces that are not known yet, and reports the events of pods.
    pub fn appeared(
        &mut self,
        known: &[CaptureSite],
        unchanged: &[Option<Namespace>],
        say: &mut dyn FnMut(Event),
    ) -> Vec<CaptureSite> {
        let mut found = trawl_capture::sources::appeared(&self.sources, self.tap, known, unchanged);
        for site in &mut found {
            site.pod.clone_from(&self.pod_on_host);
        }
        let labels: HashSet<&str> = known.iter().map(|site| site.label.as_str()).collect();
        if let Some(pods) = &mut self.pods {
            let is_known = |name: &str| labels.contains(name);
            let mut interfaces = pods.interfaces(is_known, say);
            interfaces.retain(|(name, _)| !is_known(name));
            found.extend(interfaces.into_iter().filter_map(|(name, pod)| {
                Some(CaptureSite { pod: Some(pod), ..CaptureSite::find(&name, None).ok()? })
            }));
        }
        if let Some(spaces) = &self.spaces {
            found.extend(spaces.appeared(known));
        }
        let mut labels = HashSet::new();
        found.retain(|site| labels.insert(site.label.clone()));
        found
    }
}

fn links_in(namespace: Option<&str>) -> Result<Vec<LinkRecord>> {
    let namespace = namespace.map(Namespace::open).transpose()?;
    Netlink::open(namespace.as_ref())?.links()
}

/// An interface in the list.
#[derive(Debug, Serialize)]
struct Row {
    index: u32,
    name: String,
    up: bool,
    driver: Option<String>,
    /// The XDP program on it.
    xdp_program: Option<u32>,
    /// Taps of a capture without --tap.
    taps: Vec<&'static str>,
    /// Reason why no tap can be used without more options.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
}

/// Shows the interfaces of a network namespace, and the taps that captures with these options would use.
pub(crate) fn list(plan: &CapturePlan, as_json: bool) -> Result<ExitCode> {
    let netns = plan.sources.netns.as_deref();
    let options = &plan.options;
    let mut rows = Vec::new();
    for link in links_in(netns)? {
        let Ok(site) = CaptureSite::find(&link.name, netns) else {
            continue;
        };
        let (taps, refusal) = match for_site(&site, options) {
            Ok((taps, _)) => (taps.iter().map(|tap| tap.name()).collect(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        rows.push(Row {
            index: link.index,
            up: link.flags & IFF_UP != 0,
            driver: site.interface.driver.clone(),
            xdp_program: link.xdp.first().map(|found| found.program_id),
            name: link.name,
            taps,
            refusal,
        });
    }
    if as_json {
        json::print(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = columns![row: Row;
        "index" 5 row.index,
        "interface" -15 row.name,
        "state" -5 if row.up { "up" } else { "down" },
        "driver" -12 row.driver.as_deref().unwrap_or("-"),
        "xdp id" 9 row.xdp_program.map_or("-".to_owned(), |id| id.to_string()),
        "tap" -1 row.refusal.as_ref().map_or(row.taps.join(", "), |why| format!("none: {why}")),
    ];
    write_out(&table::text(&columns, rows.iter()))?;
    Ok(ExitCode::SUCCESS)
}
