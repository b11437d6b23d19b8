//! The `dpdk` tap: packets of a running DPDK application, copied by its own capture framework. The helper `trawl-dpdk`
//! joins the application; a thread reads its blocks.

mod worker;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use trawl_io::dpdk::{
    self, Cleaner, DIRECTION_RECEIVED, DIRECTION_SENT, Helper, Line, PROGRAM, Request, VARIABLE,
};
use trawl_io::packet_socket::Instruction;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_ring::{Geometry, Rings};
use trawl_sys::interface::Interface;
use trawl_sys::privilege::Capabilities;
use trawl_sys::{Error, Result};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason, ReadFailure};
use crate::filter::Filter;
use crate::options::Direction;
use crate::taps::packet::choice::Sampling;
use crate::taps::packet::{Sharing, instructions};
use crate::taps::refuse_cpu;
use crate::taps::table::{self, Facts};
use crate::{AttachedTap, Tap};
use worker::{DpdkJob, Port, Shared, Worker};

pub const NAME: &str = "dpdk";
const ALL: &str = "all";
/// DPDK's name for an application without a name.
pub const DEFAULT_PREFIX: &str = "rte";
/// Time limits for the helper to join the application, and to leave it: requests to an application time out after 5 s.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);
const LEAVE_PATIENCE: Duration = Duration::from_secs(15);

/// Parses `dpdk:PORT` or `dpdk:all`.
pub fn find(text: &str) -> Result<CaptureSite> {
    let port = text.strip_prefix("dpdk:").unwrap_or_default();
    if port != ALL && port.parse::<u16>().is_err() {
        return Err(Error::usage(
            format!("interface '{text}'"),
            "the dpdk tap requires dpdk:PORT, with the port's number, or dpdk:all",
        ));
    }
    let interface = Interface {
        link_type: LINKTYPE_ETHERNET,
        // The number of queues is known once the helper has joined the application, which then refuses other queues.
        rx_queues: u32::MAX,
        tx_queues: u32::MAX,
        ..Interface::of_a_library(text)
    };
    Ok(CaptureSite {
        label: text.to_owned(),
        namespace: None,
        interface,
        one_of_any: false,
    })
}

#[derive(Debug)]
pub struct Dpdk;

impl Tap for Dpdk {
    fn facts(&self) -> &'static Facts {
        &table::DPDK
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
            "DPDK does not report it",
            "leave out --cpu; --queue chooses by queue",
        )?;
        let program = dpdk::find()?.ok_or_else(no_helper)?;
        let prefix = options
            .peers
            .file_prefix
            .as_deref()
            .unwrap_or(DEFAULT_PREFIX);
        let sharing = Sharing::new(assembly.geometry, 1, assembly.sites);
        let snaplen = assembly.snaplen().min(sharing.own.max_captured());
        let filter = (options.filter.as_ref())
            .map(|filter| classic(filter, site, snaplen))
            .transpose()?;
        let directions = directions(options.direction);
        let cleaner = Cleaner::start(&program, prefix)?;
        let mut helper = Helper::start(&Request {
            program: &program,
            prefix,
            port: site.label.trim_start_matches("dpdk:").parse().ok(),
            queue: options.queue,
            directions,
            snaplen,
            filter: filter.as_deref().unwrap_or_default(),
            ring_bytes: sharing.kernel,
        })?;
        let label = &site.label;
        let mut dialogue = Dialogue {
            helper: &mut helper,
            label,
            prefix,
            cleared: Vec::new(),
            ports: Vec::new(),
        };
        dialogue.until("ready")?;
        dialogue.helper.go();
        dialogue.until("started")?;
        let Dialogue { cleared, ports, .. } = dialogue;
        for event in cleared_ports(label, &cleared) {
            assembly.event(event);
        }
        let queues = ports.iter().map(|port| port.queues).collect::<Vec<_>>();
        let places = Places::new(&queues, directions, options.queue);
        let own = Geometry::for_total(sharing.own.pool_size as u64, places.count())
            .unwrap_or(sharing.own);
        let (rings, producers) = assembly.thread_rings(own, places.count())?;
        let mut points = Vec::new();
        for port in &ports {
            let ids = assembly.add_point(index, site, &rings, NAME, "pdump")?;
            assembly.set_label(ids.point, format!("dpdk:{}", port.number));
            assembly.set_note(ids.point, format!("port {} ({})", port.name, port.mac));
            points.push(Port {
                ids,
                number: port.number,
            });
        }
        let shared = Arc::new(Shared::default());
        let worker = Worker::new(
            helper,
            producers,
            DpdkJob {
                ports: points.clone(),
                places,
                snaplen: snaplen.min(own.max_captured()),
                meta: options.recording.meta,
                sampling: Sampling::new(&options),
            },
            Arc::clone(&shared),
        );
        Ok(Box::new(AttachedDpdk {
            ports: points,
            cleaner,
            waiting: Some(worker),
            thread: None,
            shared,
            rings,
        }))
    }
}

fn directions(direction: Option<Direction>) -> u32 {
    let direction = direction.unwrap_or(Direction::Both);
    let of = |wanted, number| if wanted { number as u32 } else { 0 };
    of(direction.includes_in(), dpdk::DIRECTION_RECEIVED)
        | of(direction.includes_out(), dpdk::DIRECTION_SENT)
}

fn classic(filter: &Filter, site: &CaptureSite, snaplen: u32) -> Result<Vec<Instruction>> {
    if let Filter::Inner(_) = filter {
        return Err(Error::usage(
            "cannot look inside tunnels with the dpdk tap",
            "DPDK accepts classic BPF programs only",
        )
        .fix("leave out --inner, or record and use: trawl read --inner"));
    }
    filter
        .classic(&site.compiler_options(snaplen.max(1))?)
        .map(|classic| instructions(&classic))
}

/// A port of the application.
#[derive(Clone, Debug)]
struct Described {
    number: u16,
    name: String,
    mac: String,
    /// Numbers of receive and send queues.
    queues: [u32; 2],
}

/// The exchange with the helper until it captures.
#[derive(Debug)]
struct Dialogue<'a> {
    helper: &'a mut Helper,
    label: &'a str,
    prefix: &'a str,
    cleared: Vec<Line>,
    ports: Vec<Described>,
}

impl Dialogue<'_> {
    fn until(&mut self, wanted: &str) -> Result<()> {
        while let Some(line) = self.helper.next_line(JOIN_PATIENCE) {
            match line.word.as_str() {
                word if word == wanted => return Ok(()),
                "fail" => return Err(refused(self.label, self.prefix, &line, self.helper)),
                "trawl-dpdk" if line.field(0) != dpdk::EXCHANGE_ABI.to_string() => {
                    return Err(other_build(line.field(0)));
                }
                "cleared" => self.cleared.push(line),
                "port" => self.ports.push(Described {
                    number: line.field(0).parse().unwrap_or_default(),
                    name: line.field(1).to_owned(),
                    mac: line.field(2).to_owned(),
                    queues: [3, 4].map(|field| line.field(field).parse().unwrap_or(1)),
                }),
                _ => {}
            }
        }
        Err(fell_silent(self.label, self.helper))
    }
}

#[derive(Debug)]
struct AttachedDpdk {
    ports: Vec<Port>,
    cleaner: Cleaner,
    /// Worker whose blocks wait in the memory shared with the helper until the thread is started.
    waiting: Option<Worker>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    rings: Arc<Rings>,
}

impl AttachedTap for AttachedDpdk {
    fn start(&mut self) -> Result<()> {
        let Some(worker) = self.waiting.take() else {
            return Ok(());
        };
        let thread = thread::Builder::new()
            .name("trawl-dpdk".to_owned())
            .spawn(move || worker.run(LEAVE_PATIENCE))
            .map_err(|e| Error::os("cannot start a thread that reads packets", e))?;
        self.thread = Some(thread);
        Ok(())
    }

    fn detach(&mut self) -> Vec<Event> {
        self.rings.stop();
        self.waiting = None;
        let Some(thread) = self.thread.take() else {
            return Vec::new();
        };
        if thread.join().is_err() {
            self.shared.fail(ReadFailure::ThreadCrashed);
        }
        let failure = self.shared.failure().cloned();
        let mut said: Vec<Event> = failure.map(Event::ReadFailed).into_iter().collect();
        if self.shared.was_killed() {
            said.extend(cleared_ports(NAME, &self.cleaner.clear()));
        }
        said
    }

    /// Killing a stuck helper requires CAP_KILL after a change of user.
    fn keeps(&self) -> Capabilities {
        Capabilities::KILL
    }

    fn ended(&mut self) -> Option<GoneReason> {
        self.shared.failure().cloned().map(GoneReason::ReadFailed)
    }

    fn filtered_out(&mut self) -> Vec<(u32, u64)> {
        let of = |port: &Port| (port.ids.point, self.shared.counts(port.number).filtered);
        self.ports.iter().map(of).collect()
    }

    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        let of = |port: &Port| {
            let counts = self.shared.counts(port.number);
            let put_in = counts.accepted.saturating_sub(counts.ring_full);
            [
                (port.ids.point, "no_buffer", counts.no_buffer),
                (port.ids.point, "dpdk_ring_full", counts.ring_full),
                // Occurs only if one of the two processes was killed.
                (
                    port.ids.point,
                    "not_handed_over",
                    put_in.saturating_sub(counts.handed_over),
                ),
            ]
        };
        self.ports.iter().flat_map(of).collect()
    }
}

impl Drop for AttachedDpdk {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Maximum number of rings; more queues share them.
const RINGS_MOST: usize = 64;

#[derive(Clone, Debug)]
pub struct Places {
    /// First ring for received and for sent packets of each port, in the order of the points, with the number of queues.
    ports: Vec<[(usize, u32); 2]>,
    count: usize,
}

impl Places {
    pub fn new(queues: &[[u32; 2]], directions: u32, queue: Option<u32>) -> Self {
        let mut count = 0;
        let mut of = |direction: usize, queues: u32| {
            let wanted = directions & direction as u32 != 0;
            let number = match (wanted, queue) {
                (false, _) => 0,
                (true, Some(_)) => 1,
                (true, None) => queues.max(1),
            };
            let first = count;
            count += number as usize;
            (first, number)
        };
        let ports = queues
            .iter()
            .map(|[received, sent]| [of(DIRECTION_RECEIVED, *received), of(DIRECTION_SENT, *sent)])
            .collect();
        Self {
            ports,
            count: count.clamp(1, RINGS_MOST),
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the ring of a block.
    pub fn ring(&self, port: usize, is_sent: bool, queue: u32) -> usize {
        let (first, queues) = self.ports[port][usize::from(is_sent)];
        (first + (queue % queues.max(1)) as usize) % self.count
    }
}

#[cfg(test)]
mod place_tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_queue_has_a_ring_of_its_own() {
        let places = Places::new(&[[2, 3], [1, 1]], 3, None);
        let mut rings = BTreeSet::new();
        for (port, is_sent, queues) in [(0, false, 2), (0, true, 3), (1, false, 1), (1, true, 1)] {
            (0..queues).for_each(|queue| _ = rings.insert(places.ring(port, is_sent, queue)));
        }
        assert_eq!((places.count(), rings.len()), (7, 7));
    }

    #[test]
    fn only_chosen_queues_have_rings() {
        assert_eq!(Places::new(&[[4, 4]], 1, None).count(), 4);
        assert_eq!(Places::new(&[[4, 4]], 3, Some(2)).count(), 2);
        assert_eq!(Places::new(&[], 3, None).count(), 1);
        let many = Places::new(&[[60, 60]], 3, None);
        assert_eq!(many.count(), RINGS_MOST);
        assert!(many.ring(0, true, 59) < RINGS_MOST);
    }
}

const BUILD: &str = "make build-dpdk";

pub fn no_helper() -> Error {
    Error::failed(
        "cannot use the dpdk tap",
        format!("its helper {PROGRAM} was not found next to trawl, and {VARIABLE} is not set"),
    )
    .fix("make build-dpdk (apt-get install libdpdk-dev), with the same version of DPDK as the application's")
}

pub fn other_build(theirs: &str) -> Error {
    Error::failed(
        "cannot use the dpdk tap",
        format!("{PROGRAM} is of another build of trawl (exchange {theirs})"),
    )
    .fix(BUILD)
}

pub fn fell_silent(label: &str, helper: &Helper) -> Error {
    let said = helper
        .last_words()
        .unwrap_or_else(|| "it printed nothing".to_owned());
    Error::failed(
        format!("cannot capture on {label}"),
        format!("{PROGRAM} has ended without saying why: {said}"),
    )
}

/// Explains why the helper does not capture.
pub fn refused(label: &str, prefix: &str, line: &Line, helper: &Helper) -> Error {
    let what = format!("cannot capture on {label}");
    let log = || {
        helper
            .last_words()
            .map_or(String::new(), |said| format!(" ({said})"))
    };
    let [first, second, third, fourth] = [1, 2, 3, 4].map(|number| line.field(number));
    match line.field(0) {
        "no_primary" => Error::failed(
            what,
            format!("no DPDK application with the file prefix {prefix} is running: {first}: {second}"),
        )
        .fix("--file-prefix selects another one; ls /run/dpdk lists the started ones"),
        "not_ready" => Error::failed(
            what,
            format!("the DPDK application with the file prefix {prefix} has not finished its start"),
        )
        .fix("try again"),
        "version" => Error::failed(
            what,
            format!("the application has DPDK {first}, {PROGRAM} was built for {second}; both must have the same version"),
        )
        .fix(format!("PKG_CONFIG_PATH=DIRECTORY-OF-THAT-libdpdk.pc {BUILD}")),
        "init" => Error::failed(
            what,
            format!("DPDK cannot join the application as a secondary process: {first}{}", log()),
        )
        .fix("start it without --no-huge and without --in-memory"),
        "no_pool" => Error::failed(
            what,
            "the application has no packet pool of the kind ring_mp_mc, from which its table of pool operations is learnt",
        )
        .fix("start it with --mbuf-pool-ops-name=ring_mp_mc"),
        "no_pdump" => Error::failed(
            what,
            "the application has not started DPDK's capture framework",
        )
        .fix("it has to call rte_pdump_init(), as dpdk-testpmd does"),
        "no_port" => Error::usage(
            what,
            match second {
                "" => "the application has no ports that a secondary process sees".to_owned(),
                ports => format!("the application has no port {first}; its ports are {ports}"),
            },
        ),
        "no_queue" => Error::usage(
            what,
            format!("port {first} has no queue {second}: it receives by {third} and sends by {fourth}"),
        ),
        "filter" => Error::failed(
            "cannot use this filter with the dpdk tap",
            format!("DPDK cannot convert it: {first}{}", log()),
        )
        .fix("record without it, and use: trawl read -r FILE -w FILTERED EXPRESSION"),
        "exists" => Error::failed(
            what,
            match second {
                "0" => format!("another capture is on port {first}, and DPDK allows one"),
                pid => format!("another capture is on port {first} (process {pid}), and DPDK allows one"),
            },
        )
        .fix("end that one first"),
        "memory" => Error::failed(
            what,
            format!("the application's huge pages have no room for the copies of packets: {first}"),
        )
        .fix("sysctl -w vm.nr_hugepages=NUMBER allows more, and the application must be allowed to use them"),
        "pdump" => Error::failed(what, format!("the application refuses the capture of port {first}: {second}{}", log())),
        "owner" => Error::failed(what, format!("cannot write in {first}: {second}")),
        "places" => Error::usage(what, format!("{first} queues are the limit"))
            .fix("choose one queue with --queue, or one port"),
        _ => Error::failed(what, line.rest.join(" ")),
    }
}

/// Returns events for the remains of killed captures that were removed.
pub fn cleared_ports(label: &str, lines: &[Line]) -> Vec<Event> {
    let of = |line: &Line| {
        (line.word == "cleared").then(|| (line.field(1).to_owned(), line.field(0).to_owned()))
    };
    let found: BTreeSet<(String, String)> = lines.iter().filter_map(of).collect();
    found
        .into_iter()
        .map(|(pid, port)| Event::DpdkPortCleared {
            interface: label.to_owned(),
            port,
            pid,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named_by_number_or_all() {
        assert_eq!(find("dpdk:3").expect("a port").label, "dpdk:3");
        assert!(find("dpdk:all").is_ok());
        for wrong in [
            "dpdk:",
            "eth0",
            "dpdk:-1",
            "dpdk:70000",
            "dpdk:0,1",
            "0",
            "",
        ] {
            let error = find(wrong).expect_err(wrong);
            assert!(error.to_string().contains("dpdk:PORT"), "{error}");
        }
    }

    #[test]
    fn directions_go_together() {
        assert_eq!(directions(None), 3);
        assert_eq!(directions(Some(Direction::In)), 1);
        assert_eq!(directions(Some(Direction::Out)), 2);
        assert_eq!(directions(Some(Direction::Both)), 3);
    }
}
