//! The interfaces that a capture is for: as they were named, all of them for `any`, and the list of them that -D shows.

use std::collections::HashSet;
use std::process::ExitCode;

use serde::Serialize;
use trawl_kernel::interface::Interface;
use trawl_kernel::netlink::{Link, Netlink};
use trawl_kernel::netns::{self, Namespace};
use trawl_kernel::{Error, Result, names};
use trawl_tap::capture_site::CaptureSite;
use trawl_tap::options::Options;
use trawl_tap::select::select;

use super::Args;
use super::pod::PodArgs;
use crate::json;
use crate::terminal::write_out;

/// tcpdump's name for all interfaces.
const ANY: &str = "any";
const IFF_UP: u32 = 1;

pub(crate) fn find(args: &Args) -> Result<Vec<CaptureSite>> {
    let mut sites = Vec::new();
    for text in &args.interfaces {
        if args.names_ports() {
            sites.push(trawl_tap::dpdk::find(text)?);
            continue;
        }
        if args.names_devices() {
            sites.push(trawl_tap::pcap::find(text, args.netns.as_deref())?);
            continue;
        }
        let Some(pattern) = Pattern::of(text, args.netns.as_deref()) else {
            let name = by_number(text, args.netns.as_deref())?;
            let text = name.as_ref().unwrap_or(text);
            sites.push(CaptureSite::find(text, args.netns.as_deref())?);
            continue;
        };
        let before = sites.len();
        sites.extend(pattern.sites(&HashSet::new(), &Unchanged::default())?);
        if sites.len() == before && pattern.name == ANY {
            return Err(
                Error::failed("cannot capture on any interface", "none is up here")
                    .fix("ip link set dev IF up"),
            );
        }
        if sites.len() == before {
            let what = format!("cannot capture on {text}");
            return Err(Error::failed(what, "no interface has such a name")
                .fix("trawl capture -D lists them"));
        }
    }
    for name in args.pod.interfaces()? {
        sites.push(CaptureSite::find(&name, None)?);
    }
    // One that two patterns name is captured once.
    let mut known = HashSet::new();
    sites.retain(|site| !site.one_of_any || known.insert(site.label.clone()));
    Ok(sites)
}

/// The interface whose number in the list of -D is named, as tcpdump takes it, unless one has that number as its name.
fn by_number(text: &str, netns: Option<&str>) -> Result<Option<String>> {
    let (namespace, name) = netns::split_place(text, netns);
    let Ok(index) = name.parse::<u32>() else {
        return Ok(None);
    };
    let links = links_in(namespace)?;
    let is_name = links.iter().any(|link| link.name == name);
    let found = links.into_iter().find(|link| link.index == index);
    let before = &text[..text.len() - name.len()];
    Ok(found
        .filter(|_| !is_name)
        .map(|link| format!("{before}{}", link.name)))
}

/// What is meant by a name that stands for several interfaces.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    namespace: Option<String>,
    name: String,
    /// Interfaces are called by their namespace too.
    is_prefixed: bool,
}

impl Pattern {
    fn of(text: &str, netns: Option<&str>) -> Option<Self> {
        let (namespace, name) = netns::split_place(text, netns);
        let is_one = name == ANY || is_pattern(name) || namespace.is_some_and(is_pattern);
        is_one.then(|| Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            is_prefixed: text.contains(':'),
        })
    }

    /// Those among the interfaces that are named.
    pub fn all(args: &Args) -> Vec<Self> {
        if args.names_ports() || args.names_devices() {
            return Vec::new();
        }
        let names = args.interfaces.iter();
        names
            .filter_map(|text| Self::of(text, args.netns.as_deref()))
            .collect()
    }

    /// Whether it stands for interfaces of several network namespaces.
    pub fn spans_namespaces(&self) -> bool {
        self.namespace.as_deref().is_some_and(is_pattern)
    }

    /// The interfaces that match, without those known by label and index, and without those of namespaces where nothing has
    /// changed.
    pub fn sites(
        &self,
        known: &HashSet<(&str, u32)>,
        unchanged: &Unchanged,
    ) -> Result<Vec<CaptureSite>> {
        let mut sites = Vec::new();
        for name in namespaces(self.namespace.as_deref()) {
            if unchanged.has(name.as_deref()) {
                continue;
            }
            let matching = |link: &&Link| match self.name.as_str() {
                ANY => link.flags & IFF_UP != 0,
                pattern => names::matches(pattern, &link.name),
            };
            let namespace = name.as_deref().map(Namespace::open).transpose();
            let links = namespace.and_then(|namespace| {
                let links = Netlink::open(namespace.as_ref())?.links()?;
                Ok((namespace, links))
            });
            let (namespace, links) = match links {
                Ok(found) => found,
                // One that went away just now is none of all.
                Err(_) if self.spans_namespaces() => continue,
                Err(error) => return Err(error),
            };
            for link in links.iter().filter(matching) {
                let label = match &name {
                    Some(name) if self.is_prefixed => format!("{name}:{}", link.name),
                    _ => link.name.clone(),
                };
                if known.contains(&(label.as_str(), link.index)) {
                    continue;
                }
                if let Ok(interface) = Interface::find(namespace.as_ref(), &link.name) {
                    sites.push(CaptureSite {
                        label,
                        namespace: namespace.clone(),
                        interface,
                        one_of_any: true,
                    });
                }
            }
        }
        Ok(sites)
    }
}

/// Namespaces where no interface has appeared, by their identities.
#[derive(Debug, Default)]
pub(super) struct Unchanged {
    here: bool,
    others: HashSet<(u64, u64)>,
}

impl Unchanged {
    fn new(namespaces: &[Option<Namespace>]) -> Self {
        Self {
            here: namespaces.contains(&None),
            others: namespaces
                .iter()
                .flatten()
                .map(Namespace::identity)
                .collect(),
        }
    }

    /// `None` is the present one.
    fn has(&self, name: Option<&str>) -> bool {
        match name {
            None => self.here,
            Some(name) => {
                netns::identity_of(name).is_some_and(|identity| self.others.contains(&identity))
            }
        }
    }
}

/// What a capture joins while it goes on.
#[derive(Debug)]
pub(super) struct Wanted {
    patterns: Vec<Pattern>,
    pod: PodArgs,
    /// The interfaces of the pods, when they were last asked for.
    of_pods: Option<Vec<String>>,
}

impl Wanted {
    pub fn new(args: &Args) -> Self {
        Self {
            patterns: Pattern::all(args),
            pod: args.pod.clone(),
            of_pods: None,
        }
    }

    /// Interfaces that match and that are not known yet.
    pub fn appeared(
        &mut self,
        known: &[CaptureSite],
        unchanged: &[Option<Namespace>],
    ) -> Vec<CaptureSite> {
        let unchanged = Unchanged::new(unchanged);
        let identities: HashSet<(&str, u32)> = known
            .iter()
            .map(|site| (site.label.as_str(), site.interface.index))
            .collect();
        let mut found: Vec<CaptureSite> = self
            .patterns
            .iter()
            // What cannot be listed now is listed the next time.
            .flat_map(|pattern| pattern.sites(&identities, &unchanged).unwrap_or_default())
            .collect();
        let labels: HashSet<&str> = known.iter().map(|site| site.label.as_str()).collect();
        found.extend(self.pods_that_came_back(&labels));
        let mut labels = HashSet::new();
        found.retain(|site| labels.insert(site.label.clone()));
        found
    }

    /// A pod that is started again has other interfaces. The runtime is asked as long as one is missing.
    fn pods_that_came_back(&mut self, known: &HashSet<&str>) -> Vec<CaptureSite> {
        let is_known = |name: &String| known.contains(name.as_str());
        if self.pod.pods.is_empty()
            || self
                .of_pods
                .as_ref()
                .is_some_and(|names| !names.is_empty() && names.iter().all(is_known))
        {
            return Vec::new();
        }
        let names = self.pod.interfaces_now();
        let missing = names.iter().filter(|name| !is_known(name));
        let found = missing.filter_map(|name| CaptureSite::find(name, None).ok());
        let found = found.collect();
        self.of_pods = Some(names);
        found
    }
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// The namespaces that are meant: `None` is the present one.
fn namespaces(wanted: Option<&str>) -> Vec<Option<String>> {
    match wanted {
        Some(pattern) if is_pattern(pattern) => {
            let named = netns::list().into_iter();
            named
                .filter(|name| names::matches(pattern, name))
                .map(Some)
                .collect()
        }
        other => vec![other.map(str::to_owned)],
    }
}

fn links_in(namespace: Option<&str>) -> Result<Vec<Link>> {
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
    /// What a capture without --tap would use.
    taps: Vec<&'static str>,
    /// Why no tap can be used without more options.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
}

/// Shows the interfaces of a network namespace, and the taps that captures with these options would use.
pub(crate) fn list(netns: Option<&str>, as_json: bool, options: &Options) -> Result<ExitCode> {
    let mut rows = Vec::new();
    for link in links_in(netns)? {
        let Ok(site) = CaptureSite::find(&link.name, netns) else {
            continue;
        };
        let selection = select(&site, options);
        let (taps, refusal) = match selection {
            Ok(selection) => (selection.taps.iter().map(|tap| tap.name()).collect(), None),
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
    let mut text = format!(
        "{:>5}  {:<15}  {:<5}  {:<12}  {:>8}  tap\n",
        "index", "interface", "state", "driver", "xdp id"
    );
    for row in &rows {
        let taps = match &row.refusal {
            Some(why) => format!("none: {why}"),
            None => row.taps.join(", "),
        };
        text.push_str(&format!(
            "{:>5}  {:<15}  {:<5}  {:<12}  {:>8}  {taps}\n",
            row.index,
            row.name,
            if row.up { "up" } else { "down" },
            row.driver.as_deref().unwrap_or("-"),
            row.xdp_program
                .map_or_else(|| "-".to_owned(), |id| id.to_string()),
        ));
    }
    write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}
