//! The `pcap` tap: a device of any libpcap, chosen at run time, and a thread that reads it.

mod worker;

use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use trawl_packet::pcapng::block::LINKTYPE_RAW;

use trawl_filter::Classic;
use trawl_io::libpcap::{CaptureDirection, Handle, Library, Opened, PcapFilter, PcapRequest, Precision};
use trawl_packet::pcapng::block::{DIRECTION_INBOUND, DIRECTION_OUTBOUND};
use trawl_sys::events::Wake;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason, LibraryFigures};
use crate::sampling::Sampling;
use crate::taps::facts::{Facts, Gives, MOST, Missing, ReadsBy};
use crate::taps::tap::refuse_cpu;
use crate::taps::threads::{KERNEL_MAX, Sharing, Threads};
use crate::{AttachedTap, Tap};
use trawl_plan::TapChoice;
use trawl_plan::filter::Filter;
use trawl_plan::options::{Direction, TimeSource};
use worker::{Directions, LibraryCounts, PcapPoint, Worker};

pub const FACTS: Facts = Facts {
    choice: TapChoice::Pcap,
    sees: "packets of a libpcap's devices: interfaces, any, usbmon, netmap, PF_RING (docs/peers.md)",
    gives: Gives { received: true, sent: true, hardware_time: true, ..Gives::NOTHING },
    needs: "a libpcap: the system's, or the one that --libpcap names",
    reads_by: ReadsBy::Thread,
    no_queue: "libpcap does not report it",
    lacks: || {
        let error = Library::load(None).err()?;
        Some(Missing { feature: "libpcap", refused: false, why: error.to_string() })
    },
    ..MOST
};

const NAME: &str = "pcap";
/// Time for which the library may delay packets to hand over several at once.
const TIMEOUT_MS: u32 = 2;
/// Time after which a library that does not return from reading is abandoned.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub struct Pcap;

impl Tap for Pcap {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn attach(&self, index: usize, sites: &[CaptureSite], assembly: &mut Assembly) -> Result<Box<dyn AttachedTap>> {
        let site = &sites[index];
        let options = Rc::clone(&assembly.options);
        refuse_cpu(&options, NAME, "libpcap does not report it", "leave out --cpu, or use --tap packet")?;
        refuse_stealing(&site.interface.name, options.peers.steal)?;
        let library = Library::load(options.peers.library.as_deref())?;
        let sharing = Sharing::new(assembly.rings.geometry, 1, assembly.sites, KERNEL_MAX);
        let snaplen = assembly.snaplen().min(sharing.own.max_captured());
        let wanted = options.filter.as_ref().map(program).transpose()?;
        let filters_itself = wanted.is_some() && is_filtered_in_user_space(&site.interface);
        let Opened { mut handle, warnings, no_hardware_time } = Handle::open(
            &library,
            site.namespace.as_ref(),
            &PcapRequest {
                device: &site.interface.name,
                // A filter may read more bytes than are recorded.
                snaplen: if filters_itself { sharing.own.max_captured() } else { snaplen },
                promiscuous: options.promiscuous && site.interface.name != ANY,
                buffer: sharing.kernel,
                timeout_ms: TIMEOUT_MS,
                hardware_time: options.time == TimeSource::Hardware,
                direction: direction_of(options.direction),
            },
        )?;
        let label = &site.label;
        for warning in warnings {
            assembly.event(Event::LibraryWarning {
                interface: label.clone(),
                library: library.version().to_owned(),
                warning,
            });
        }
        if no_hardware_time {
            assembly
                .event(Event::SystemStamps { interface: label.clone(), library: Some(library.version().to_owned()) });
        }
        let filter = match &wanted {
            Some(wanted) if filters_itself => Some(own_filter(&handle, wanted)?),
            Some(wanted) => {
                handle.filter(wanted)?;
                assembly.event(Event::RejectedNotCounted { interface: label.clone(), why: None });
                None
            }
            None => None,
        };
        if steals(&site.interface.name) {
            assembly.event(Event::TakenFromStack { interface: label.clone() });
        }
        let link_type = link_type(handle.link_type()).ok_or_else(|| no_link_type(label, handle.link_type()))?;
        let stamped_by_card = options.time == TimeSource::Hardware && !no_hardware_time;
        let (rings, producers) = assembly.rings.of_threads(sharing.own, 1)?;
        let ids = assembly.add_point(index, site, &rings, &FACTS, "libpcap")?;
        assembly.points.set_link_type(ids.point, link_type);
        let precision = match handle.precision() {
            Precision::Nanoseconds => "",
            Precision::Microseconds => ", in microseconds: it has no nanoseconds for this device",
        };
        assembly.points.set_note(ids.point, format!("by {}{precision}", library.version()));
        let point = PcapPoint {
            ids,
            extent: assembly.extent(snaplen, link_type),
            directions: match options.direction {
                Some(Direction::In) => Directions::All(DIRECTION_INBOUND),
                Some(Direction::Out) => Directions::All(DIRECTION_OUTBOUND),
                None | Some(Direction::Both) => Directions::by_link_type(link_type),
            },
            stamped_by_card,
            asks_first: waits_for_packets(&site.interface.name),
            meta: options.recording.meta,
            filter,
        };
        let threads = Threads::new(rings);
        let counts = Arc::new(LibraryCounts::default());
        let wake = Wake::new()?;
        let worker = producers.into_iter().next().map(|producer| {
            let sampling = Sampling::new(&options);
            let shared = (Arc::clone(&counts), threads.failure());
            Worker::new(handle, producer, point, sampling, shared, wake.clone())
        });
        Ok(Box::new(AttachedPcap {
            point: ids.point,
            version: library.version().to_owned(),
            waiting: worker,
            threads,
            counts,
            wake,
        }))
    }
}

fn no_link_type(label: &str, number: i32) -> Error {
    Error::failed(
        format!("cannot record from {label}"),
        format!("its packets have the link type {number} in libpcap, which a capture file cannot express"),
    )
}

fn direction_of(direction: Option<Direction>) -> CaptureDirection {
    match direction {
        None | Some(Direction::Both) => CaptureDirection::Both,
        Some(Direction::In) => CaptureDirection::In,
        Some(Direction::Out) => CaptureDirection::Out,
    }
}

/// Returns the filter for the library, which compiles expressions itself: with its own grammar, for its own device.
fn program(filter: &Filter) -> Result<PcapFilter> {
    match filter {
        Filter::Expression(text) => Ok(PcapFilter::Expression(text.clone())),
        Filter::Classic(text) => Classic::parse(text)
            .map(|classic| PcapFilter::Classic(classic.instructions().to_vec()))
            .map_err(|error| filter.explain(&error)),
        Filter::Inner(_) => {
            Err(Error::usage("cannot look inside tunnels with the pcap tap", "libpcap has no such filter")
                .fix("leave out --inner, or use --tap packet"))
        }
    }
}

/// Compiles the same program for trawl, which counts rejected packets.
fn own_filter(handle: &Handle, wanted: &PcapFilter) -> Result<Classic> {
    let instructions = match wanted {
        PcapFilter::Expression(expression) => handle.compile(expression)?,
        PcapFilter::Classic(given) => given.clone(),
    };
    Classic::from_compiler(instructions).map_err(|error| Error::usage("cannot use this filter", error))
}

#[derive(Debug)]
struct AttachedPcap {
    point: u32,
    version: String,
    /// Worker whose packets wait in the library until the thread is started.
    waiting: Option<Worker>,
    threads: Threads,
    counts: Arc<LibraryCounts>,
    wake: Wake,
}

impl AttachedTap for AttachedPcap {
    fn start(&mut self) -> Result<()> {
        match self.waiting.take() {
            Some(worker) => self.threads.start(NAME, || worker.run()),
            None => Ok(()),
        }
    }

    fn detach(&mut self) -> Vec<Event> {
        self.threads.stop();
        self.wake.ring();
        self.waiting = None;
        let since = Instant::now();
        while !self.threads.are_finished() && since.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        if !self.threads.are_finished() {
            self.threads.abandon();
            return vec![Event::LibraryStuck { library: self.version.clone(), seconds: PATIENCE.as_secs() }];
        }
        let failure = self.threads.join();
        let remark = self.counts.remark(&self.version);
        failure.into_iter().chain(remark).collect()
    }

    /// The library needs these capabilities to close its device.
    fn needed_capabilities(&self) -> Capabilities {
        Capabilities::NET_ADMIN | Capabilities::NET_RAW
    }

    fn ended(&mut self) -> Option<GoneReason> {
        self.threads.ended()
    }

    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        vec![(self.point, "libpcap", self.counts.dropped())]
    }

    fn library(&mut self) -> Option<(u32, LibraryFigures)> {
        let figures = self.counts.figures();
        Some((
            self.point,
            LibraryFigures {
                name: self.version.clone(),
                received: figures.map(|one| one.received),
                dropped: figures.map(|one| one.dropped),
                dropped_by_interface: figures.map(|one| one.dropped_by_interface),
            },
        ))
    }
}

impl Drop for AttachedPcap {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Pseudo-device of all interfaces, which cannot be set promiscuous.
pub const ANY: &str = "any";
const DLT_ATM_RFC1483: i32 = 11;
const DLT_RAW: i32 = 12;
const DLT_RAW_OPENBSD: i32 = 14;
const LINKTYPE_ATM_RFC1483: u16 = 100;

/// Returns true if reading such a device removes its packets from the network stack.
pub fn steals(device: &str) -> bool {
    device.starts_with("netmap:") || device.starts_with("zc:")
}

/// Returns true if the library filters such a device itself, on copies of packets: devices other than kernel interfaces
/// have no kernel filter.
pub fn is_filtered_in_user_space(interface: &Interface) -> bool {
    interface.index == 0 && interface.name != ANY && !interface.name.starts_with("zc:")
}

/// Returns true if `pcap_dispatch` on such a device returns only with packets, non-blocking or not.
pub fn waits_for_packets(device: &str) -> bool {
    device.starts_with("netmap:") || device.starts_with("vale")
}

/// Refuses a device that withholds packets from the network stack, unless `steal` is set.
pub fn refuse_stealing(device: &str, steal: bool) -> Result<()> {
    if !steals(device) || steal {
        return Ok(());
    }
    let (framework, name) = device.split_once(':').unwrap_or(("netmap", device));
    let framework = if framework == "zc" { "PF_RING ZC" } else { framework };
    Err(Error::usage(
        format!("cannot capture on {device}"),
        format!("{framework} withholds the packets of {name} from the network stack: its connections stop during the capture"),
    )
    .fix("add --steal to use it anyway"))
}

/// Returns the link type in capture files for a number of the library, which differs between systems.
pub fn link_type(number: i32) -> Option<u16> {
    match number {
        DLT_RAW | DLT_RAW_OPENBSD => Some(LINKTYPE_RAW),
        DLT_ATM_RFC1483 => Some(LINKTYPE_ATM_RFC1483),
        other => u16::try_from(other).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netmap_requires_the_steal_option() {
        assert!(refuse_stealing("netmap:eth0", true).is_ok());
        assert!(refuse_stealing("vale0:a", false).is_ok());
        let error = refuse_stealing("netmap:eth0", false).unwrap_err();
        assert!(error.how_to_fix().is_some_and(|fix| fix.contains("--steal")), "{error}");
    }

    #[test]
    fn link_types_have_the_files_numbers() {
        assert_eq!(link_type(1), Some(1));
        assert_eq!(link_type(12), Some(101));
        assert_eq!(link_type(276), Some(276));
        assert_eq!((link_type(-1), link_type(70_000)), (None, None));
    }
}
