//! Where a packet is looked for on its way: namespaces, interfaces, and those with XDP programs.

use trawl_bpf::object;
use trawl_sys::Result;
use trawl_sys::interface::Interface;
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{self, Look, Namespace};

use crate::capture_site::CaptureSite;
use crate::options::Drops;

/// Each costs twenty links of netfilter, and each interface two of tc.
const MOST_NAMESPACES: usize = 64;
const MOST_INTERFACES: usize = 512;

/// Places that are looked at for packets on their way.
#[derive(Clone, Debug, Default)]
pub struct Along {
    /// Only packets that are seen first at one of these interfaces.
    pub entries: Vec<CaptureSite>,
    /// Namespaces with netfilter's hooks, and interfaces with tc.
    pub namespaces: Vec<Namespace>,
    pub interfaces: Vec<CaptureSite>,
    /// Those that were too many.
    pub namespaces_left_out: usize,
    pub interfaces_left_out: usize,
}

impl Along {
    /// Looks at all namespaces that can be found, or at those that are named.
    pub fn find(asked: &Drops) -> Result<Self> {
        // An interface without a namespace in its name is the one namespace's, if there is just one.
        let namespace = match &asked.namespaces[..] {
            [one] if one != netns::CURRENT => Some(one.as_str()),
            _ => None,
        };
        let entry = |text: &String| CaptureSite::find(text, namespace);
        let entries = asked.entries.iter().map(entry).collect::<Result<_>>()?;
        let mut namespaces = Vec::new();
        if asked.within.is_empty() {
            Look::default().find(|one| {
                namespaces.push(one.clone());
                false
            });
        } else {
            for name in &asked.within {
                namespaces.push(Namespace::open(name)?);
            }
        }
        let namespaces_left_out = namespaces.len().saturating_sub(MOST_NAMESPACES);
        namespaces.truncate(MOST_NAMESPACES);
        let mut interfaces: Vec<CaptureSite> = namespaces.iter().flat_map(interfaces_of).collect();
        let interfaces_left_out = interfaces.len().saturating_sub(MOST_INTERFACES);
        interfaces.truncate(MOST_INTERFACES);
        Ok(Self {
            entries,
            namespaces,
            interfaces,
            namespaces_left_out,
            interfaces_left_out,
        })
    }

    /// The interfaces that have an XDP program.
    pub fn with_programs(&self) -> Vec<CaptureSite> {
        if !object::can_cast() {
            return Vec::new();
        }
        let has_program = |site: &&CaptureSite| {
            let found = site.interface.xdp_attached(site.namespace.as_ref());
            matches!(found, Ok(Some(_)))
        };
        let found = self.interfaces.iter().filter(has_program);
        found.cloned().collect()
    }
}

/// None where the namespace went away meanwhile.
fn interfaces_of(namespace: &Namespace) -> Vec<CaptureSite> {
    let links = Netlink::open(Some(namespace)).and_then(|mut netlink| netlink.links());
    let site = |name: String| {
        let interface = Interface::find(Some(namespace), &name).ok()?;
        Some(CaptureSite {
            label: match namespace.name() {
                Some(one) => format!("{one}:{name}"),
                None => name,
            },
            namespace: Some(namespace.clone()),
            interface,
            one_of_any: true,
        })
    };
    let names = links.unwrap_or_default().into_iter().map(|link| link.name);
    names.filter_map(site).collect()
}
