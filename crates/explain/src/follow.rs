//! One packet's path through the kernel's network stack, to its end.

mod file;
mod path;
mod step;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_bpf::{functions, program};
use trawl_capture::session::Attached;
use trawl_capture::taps::drop;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{Blocks, Pressure, WriteOutcome, Writer};
use trawl_source::packets_of;
use trawl_sys::netlink::{LinkRecord, Netlink, veth_peer_in};
use trawl_sys::netns::{Namespace, NamespaceSearch};
use trawl_sys::{Result, clock, netlink::counters, process};
use trawl_view::record::{PacketView, RingPackets};

pub use file::StepFile;
pub use path::{End, PacketPath};

use path::Joined;
use step::{PathStep, Seen};

/// Time after a path's last step at which the path is reported.
const PATIENCE_NS: u64 = 100_000_000;
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Time after which a TCP segment or a datagram that reached the protocol at this host, and was not dropped, counts as
/// consumed: the protocol frees some without a further step. By then it is known whether records were lost.
const SETTLED_NS: u64 = 1_000_000_000;
/// Time after which a packet is no longer recognized: bpf/include/drop.h.
const AGE_NS: u64 = 10_000_000_000;

/// The packets of a capture of steps, and their paths so far.
pub struct Following<'a> {
    packets: RingPackets,
    open: BTreeMap<u64, PacketPath>,
    /// Packets that receive offload joined recently.
    joined: Joined,
    /// Number of packets whose path is still to be shown.
    left: u64,
    file: Option<StepFile>,
    /// Number of packets by their end.
    ends: BTreeMap<End, u64>,
    devices: LastDevices,
    /// Number of steps that were lost so far.
    losses: Rc<Cell<u64>>,
    reported: Reported,
    /// The time of the last record, or later.
    now: u64,
    /// Set if records arrived since the last check of paths.
    has_new_records: bool,
    /// Time of the last check for paths that did not go on.
    checked: Instant,
    show: &'a mut dyn FnMut(&PacketPath) -> Result<()>,
}

impl fmt::Debug for Following<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Following").finish_non_exhaustive()
    }
}

/// The number of packets, and how they ended.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename = "followed")]
pub struct Ends {
    packets: u64,
    ends: BTreeMap<End, u64>,
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ends.is_empty() {
            return f.write_str("no packet was followed");
        }
        let ends: Vec<String> = self.ends.iter().map(|(end, count)| format!("{count} {}", end.word())).collect();
        let packets = if self.packets == 1 { "packet" } else { "packets" };
        write!(f, "{} {packets}: {}", self.packets, ends.join(", "))
    }
}

impl<'a> Following<'a> {
    /// Begins to follow `count` packets. `losses` has the number of lost records so far, `namespaces` are those that
    /// are followed, and `show` gets each path that is over.
    pub fn begin(
        capture: &Attached,
        count: u64,
        namespaces: &[Namespace],
        losses: Rc<Cell<u64>>,
        file: Option<StepFile>,
        show: &'a mut dyn FnMut(&PacketPath) -> Result<()>,
    ) -> Self {
        Self {
            packets: packets_of(capture),
            open: BTreeMap::new(),
            joined: Joined::default(),
            left: count,
            file,
            ends: BTreeMap::new(),
            devices: LastDevices::find(namespaces),
            losses,
            reported: Reported::default(),
            now: 0,
            has_new_records: false,
            checked: Instant::now(),
            show,
        }
    }

    /// Reports the paths that are not over, and ends the file.
    pub fn into_ends(mut self, account: &PacketAccount) -> Result<Ends> {
        self.losses.set(lost_records(account));
        for path in std::mem::take(&mut self.open).into_values() {
            self.close(path)?;
        }
        if let Some(file) = self.file.take() {
            file.finish(account)?;
        }
        Ok(Ends { packets: self.ends.values().sum(), ends: self.ends })
    }
}

/// Returns the number of lost steps, without the packets that are not followed.
pub fn lost_records(account: &PacketAccount) -> u64 {
    let lost = account.lost.iter();
    lost.filter(|(reason, _)| *reason != "not_followed").map(|(_, count)| count).sum()
}

impl Following<'_> {
    fn add_record(&mut self, packet: &PacketView<'_>) -> Result<()> {
        let Some(id) = packet.packet_id else {
            return Ok(());
        };
        self.now = self.now.max(packet.timestamp_ns);
        self.has_new_records = true;
        let Some(seen) = Seen::new(packet) else {
            return Ok(());
        };
        if !self.open.contains_key(&id) && self.reported.has(id) {
            return Ok(());
        }
        if self.left > 0
            && let Some(file) = &mut self.file
        {
            file.add(packet, &seen.step)?;
        }
        self.joined.note(id, &seen);
        let path = self.open.entry(id).or_insert_with(|| PacketPath::new(id, packet, &seen, self.losses.get()));
        path.add(packet, seen);
        if path.is_over()
            && let Some(path) = self.open.remove(&id)
        {
            self.report(&path)?;
        }
        Ok(())
    }

    /// Ends paths that have not gone on for a while.
    fn end_old(&mut self) -> Result<()> {
        if self.checked.elapsed() < CHECK_EVERY {
            return Ok(());
        }
        self.checked = Instant::now();
        // Records may be read long after they were made; the clock counts only while none are left to read.
        if !std::mem::take(&mut self.has_new_records) {
            self.now = self.now.max(clock::wall());
        }
        let now = self.now;
        let (joined, devices) = (&self.joined, &self.devices);
        let is_old = |path: &PacketPath| {
            let idle = now.saturating_sub(path.last_time());
            let is_complete = path.may_be_over() || joined.containing(path).is_some();
            idle > AGE_NS || idle > SETTLED_NS && path.is_at_protocol(devices) || idle > PATIENCE_NS && is_complete
        };
        let old: Vec<u64> = self.open.iter().filter(|(_, path)| is_old(path)).map(|(id, _)| *id).collect();
        for id in old {
            if let Some(path) = self.open.remove(&id) {
                self.close(path)?;
            }
        }
        self.joined.forget_before(now.saturating_sub(AGE_NS));
        Ok(())
    }

    fn close(&mut self, mut path: PacketPath) -> Result<()> {
        if path.end == End::Gap && self.devices.ends_path(&path) {
            path.end = End::Sent;
        }
        if matches!(path.end, End::Gap | End::Sent | End::Unwanted)
            && let Some(program) = self.devices.program_after(&path)
        {
            path.end = End::AtXdp;
            path.program = Some(program.clone());
        }
        if path.end == End::Gap && path.is_at_protocol(&self.devices) && path.losses == self.losses.get() {
            path.end = End::Consumed;
        }
        if matches!(path.end, End::Gap | End::Consumed)
            && let Some(into) = self.joined.containing(&path)
        {
            path.end = End::Joined;
            path.joined_into = Some(into);
        }
        self.report(&path)
    }

    /// Reports a path that is over.
    fn report(&mut self, path: &PacketPath) -> Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        if self.left == 0 {
            process::interrupt(std::process::id())?;
        }
        *self.ends.entry(path.end).or_default() += 1;
        self.reported.add(path.packet_id, path.last_time());
        (self.show)(path)
    }
}

/// Packets whose path was reported a short time ago. Their last step, such as the end of a buffer after its socket, may
/// be read only after the report, and must not begin a second path.
#[derive(Debug, Default)]
struct Reported {
    recent: HashSet<u64>,
    earlier: HashSet<u64>,
    since: u64,
}

impl Reported {
    fn add(&mut self, id: u64, time: u64) {
        if time.saturating_sub(self.since) > AGE_NS {
            self.earlier = std::mem::take(&mut self.recent);
            self.since = time;
        }
        self.recent.insert(id);
    }

    fn has(&self, id: u64) -> bool {
        self.recent.contains(&id) || self.earlier.contains(&id)
    }
}

/// The devices, by namespace and name, through which packets leave this host, or that encrypt them. A packet that such
/// a device transmitted cannot be recognized afterwards, so its path ends there.
#[derive(Debug, Default)]
struct LastDevices {
    all: HashSet<(String, String)>,
    /// XDP programs on the other ends of cables.
    programs: HashMap<(String, String), String>,
    /// Addresses by namespace. The set is empty if packets for this host have a step at netfilter's input.
    addresses: HashSet<(String, IpAddr)>,
}

impl LastDevices {
    fn find(namespaces: &[Namespace]) -> Self {
        let mut found = Self::default();
        let mut search = NamespaceSearch::default();
        let has_input = drop::has_programs_at_hooks();
        for namespace in namespaces {
            // A namespace may be gone by now.
            let Ok(mut netlink) = Netlink::open(Some(namespace)) else { continue };
            let label = counters::label(namespace);
            for link in netlink.links().unwrap_or_default() {
                if !has_input {
                    let addresses = netlink.addresses(link.index).unwrap_or_default();
                    found.addresses.extend(addresses.into_iter().map(|address| (label.clone(), address)));
                }
                let place = (label.clone(), link.name.clone());
                match link.kind.as_deref() {
                    None if link.name != "lo" => {
                        found.all.insert(place);
                    }
                    Some("wireguard") => {
                        found.all.insert(place);
                    }
                    Some("veth") => {
                        let program = program_at_other_end(&mut search, namespace, &link);
                        found.programs.extend(program.map(|program| (place, program)));
                    }
                    _ => {}
                }
            }
        }
        found
    }

    /// Returns true if the packet's last step was its transmission by one of these devices.
    fn ends_path(&self, path: &PacketPath) -> bool {
        let place = path.transmitted_by();
        place.is_some_and(|place| self.all.contains(&place))
    }

    /// Returns true if the address belongs to the namespace of this step, and netfilter's input has no step.
    fn has_address(&self, step: &PathStep, address: IpAddr) -> bool {
        let place = step.netns.clone().map(|netns| (netns, address));
        place.is_some_and(|place| self.addresses.contains(&place))
    }

    /// Returns the XDP program that received the packet after its last step.
    fn program_after(&self, path: &PacketPath) -> Option<&String> {
        self.programs.get(&path.transmitted_by()?)
    }
}

/// Names the XDP program on the other end of a cable.
fn program_at_other_end(search: &mut NamespaceSearch, namespace: &Namespace, link: &LinkRecord) -> Option<String> {
    let peer = veth_peer_in(search, Some(namespace), link).ok()??;
    let id = peer.link.xdp.first()?.program_id;
    let name = program::open_by_id(id).and_then(|fd| functions::name_of(fd.as_fd()));
    let name = name.unwrap_or_else(|_| format!("with the id {id}"));
    let space = peer.namespace.as_ref().unwrap_or(namespace);
    Some(format!("{name} on {} ({})", peer.link.name, counters::label(space)))
}

impl Writer for Following<'_> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let mut packets = std::mem::take(&mut self.packets);
        let mut added = Ok(());
        packets.each(blocks.bytes(), |packet, _| {
            if added.is_ok() {
                added = self.add_record(packet);
            }
        });
        self.packets = packets;
        added?;
        self.file.iter_mut().try_for_each(StepFile::flush)?;
        Ok(Pressure::Idle)
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.end_old().map(|()| Pressure::Idle)
    }

    fn due(&self) -> Option<Instant> {
        (!self.open.is_empty()).then(|| self.checked + CHECK_EVERY)
    }

    fn finish(&mut self) -> WriteOutcome {
        WriteOutcome::default()
    }
}
