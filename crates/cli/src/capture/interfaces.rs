//! The interfaces that a capture is for: as they were named, all of them for `any`, and the list of them that -D shows.

use std::collections::HashSet;
use std::process::ExitCode;

use serde::Serialize;
use trawl_kernel::netlink::{Link, Netlink};
use trawl_kernel::netns::{self, Namespace};
use trawl_kernel::{Error, Result, names};
use trawl_tap::capture_site::CaptureSite;
use trawl_tap::options::Options;
use trawl_tap::select::select;

use super::Args;
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
            sites.push(CaptureSite::find(text, args.netns.as_deref())?);
            continue;
        };
        let before = sites.len();
        sites.extend(pattern.sites(&HashSet::new())?);
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

    /// The interfaces that match, without those known by label and index.
    pub fn sites(&self, known: &HashSet<(&str, u32)>) -> Result<Vec<CaptureSite>> {
        let mut sites = Vec::new();
        for namespace in namespaces(self.namespace.as_deref()) {
            let matching = |link: &&Link| match self.name.as_str() {
                ANY => link.flags & IFF_UP != 0,
                pattern => names::matches(pattern, &link.name),
            };
            let links = match links_in(namespace.as_deref()) {
                Ok(links) => links,
                // One that went away just now is none of all.
                Err(_) if self.namespace.as_deref().is_some_and(is_pattern) => continue,
                Err(error) => return Err(error),
            };
            for link in links.iter().filter(matching) {
                let label = match &namespace {
                    Some(namespace) if self.is_prefixed => format!("{namespace}:{}", link.name),
                    _ => link.name.clone(),
                };
                if known.contains(&(label.as_str(), link.index)) {
                    continue;
                }
                if let Ok(mut site) = CaptureSite::find(&label, self.namespace.as_deref()) {
                    site.one_of_any = true;
                    sites.push(site);
                }
            }
        }
        Ok(sites)
    }
}

/// Interfaces that match and that are not known yet.
pub(super) fn appeared(patterns: &[Pattern], known: &[CaptureSite]) -> Vec<CaptureSite> {
    let known: HashSet<(&str, u32)> = known
        .iter()
        .map(|site| (site.label.as_str(), site.interface.index))
        .collect();
    let mut found: Vec<CaptureSite> = patterns
        .iter()
        // What cannot be listed now is listed the next time.
        .flat_map(|pattern| pattern.sites(&known).unwrap_or_default())
        .collect();
    let mut labels = HashSet::new();
    found.retain(|site| labels.insert(site.label.clone()));
    found
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
