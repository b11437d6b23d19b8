//! One program for many interfaces: the tables that map interfaces to hook points, and the programs that read them.

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

/// Number of sites above which they share programs. A program for a single interface is faster.
const PROGRAMS_APART: usize = 16;
/// The map in bpf/include/places.h.
pub(crate) const MAP_NAME: &str = "places";

/// State shared by the interfaces of a capture.
#[derive(Debug, Default)]
pub struct Many {
    /// True if namespaces distinguish interfaces.
    across_namespaces: bool,
    /// Tables by hook, since an interface has a point at each, and by the namespace that their programs serve, if not all.
    tables: HashMap<(&'static str, Option<u32>), Rc<Table>>,
    pub(crate) xdp: Vec<(Likeness, Rc<Seated>)>,
    /// Programs with their attach type.
    pub(crate) tc: Vec<(Likeness, u32, Arc<OwnedFd>)>,
    pub(crate) packet: Groups,
    /// Number of namespaces of the initial interfaces.
    pub(crate) namespaces: usize,
    /// Namespaces of the initial interfaces, while the capture is being attached.
    pub(crate) known: Vec<Option<Namespace>>,
    /// Programs and namespace numbers with filters that the warden watches.
    pub(crate) watched: HashSet<(u32, u32)>,
}

/// Key by which two programs are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Likeness {
    name: String,
    config: Vec<u8>,
    /// Namespace that the program serves, if not all.
    namespace: Option<u32>,
    link_type: u16,
    netmask: Option<Ipv4Addr>,
}

/// An interface in a table: its packets count while this is held.
#[derive(Debug)]
pub(crate) struct TableEntry {
    table: Rc<Table>,
    key: Vec<u8>,
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        // A leftover entry only counts packets at a stale point.
        let _ = self.table.delete(&self.key);
    }
}

/// Offsets in kernel structures on the path to a device's namespace.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    queue_info: u32,
    device_of_queue: u32,
    device_of_buffer: u32,
    namespace: u32,
    number: u32,
}

impl Offsets {
    /// Returns `None` if programs cannot read these structures.
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

/// The structure from which a hook's programs start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Xdp,
    SocketBuffer,
}

/// Configures a program to read the namespace of a packet's device; false if it cannot.
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
    /// Records the namespaces of the first interfaces, and whether later ones may come from others.
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

    /// Returns true if one program serves all interfaces that it can.
    pub(crate) fn serves_many(&self) -> bool {
        let is_alike = self.options.time == TimeSource::System && !self.options.follows();
        is_alike && (self.options.joins || self.sites > PROGRAMS_APART)
    }

    /// Generalises a program's configuration to many interfaces.
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

    /// Returns the table that a program reads.
    pub(crate) fn places(&mut self, hook: &'static str, likeness: &Likeness) -> Result<Rc<Table>> {
        let whose = (hook, likeness.namespace);
        if let Some(table) = self.many.tables.get(&whose) {
            return Ok(Rc::clone(table));
        }
        let table = new_table()?;
        self.many.tables.insert(whose, Rc::clone(&table));
        Ok(table)
    }

    /// Makes packets of an interface count at a point; `None` if they count at another point of this capture.
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

/// Creates an empty table of interfaces.
pub(crate) fn new_table() -> Result<Rc<Table>> {
    let sizes = (size_of::<InterfaceKey>(), size_of::<InterfacePlace>());
    Table::hash("trawl_places", sizes, 2 * RING_MAX_POINTS as u32)
        .map(Rc::new)
        .map_err(|e| Error::os("cannot make the table of interfaces", e))
}

/// Returns an interface's netmask, if the filter depends on it: only broadcast addresses do.
pub(crate) fn broadcast_netmask(options: &Options, site: &CaptureSite) -> Option<Ipv4Addr> {
    let filter = options.filter.as_ref();
    filter
        .filter(|filter| filter.text().contains("broadcast"))
        .and_then(|_| ipv4_netmask(site.namespace.as_ref(), &site.interface.name))
}

impl TableEntry {
    /// Adds an interface to a table; `None` if the table has it already.
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
                format!("cannot add {} to the table of interfaces", site.label),
                error,
            )),
        }
    }
}
