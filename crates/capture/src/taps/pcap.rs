//! The `pcap` tap: a device of any libpcap, chosen at run time, and a thread that reads it.

mod worker;

use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use trawl_filter::Classic;
use trawl_io::libpcap::{
    CaptureDirection, Handle, Library, Opened, PcapFilter, Precision, Request,
};
use trawl_packet::pcapng::block::{DIRECTION_INBOUND, DIRECTION_OUTBOUND};
use trawl_ring::Rings;
use trawl_ring::producer::Producer;
use trawl_sys::events::Wake;
use trawl_sys::interface::Interface;
use trawl_sys::netns::Namespace;
use trawl_sys::privilege::Capabilities;
use trawl_sys::{Error, Result};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason, LibraryFigures, ReadFailure};
use crate::filter::Filter;
use crate::options::{Direction, TimeSource};
use crate::taps::packet::choice::Sampling;
use crate::taps::packet::{Sharing, instructions};
use crate::taps::refuse_cpu;
use crate::taps::table::{self, Facts};
use crate::{AttachedTap, Tap};
use worker::{Directions, PcapJob, Shared, Worker};

pub const NAME: &str = "pcap";
/// Time for which the library may delay packets to hand over several at once.
const TIMEOUT_MS: u32 = 2;
/// Time after which a library that does not return from reading is abandoned.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub struct Pcap;

impl Tap for Pcap {
    fn facts(&self) -> &'static Facts {
        &table::PCAP
    }

    fn attach(
        &self,
        index: usize,
        site: &CaptureSite,
        assembly: &mut Assembly,
    ) -> Result<Box<dyn AttachedTap>> {
        let options = Rc::clone(&assembly.options);
        refuse_cpu(
            &options,
            NAME,
            "libpcap does not report it",
            "leave out --cpu, or use --tap packet",
        )?;
        refuse_stealing(&site.interface.name, options.peers.steal)?;
        let library = Library::load(options.peers.library.as_deref())?;
        let sharing = Sharing::new(assembly.geometry, 1, assembly.sites);
        let snaplen = assembly.snaplen().min(sharing.own.max_captured());
        let wanted = options.filter.as_ref().map(program).transpose()?;
        let filters_itself = wanted.is_some() && is_filtered_in_user_space(&site.interface);
        let Opened {
            mut handle,
            warnings,
            no_hardware_time,
        } = Handle::open(
            &library,
            site.namespace.as_ref(),
            &Request {
                device: &site.interface.name,
                snaplen: match filters_itself {
                    // A filter may read more bytes than are recorded.
                    true => sharing.own.max_captured(),
                    false => snaplen,
                },
                promiscuous: options.promiscuous && site.interface.name != ANY,
                buffer: sharing.kernel,
                timeout_ms: TIMEOUT_MS,
                hardware_time: options.time == TimeSource::Hardware,
                direction: way(options.direction),
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
            assembly.event(Event::SystemStamps {
                interface: label.clone(),
                library: Some(library.version().to_owned()),
            });
        }
        let filter = match &wanted {
            Some(wanted) if filters_itself => Some(own_filter(&handle, wanted)?),
            Some(wanted) => {
                handle.filter(wanted)?;
                assembly.event(Event::RejectedNotCounted {
                    interface: label.clone(),
                    why: None,
                });
                None
            }
            None => None,
        };
        if takes_away(&site.interface.name) {
            assembly.event(Event::TakenFromStack {
                interface: label.clone(),
            });
        }
        let link_type =
            link_type(handle.link_type()).ok_or_else(|| no_link_type(label, handle.link_type()))?;
        let stamped_by_card = options.time == TimeSource::Hardware && !no_hardware_time;
        let (rings, producers) = assembly.thread_rings(sharing.own, 1)?;
        let ids = assembly.add_point(index, site, &rings, NAME, "libpcap")?;
        assembly.set_link_type(ids.point, link_type);
        let precision = match handle.precision() {
            Precision::Nanoseconds => "",
            Precision::Microseconds => ", in microseconds: it has no nanoseconds for this device",
        };
        assembly.set_note(ids.point, format!("by {}{precision}", library.version()));
        let plan = PcapJob {
            ids,
            snaplen,
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
        let shared = Arc::new(Shared::default());
        let wake = Wake::new()?;
        let worker = producers.into_iter().next().map(|producer: Producer| {
            let sampling = Sampling::new(&options);
            Worker::new(
                handle,
                producer,
                plan,
                sampling,
                Arc::clone(&shared),
                wake.clone(),
            )
        });
        Ok(Box::new(AttachedPcap {
            point: ids.point,
            version: library.version().to_owned(),
            waiting: worker,
            thread: None,
            shared,
            wake,
            rings,
        }))
    }
}

fn no_link_type(label: &str, number: i32) -> Error {
    Error::failed(
        format!("cannot record from {label}"),
        format!(
            "its packets have the link type {number} in libpcap, which a capture file cannot express"
        ),
    )
}

fn way(direction: Option<Direction>) -> CaptureDirection {
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
            .map(|classic| PcapFilter::Classic(instructions(&classic)))
            .map_err(|error| filter.explain(&error)),
        Filter::Inner(_) => Err(Error::usage(
            "cannot look inside tunnels with the pcap tap",
            "libpcap has no such filter",
        )
        .fix("leave out --inner, or use --tap packet")),
    }
}

/// Compiles the same program for trawl, which counts rejected packets.
fn own_filter(handle: &Handle, wanted: &PcapFilter) -> Result<Classic> {
    let instructions = match wanted {
        PcapFilter::Expression(expression) => handle.compile(expression)?,
        PcapFilter::Classic(given) => given.clone(),
    };
    let instructions = instructions.iter().map(|one| trawl_filter::Instruction {
        code: one.code,
        jt: one.jt,
        jf: one.jf,
        k: one.k,
    });
    Classic::from_compiler(instructions.collect())
        .map_err(|error| Error::usage("cannot use this filter", error))
}

#[derive(Debug)]
struct AttachedPcap {
    point: u32,
    version: String,
    /// Worker whose packets wait in the library until the thread is started.
    waiting: Option<Worker>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    wake: Wake,
    rings: Arc<Rings>,
}

impl AttachedTap for AttachedPcap {
    fn start(&mut self) -> Result<()> {
        let Some(worker) = self.waiting.take() else {
            return Ok(());
        };
        let thread = thread::Builder::new()
            .name("trawl-pcap".to_owned())
            .spawn(move || worker.run())
            .map_err(|e| Error::os("cannot start a thread that reads packets", e))?;
        self.thread = Some(thread);
        Ok(())
    }

    fn detach(&mut self) -> Vec<Event> {
        self.rings.stop();
        self.wake.ring();
        self.waiting = None;
        let Some(thread) = self.thread.take() else {
            return Vec::new();
        };
        let since = Instant::now();
        while !thread.is_finished() && since.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        if !thread.is_finished() {
            return vec![Event::LibraryStuck {
                library: self.version.clone(),
                seconds: PATIENCE.as_secs(),
            }];
        }
        if thread.join().is_err() {
            self.shared.fail(ReadFailure::ThreadCrashed);
        }
        let failure = self.shared.failure().cloned();
        failure
            .map(Event::ReadFailed)
            .into_iter()
            .chain(self.shared.remark(&self.version))
            .collect()
    }

    /// The library needs these capabilities to close its device.
    fn keeps(&self) -> Capabilities {
        Capabilities::NET_ADMIN | Capabilities::NET_RAW
    }

    fn ended(&mut self) -> Option<GoneReason> {
        self.shared.failure().cloned().map(GoneReason::ReadFailed)
    }

    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        vec![(self.point, "libpcap", self.shared.dropped())]
    }

    fn library(&mut self) -> Option<(u32, LibraryFigures)> {
        let figures = self.shared.figures();
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

/// Prefixes before a colon in names of devices, which are not namespaces.
const PREFIXES: [&str; 9] = [
    "netmap", "vale", "zc", "dpdk", "nflog", "nfqueue", "dbus-", "dag", "rpcap",
];
/// Pseudo-device of all interfaces, without a common mode.
pub const ANY: &str = "any";
const DLT_RAW: i32 = 12;
const DLT_RAW_OPENBSD: i32 = 14;
const LINKTYPE_RAW: u16 = 101;

/// Finds `NAME` in the given namespace (or the present one), or `NAMESPACE:NAME`, with NAME a device of a libpcap: an
/// interface, or anything else that the library knows.
pub fn find(text: &str, default_namespace: Option<&str>) -> Result<CaptureSite> {
    let (namespace, name) = match text.split_once(':') {
        Some((before, name)) if !is_prefix(before) => (Some(before), name),
        _ => (default_namespace, text),
    };
    if name.is_empty() {
        let what = format!("interface '{text}'");
        return Err(Error::usage(what, "no device is named"));
    }
    let namespace = namespace.map(Namespace::open).transpose()?;
    let interface =
        Interface::find(namespace.as_ref(), name).unwrap_or_else(|_| Interface::of_a_library(name));
    Ok(CaptureSite {
        label: text.to_owned(),
        namespace,
        interface,
        one_of_any: false,
    })
}

fn is_prefix(before: &str) -> bool {
    let number_follows = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    PREFIXES
        .iter()
        .any(|prefix| match before.strip_prefix(prefix) {
            Some(rest) => number_follows(rest),
            None => false,
        })
}

/// Returns true if reading such a device removes its packets from the network stack.
pub fn takes_away(device: &str) -> bool {
    device.starts_with("netmap:") || device.starts_with("zc:")
}

/// Returns true if the library filters such a device itself, on copies of packets: devices other than kernel interfaces have
/// no kernel filter.
pub fn is_filtered_in_user_space(interface: &Interface) -> bool {
    interface.index == 0 && interface.name != ANY && !interface.name.starts_with("zc:")
}

/// Returns true if `pcap_dispatch` on such a device returns only with packets, non-blocking or not.
pub fn waits_for_packets(device: &str) -> bool {
    device.starts_with("netmap:") || device.starts_with("vale")
}

/// Refuses to withhold packets from an interface's network stack by mistake.
pub fn refuse_stealing(device: &str, steal: bool) -> Result<()> {
    if !takes_away(device) || steal {
        return Ok(());
    }
    let (framework, name) = device.split_once(':').unwrap_or(("netmap", device));
    let framework = if framework == "zc" {
        "PF_RING ZC"
    } else {
        framework
    };
    Err(Error::usage(
        format!("cannot capture on {device}"),
        format!("{framework} withholds the packets of {name} from the network stack: its connections stop during the capture"),
    )
    .fix("add --steal to use it anyway"))
}

/// Returns a capture file's number for one of the library's, which differ between systems.
pub fn link_type(number: i32) -> Option<u16> {
    match number {
        DLT_RAW | DLT_RAW_OPENBSD => Some(LINKTYPE_RAW),
        11 => Some(100),
        other => u16::try_from(other).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_prefixes_are_not_namespaces() {
        for prefix in ["netmap", "vale0", "zc", "dpdk", "nflog", "vale"] {
            assert!(is_prefix(prefix), "{prefix}");
        }
        for namespace in ["red", "netmaps", "zcx", "vale-a", ""] {
            assert!(!is_prefix(namespace), "{namespace}");
        }
    }

    #[test]
    fn netmap_requires_the_steal_option() {
        assert!(refuse_stealing("netmap:eth0", true).is_ok());
        assert!(refuse_stealing("vale0:a", false).is_ok());
        let error = refuse_stealing("netmap:eth0", false).unwrap_err();
        assert!(
            error
                .how_to_fix()
                .is_some_and(|fix| fix.contains("--steal")),
            "{error}"
        );
    }

    #[test]
    fn link_types_have_the_files_numbers() {
        assert_eq!(link_type(1), Some(1));
        assert_eq!(link_type(12), Some(101));
        assert_eq!(link_type(276), Some(276));
        assert_eq!((link_type(-1), link_type(70_000)), (None, None));
    }
}
