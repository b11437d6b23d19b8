//! One program for many interfaces: the tables of where packets count, and the programs that look there.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use trawl_bpf::layout::{InterfaceKey, InterfacePlace, RING_MAX_POINTS, Shared, TapConfig};
use trawl_bpf::table::{NEW_ONLY, Table};
use trawl_bpf::{kernel_types, object};
use trawl_ring::{account_offset, rejected_offset};
use trawl_sys::interface::ipv4_netmask;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result, errno};

use crate::assembly::{Assembly, PointIds};
use crate::capture_site::CaptureSite;
use crate::options::{Options, TimeSource};
use crate::taps::packet::group::Groups;
use crate::taps::xdp::Seated;

/// With more sites than this, programs are shared. One that serves a single interface costs less for each packet.
const PROGRAMS_APART: usize = 16;
/// The map in bpf/include/places.h.
pub(crate) const MAP_NAME: &str = "places";

/// What is shared by the interfaces of a capture.
#[derive(Debug, Default)]
pub struct Many {
    /// Interfaces are told apart by their namespaces too.
    across_namespaces: bool,
    /// By hook, since an interface has an account at each, and by the namespace that their programs serve, if not all.
    tables: HashMap<(&'static str, Option<u32>), Rc<Table>>,
    pub(crate) xdp: Vec<(Likeness, Rc<Seated>)>,
    /// With the attach type.
    pub(crate) tc: Vec<(Likeness, u32, Arc<OwnedFd>)>,
    pub(crate) packet: Groups,
    /// How many the interfaces of the beginning are in.
    pub(crate) namespaces: usize,
    /// Those, while the capture is being attached.
    pub(crate) known: Vec<Option<Namespace>>,
    /// Programs and numbers of namespaces whose filters the warden looks after.
    pub(crate) watched: HashSet<(u32, u32)>,
}

/// What makes two programs the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Likeness {
    name: String,
    config: Vec<u8>,
    /// The namespace that it serves, if not all.
    namespace: Option<u32>,
    link_type: u16,
    netmask: Option<Ipv4Addr>,
}

/// An interface in a table: what is seen there counts as long as this is held.
#[derive(Debug)]
pub(crate) struct TableEntry {
    table: Rc<Table>,
    key: Vec<u8>,
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        // Its packets would count at the account that it had; nothing worse comes of it.
        let _ = self.table.delete(&self.key);
    }
}

/// How far into the kernel's structures lies what leads to a device's namespace.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    queue_info: u32,
    device_of_queue: u32,
    device_of_buffer: u32,
    namespace: u32,
    number: u32,
}

impl Offsets {
    /// `None` where programs cannot look there.
    fn find() -> Option<Self> {
        static FOUND: OnceLock<Option<Offsets>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let offset = |structure, member| kernel_types::offset(structure, member).ok()?;
            object::can_cast().then_some(())?;
            Some(Self {
                queue_info: offset("xdp_buff", "rxq")?,
                device_of_queue: offset("xdp_rxq_info", "dev")?,
                device_of_buffer: offset("sk_buff", "dev")?,
                namespace: offset("net_device", "nd_net")?,
                number: offset("net", "ns")? + offset("ns_common", "inum")?,
            })
        })
    }
}

/// Which structure a hook's programs start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Xdp,
    SocketBuffer,
}

/// Has a program ask for the namespace of a packet's device; false where it cannot.
pub(crate) fn ask_for_namespace(config: &mut TapConfig, from: From) -> bool {
    let Some(offsets) = Offsets::find() else {
        return false;
    };
    config.by_namespace = 1;
    (config.queue_info_offset, config.device_offset) = match from {
        From::Xdp => (offsets.queue_info, offsets.device_of_queue),
        From::SocketBuffer => (0, offsets.device_of_buffer),
    };
    config.device_namespace_offset = offsets.namespace;
    config.namespace_number_offset = offsets.number;
    true
}

impl Assembly {
    /// Says where the first interfaces are, and whether others may come from elsewhere.
    pub(crate) fn expect(&mut self, sites: &[CaptureSite]) {
        let first = sites.first().and_then(|site| site.namespace.as_ref());
        let mut numbers = HashSet::new();
        for site in sites {
            if site.namespace_number().is_ok_and(|one| numbers.insert(one)) {
                self.many.known.push(site.namespace.clone());
            }
        }
        self.many.namespaces = numbers.len().max(1);
        self.many.across_namespaces = self.options.across_namespaces
            || sites.iter().any(|site| site.namespace.as_ref() != first);
    }

    /// Whether one program is to serve all interfaces that it can.
    pub(crate) fn serves_many(&self) -> bool {
        let is_alike = self.options.time == TimeSource::System && !self.options.follows();
        is_alike && (self.options.joins || self.sites > PROGRAMS_APART)
    }

    /// Turns a program's configuration into that of one for many interfaces.
    pub(crate) fn for_many(
        &self,
        name: &str,
        config: &mut TapConfig,
        site: &CaptureSite,
        from: From,
    ) -> Result<Likeness> {
        for record in [&mut config.first, &mut config.second] {
            record.account_offset = account_offset(0);
            record.rejected_offset = rejected_offset(0);
            record.point = 0;
            record.interface = 0;
            record.hardware_interface = 0;
        }
        let everywhere = self.many.across_namespaces && ask_for_namespace(config, from);
        Ok(Likeness {
            name: name.to_owned(),
            config: config.to_bytes(),
            namespace: match everywhere {
                true => None,
                false => Some(site.namespace_number()?),
            },
            link_type: site.interface.link_type,
            netmask: broadcast_netmask(&self.options, site),
        })
    }

    /// The table that a program looks into.
    pub(crate) fn places(&mut self, hook: &'static str, likeness: &Likeness) -> Result<Rc<Table>> {
        let whose = (hook, likeness.namespace);
        if let Some(table) = self.many.tables.get(&whose) {
            return Ok(Rc::clone(table));
        }
        let table = new_table()?;
        self.many.tables.insert(whose, Rc::clone(&table));
        Ok(table)
    }

    /// Has what is seen on an interface count at a point; `None` if it counts at another one of this capture.
    pub(crate) fn place(
        &mut self,
        hook: &'static str,
        likeness: &Likeness,
        site: &CaptureSite,
        ids: &PointIds,
    ) -> Result<Option<TableEntry>> {
        let table = self.places(hook, likeness)?;
        let namespace = match likeness.namespace {
            Some(_) => 0,
            None => site.namespace_number()?,
        };
        TableEntry::take(&table, namespace, site, ids)
    }
}

/// A table of interfaces, empty.
pub(crate) fn new_table() -> Result<Rc<Table>> {
    let sizes = (size_of::<InterfaceKey>(), size_of::<InterfacePlace>());
    Table::hash("trawl_places", sizes, 2 * RING_MAX_POINTS as u32)
        .map(Rc::new)
        .map_err(|e| Error::os("cannot make the table of interfaces", e))
}

/// An interface's netmask, where the filter depends on it: only broadcast addresses do.
pub(crate) fn broadcast_netmask(options: &Options, site: &CaptureSite) -> Option<Ipv4Addr> {
    let filter = options.filter.as_ref();
    filter
        .filter(|filter| filter.text().contains("broadcast"))
        .and_then(|_| ipv4_netmask(site.namespace.as_ref(), &site.interface.name))
}

impl TableEntry {
    /// `None` if the interface has a place there already.
    pub(crate) fn take(
        table: &Rc<Table>,
        namespace: u32,
        site: &CaptureSite,
        ids: &PointIds,
    ) -> Result<Option<Self>> {
        let key = InterfaceKey {
            ifindex: site.interface.index,
            namespace,
        };
        let place = InterfacePlace {
            point: ids.slot,
            interface: ids.interface,
        };
        let key = key.to_bytes();
        match table.update(&key, &place.to_bytes(), NEW_ONLY) {
            Ok(()) => Ok(Some(Self {
                table: Rc::clone(table),
                key,
            })),
            Err(error) if error.raw_os_error() == Some(errno::EEXIST) => Ok(None),
            Err(error) => Err(Error::os(
                format!("cannot note where packets of {} count", site.label),
                error,
            )),
        }
    }
}
