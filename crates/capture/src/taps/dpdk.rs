//! The `dpdk` tap: packets of a running DPDK application, copied by its own capture framework. The helper `trawl-dpdk`
//! joins the application; a thread reads its blocks.

mod worker;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use trawl_io::dpdk::{self, Cleaner, DpdkLine, DpdkRequest, Helper, PROGRAM, VARIABLE, presence};
use trawl_io::packet_socket::Instruction;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_ring::Geometry;
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason};
use crate::filter::Compile;
use crate::sampling::Sampling;
use crate::taps::facts::{Facts, Gives, MOST, Missing, ReadsBy};
use crate::taps::tap::refuse_cpu;
use crate::taps::threads::{Sharing, Threads};
use crate::{AttachedTap, Tap};
use trawl_plan::TapChoice;
use trawl_plan::filter::Filter;
use trawl_plan::options::Direction;
use worker::{DpdkPlan, HelperState, Port, QueueRings, Worker};

pub const FACTS: Facts = Facts {
    choice: TapChoice::Dpdk,
    sees: "packets of a DPDK application's ports, copied by its capture framework (pdump)",
    gives: Gives { received: true, sent: true, queue: true, ..Gives::NOTHING },
    needs: "the helper trawl-dpdk (`make build-dpdk`), and an application with the same version of DPDK that calls rte_pdump_init()",
    reads_by: ReadsBy::Thread,
    no_hardware_time: "DPDK's capture framework stamps packets by the processor's counter",
    lacks: || lack_of_helper().map(|why| Missing { feature: PROGRAM, refused: false, why }),
    ..MOST
};

/// Returns the reason for which the helper of the dpdk tap does not work, if so.
fn lack_of_helper() -> Option<String> {
    match presence() {
        dpdk::Presence::Ready { .. } => None,
        dpdk::Presence::NotThere => Some("the helper was not found next to trawl: make build-dpdk".to_owned()),
        dpdk::Presence::DoesNotRun { program, said } => {
            Some(format!("{} does not run ({said}): make build-dpdk", program.display()))
        }
        dpdk::Presence::OtherBuild { program } => {
            Some(format!("{} belongs to another build of trawl: make build-dpdk", program.display()))
        }
    }
}

const NAME: &str = "dpdk";
/// DPDK's name for an application without a name.
pub const DEFAULT_PREFIX: &str = "rte";
/// Time limits for the helper to join the application, and to leave it: requests to an application time out after 5 s.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);
const LEAVE_PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct Dpdk;

impl Tap for Dpdk {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn attach(&self, index: usize, sites: &[CaptureSite], assembly: &mut Assembly) -> Result<Box<dyn AttachedTap>> {
        let site = &sites[index];
        let options = Rc::clone(&assembly.options);
        refuse_cpu(&options, NAME, "DPDK does not report it", "leave out --cpu; --queue chooses by queue")?;
        let program = dpdk::find()?.ok_or_else(no_helper)?;
        let prefix = options.peers.file_prefix.as_deref().unwrap_or(DEFAULT_PREFIX);
        let sharing = Sharing::new(assembly.rings.geometry, 1, assembly.sites, usize::MAX);
        let snaplen = assembly.snaplen().min(sharing.own.max_captured());
        let filter = (options.filter.as_ref()).map(|filter| classic(filter, site, snaplen)).transpose()?;
        let directions = directions(options.direction);
        let cleaner = Cleaner::start(&program, prefix)?;
        let mut helper = Helper::start(&DpdkRequest {
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
        let mut dialogue = Dialogue { helper: &mut helper, label, prefix, cleared: Vec::new(), ports: Vec::new() };
        dialogue.read_until("ready")?;
        dialogue.helper.go();
        dialogue.read_until("started")?;
        let Dialogue { cleared, ports, .. } = dialogue;
        for event in cleared_ports(label, &cleared) {
            assembly.event(event);
        }
        let queues = ports.iter().map(|port| port.queues).collect::<Vec<_>>();
        let queue_rings = QueueRings::new(&queues, directions, options.queue);
        let own = Geometry::for_total(sharing.own.pool_size as u64, queue_rings.count()).unwrap_or(sharing.own);
        let (rings, producers) = assembly.rings.of_threads(own, queue_rings.count())?;
        let mut points = Vec::new();
        for port in &ports {
            let ids = assembly.add_point(index, site, &rings, &FACTS, "pdump")?;
            assembly.points.set_label(ids.point, format!("dpdk:{}", port.number));
            assembly.points.set_note(ids.point, format!("port {} ({})", port.name, port.mac));
            points.push(Port { ids, number: port.number });
        }
        let threads = Threads::new(rings);
        let state = Arc::new(HelperState::default());
        let worker = Worker::new(
            helper,
            producers,
            DpdkPlan {
                ports: points.clone(),
                queue_rings,
                extent: assembly.extent(snaplen.min(own.max_captured()), LINKTYPE_ETHERNET),
                meta: options.recording.meta,
                sampling: Sampling::new(&options),
            },
            Arc::clone(&state),
            threads.failure(),
        );
        Ok(Box::new(AttachedDpdk { ports: points, cleaner, waiting: Some(worker), threads, state }))
    }
}

fn directions(direction: Option<Direction>) -> u32 {
    let direction = direction.unwrap_or(Direction::Both);
    let of = |wanted, number| if wanted { number as u32 } else { 0 };
    of(direction.includes_in(), dpdk::DIRECTION_RECEIVED) | of(direction.includes_out(), dpdk::DIRECTION_SENT)
}

fn classic(filter: &Filter, site: &CaptureSite, snaplen: u32) -> Result<Vec<Instruction>> {
    if let Filter::Inner(_) = filter {
        return Err(Error::usage(
            "cannot look inside tunnels with the dpdk tap",
            "DPDK accepts classic BPF programs only",
        )
        .fix("leave out --inner, or record and use: trawl read --inner"));
    }
    filter.classic(&site.compiler_options(snaplen.max(1))?).map(|classic| classic.instructions().to_vec())
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
    cleared: Vec<DpdkLine>,
    ports: Vec<Described>,
}

impl Dialogue<'_> {
    /// Reads the helper's lines up to this word.
    fn read_until(&mut self, wanted: &str) -> Result<()> {
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
        Err(ended_silently(self.label, self.helper))
    }
}

#[derive(Debug)]
struct AttachedDpdk {
    ports: Vec<Port>,
    cleaner: Cleaner,
    /// Worker whose blocks wait in the memory shared with the helper until the thread is started.
    waiting: Option<Worker>,
    threads: Threads,
    state: Arc<HelperState>,
}

impl AttachedTap for AttachedDpdk {
    fn start(&mut self) -> Result<()> {
        match self.waiting.take() {
            Some(worker) => self.threads.start(NAME, || worker.run(LEAVE_PATIENCE)),
            None => Ok(()),
        }
    }

    fn detach(&mut self) -> Vec<Event> {
        self.threads.stop();
        self.waiting = None;
        let mut events: Vec<Event> = self.threads.join().into_iter().collect();
        if self.state.take_killed() {
            events.extend(cleared_ports(NAME, &self.cleaner.clear()));
        }
        events
    }

    /// Killing a stuck helper requires CAP_KILL after a change of user.
    fn needed_capabilities(&self) -> Capabilities {
        Capabilities::KILL
    }

    fn ended(&mut self) -> Option<GoneReason> {
        self.threads.ended()
    }

    fn filtered_out(&mut self) -> Vec<(u32, u64)> {
        let of = |port: &Port| (port.ids.point, self.state.counts(port.number).filtered);
        self.ports.iter().map(of).collect()
    }

    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        let of = |port: &Port| {
            let counts = self.state.counts(port.number);
            let put_in = counts.accepted.saturating_sub(counts.ring_full);
            [
                (port.ids.point, "no_buffer", counts.no_buffer),
                (port.ids.point, "dpdk_ring_full", counts.ring_full),
                // Occurs only if one of the two processes was killed.
                (port.ids.point, "not_handed_over", put_in.saturating_sub(counts.handed_over)),
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

const BUILD: &str = "make build-dpdk";

pub fn no_helper() -> Error {
    Error::failed(
        "cannot use the dpdk tap",
        format!("its helper {PROGRAM} was not found next to trawl, and {VARIABLE} is not set"),
    )
    .fix("make build-dpdk (apt-get install libdpdk-dev), with the same version of DPDK as the application's")
}

pub fn other_build(theirs: &str) -> Error {
    Error::failed("cannot use the dpdk tap", format!("{PROGRAM} belongs to another build of trawl (exchange {theirs})"))
        .fix(BUILD)
}

pub fn ended_silently(label: &str, helper: &Helper) -> Error {
    let said = helper.last_message().unwrap_or_else(|| "it printed nothing".to_owned());
    Error::failed(format!("cannot capture on {label}"), format!("{PROGRAM} ended without an error message: {said}"))
}

/// Explains why the helper does not capture.
pub fn refused(label: &str, prefix: &str, line: &DpdkLine, helper: &Helper) -> Error {
    let what = format!("cannot capture on {label}");
    let log = || helper.last_message().map_or(String::new(), |said| format!(" ({said})"));
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
            format!("the application has no packet pool of the kind ring_mp_mc, from which {PROGRAM} learns its table of pool operations"),
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
        .fix("end that capture first"),
        "memory" => Error::failed(
            what,
            format!("the application's huge pages have no room for the copies of packets: {first}"),
        )
        .fix("sysctl -w vm.nr_hugepages=NUMBER allows more, and the application must be allowed to use them"),
        "pdump" => Error::failed(what, format!("the application refuses the capture of port {first}: {second}{}", log())),
        "owner" => Error::failed(what, format!("cannot write to {first}: {second}")),
        "places" => Error::usage(what, format!("the limit is {first} queues"))
            .fix("choose one queue with --queue, or one port"),
        _ => Error::failed(what, line.rest.join(" ")),
    }
}

/// Returns events for the remains of killed captures that were removed.
pub fn cleared_ports(label: &str, lines: &[DpdkLine]) -> Vec<Event> {
    let of = |line: &DpdkLine| (line.word == "cleared").then(|| (line.field(1).to_owned(), line.field(0).to_owned()));
    let found: BTreeSet<(String, String)> = lines.iter().filter_map(of).collect();
    found.into_iter().map(|(pid, port)| Event::DpdkPortCleared { interface: label.to_owned(), port, pid }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named_by_number_or_all() {
        assert_eq!(CaptureSite::of_dpdk("dpdk:3").expect("a port").label, "dpdk:3");
        assert!(CaptureSite::of_dpdk("dpdk:all").is_ok());
        for wrong in ["dpdk:", "eth0", "dpdk:-1", "dpdk:70000", "dpdk:0,1", "0", ""] {
            let error = CaptureSite::of_dpdk(wrong).expect_err(wrong);
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
