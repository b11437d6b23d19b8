//! One program for many interfaces: the tables that map interfaces to hook points, and the programs that read them.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use trawl_bpf::layout::{InterfaceKey, InterfacePlace, RING_MAX_POINTS, Shared, TapConfig};
use trawl_bpf::table::{NEW_ONLY, Table};
use trawl_bpf::{kernel_types, object};
use trawl_sys::netlink::interface::ipv4_netmask;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result, errno};

use crate::capture_chain::Seated;
use crate::capture_site::CaptureSite;
use crate::point::PointIds;
use crate::taps::packet::group::Groups;
use trawl_plan::options::CaptureOptions;

/// The map in bpf/tap/places.h.
pub(crate) const MAP_NAME: &str = "places";

/// State shared by the interfaces of a capture.
#[derive(Debug, Default)]
pub struct Many {
    /// True if namespaces distinguish interfaces.
    pub(crate) across_namespaces: bool,
    /// Tables by hook, since an interface has a point at each, and by the namespace that their programs serve, if not
    /// all.
    pub(crate) tables: HashMap<(&'static str, Option<u32>), Rc<Table>>,
    pub(crate) xdp: Vec<(ProgramKey, Rc<Seated>)>,
    /// Programs with their attach type.
    pub(crate) tc: Vec<(ProgramKey, u32, Arc<OwnedFd>)>,
    pub(crate) packet: Groups,
    /// Number of namespaces of the initial interfaces.
    pub(crate) namespaces: usize,
    /// Namespaces of the initial interfaces, while the capture is being attached.
    pub(crate) known: Vec<Option<Namespace>>,
    /// Programs and namespace numbers with filters that the warden watches.
    pub(crate) watched: HashSet<(u32, u32)>,
}

/// Key under which interfaces share a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramKey {
    pub name: String,
    pub config: Vec<u8>,
    /// Namespace that the program serves, if not all.
    pub namespace: Option<u32>,
    pub link_type: u16,
    pub netmask: Option<Ipv4Addr>,
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
pub(crate) enum PacketStructure {
    Xdp,
    SocketBuffer,
}

/// Configures a program to read the namespace of a packet's device; false if it cannot.
pub(crate) fn read_namespace(config: &mut TapConfig, from: PacketStructure) -> bool {
    let Some(offsets) = Offsets::find() else {
        return false;
    };
    config.by_namespace = 1;
    (config.queue_info_offset, config.device_offset) = match from {
        PacketStructure::Xdp => (offsets.queue_info, offsets.device_of_queue),
        PacketStructure::SocketBuffer => (0, offsets.device_of_buffer),
    };
    config.device_namespace_offset = offsets.namespace;
    config.namespace_number_offset = offsets.number;
    true
}

/// Creates an empty table of interfaces.
pub(crate) fn new_table() -> Result<Rc<Table>> {
    let sizes = (size_of::<InterfaceKey>(), size_of::<InterfacePlace>());
    Table::hash("trawl_places", sizes, 2 * RING_MAX_POINTS as u32)
        .map(Rc::new)
        .map_err(|e| Error::os("cannot make the table of interfaces", e))
}

/// Returns an interface's netmask, if the filter depends on it: only broadcast addresses do.
pub(crate) fn broadcast_netmask(options: &CaptureOptions, site: &CaptureSite) -> Option<Ipv4Addr> {
    let filter = options.filter.as_ref();
    filter
        .filter(|filter| filter.text().contains("broadcast"))
        .and_then(|_| ipv4_netmask(site.namespace.as_ref(), &site.interface.name))
}

impl TableEntry {
    /// Adds an interface to a table; `None` if the table has it already.
    pub(crate) fn add(table: &Rc<Table>, namespace: u32, site: &CaptureSite, ids: &PointIds) -> Result<Option<Self>> {
        let key = InterfaceKey { ifindex: site.interface.index, namespace };
        let entry = InterfacePlace { point: ids.slot, interface: ids.interface };
        let key = key.to_bytes();
        match table.update(&key, &entry.to_bytes(), NEW_ONLY) {
            Ok(()) => Ok(Some(Self { table: Rc::clone(table), key })),
            Err(error) if error.raw_os_error() == Some(errno::EEXIST) => Ok(None),
            Err(error) => Err(Error::os(format!("cannot add {} to the table of interfaces", site.label), error)),
        }
    }
}
