//! The interfaces that a plan's sources name, and those that join later.

use std::collections::HashSet;
use std::sync::Arc;

use trawl_plan::TapChoice;
use trawl_plan::pod::Pod;
use trawl_plan::sources::{ANY, Pattern, Sources};
use trawl_sys::names::is_pattern;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netlink::{LinkRecord, Netlink};
use trawl_sys::netns::{self, Namespace};
use trawl_sys::{Error, Result, names};

use crate::capture_site::CaptureSite;

/// Finds the named interfaces, and adds the interfaces of the pods.
pub fn find(sources: &Sources, tap: TapChoice, of_pods: Vec<(String, Arc<Pod>)>) -> Result<Vec<CaptureSite>> {
    let netns = sources.netns.as_deref();
    let mut sites = Vec::new();
    for text in &sources.names {
        match tap {
            TapChoice::Dpdk => {
                sites.push(CaptureSite::of_dpdk(text)?);
                continue;
            }
            TapChoice::Pcap => {
                sites.push(CaptureSite::of_library(text, netns)?);
                continue;
            }
            _ => {}
        }
        let Some(pattern) = Pattern::of(text, netns) else {
            let name = by_number(text, netns)?;
            let text = name.as_ref().unwrap_or(text);
            sites.push(CaptureSite::find(text, netns)?);
            continue;
        };
        let before = sites.len();
        sites.extend(sites_of(&pattern, &HashSet::new(), &Unchanged::default())?);
        if sites.len() == before && pattern.name == ANY {
            return Err(
                Error::failed("cannot capture on any interface", "no interface is up").fix("ip link set dev IF up")
            );
        }
        if sites.len() == before {
            let what = format!("cannot capture on {text}");
            return Err(Error::failed(what, "no interface has such a name").fix("trawl capture -D lists them"));
        }
    }
    for (name, pod) in of_pods {
        sites.push(CaptureSite { pod: Some(pod), ..CaptureSite::find(&name, None)? });
    }
    // An interface that matches two patterns is captured once.
    let mut known = HashSet::new();
    sites.retain(|site| !site.one_of_any || known.insert(site.label.clone()));
    Ok(sites)
}

/// Finds interfaces that match a pattern and are not yet known. The unchanged namespaces contain no new ones.
pub fn appeared(
    sources: &Sources,
    tap: TapChoice,
    known: &[CaptureSite],
    unchanged: &[Option<Namespace>],
) -> Vec<CaptureSite> {
    let unchanged = Unchanged::new(unchanged);
    let identities: HashSet<(&str, u32)> =
        known.iter().map(|site| (site.label.as_str(), site.interface.index)).collect();
    sources
        .patterns(tap)
        // A namespace that cannot be listed now is listed the next time.
        .flat_map(|pattern| sites_of(&pattern, &identities, &unchanged).unwrap_or_default())
        .collect()
}

const IFF_UP: u32 = 1;

/// Returns the interface with this number in the list of -D, like tcpdump, unless an interface has the number as its
/// name.
fn by_number(text: &str, netns: Option<&str>) -> Result<Option<String>> {
    let (namespace, name) = netns::split_namespace(text, netns);
    let Ok(index) = name.parse::<u32>() else {
        return Ok(None);
    };
    let links = links_in(namespace)?;
    let is_name = links.iter().any(|link| link.name == name);
    let found = links.into_iter().find(|link| link.index == index);
    let before = &text[..text.len() - name.len()];
    Ok(found.filter(|_| !is_name).map(|link| format!("{before}{}", link.name)))
}

/// Returns the matching interfaces, except for known ones (by label and index) and for unchanged namespaces.
fn sites_of(pattern: &Pattern, known: &HashSet<(&str, u32)>, unchanged: &Unchanged) -> Result<Vec<CaptureSite>> {
    let mut sites = Vec::new();
    for name in namespaces(pattern.namespace.as_deref()) {
        if unchanged.has(name.as_deref()) {
            continue;
        }
        let matching = |link: &&LinkRecord| match pattern.name.as_str() {
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
            // A namespace deleted just now has no interfaces.
            Err(_) if pattern.spans_namespaces() => continue,
            Err(error) => return Err(error),
        };
        for link in links.iter().filter(matching) {
            let label = match &name {
                Some(name) if pattern.is_prefixed => format!("{name}:{}", link.name),
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
                    pod: None,
                    lent: None,
                });
            }
        }
    }
    Ok(sites)
}

/// Namespaces in which no interface has appeared, by identity.
#[derive(Debug, Default)]
struct Unchanged {
    own: bool,
    others: HashSet<(u64, u64)>,
}

impl Unchanged {
    fn new(namespaces: &[Option<Namespace>]) -> Self {
        Self { own: namespaces.contains(&None), others: namespaces.iter().flatten().map(Namespace::identity).collect() }
    }

    /// Returns true for an unchanged namespace; `None` is the present one.
    fn has(&self, name: Option<&str>) -> bool {
        match name {
            None => self.own,
            Some(name) => netns::identity_of(name).is_some_and(|identity| self.others.contains(&identity)),
        }
    }
}

/// Returns the matching namespaces: `None` is the present one.
fn namespaces(wanted: Option<&str>) -> Vec<Option<String>> {
    match wanted {
        Some(pattern) if is_pattern(pattern) => {
            let named = netns::list().into_iter();
            named.filter(|name| names::matches(pattern, name)).map(Some).collect()
        }
        other => vec![other.map(str::to_owned)],
    }
}

fn links_in(namespace: Option<&str>) -> Result<Vec<LinkRecord>> {
    let namespace = namespace.map(Namespace::open).transpose()?;
    Netlink::open(namespace.as_ref())?.links()
}
