//! The `dpdk` tap: packets of a running DPDK application, copied by its own capture framework. The helper `trawl-dpdk`
//! joins the application; a thread reads the blocks that it hands over.

use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use trawl_io::dpdk::{self, Cleaner, Helper, Line, Request};
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
use crate::options::{Direction, Options};
use crate::packet::Sharing;
use crate::packet::choice::Sampling;
use crate::packet::filter::instructions;
use crate::table::{self, Facts};
use crate::{AttachedTap, Tap};

mod place;
mod words;
mod worker;

use place::Places;
use worker::{DpdkJob, Port, Shared, Worker};

pub const NAME: &str = "dpdk";
const ALL: &str = "all";
/// What DPDK calls an application that was given no name.
pub const DEFAULT_PREFIX: &str = "rte";
/// How long the helper may take to join the application, and to leave it: requests to an application time out after 5 s.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);
const LEAVE_PATIENCE: Duration = Duration::from_secs(15);

/// `dpdk:PORT` or `dpdk:all`.
pub fn find(text: &str) -> Result<CaptureSite> {
    let port = text.strip_prefix("dpdk:").unwrap_or_default();
    if port != ALL && port.parse::<u16>().is_err() {
        return Err(Error::usage(
            format!("interface '{text}'"),
            "the dpdk tap takes dpdk:PORT, with the port's number, or dpdk:all",
        ));
    }
    let interface = Interface {
        link_type: LINKTYPE_ETHERNET,
        // How many there are is known when the helper has joined the application, which then refuses others.
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
        refuse_cpu(&options)?;
        let program = dpdk::find()?.ok_or_else(words::no_helper)?;
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
        for notice in words::cleared(label, &cleared) {
            assembly.event(notice);
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

/// The framework does not tell on which core a packet was handled.
fn refuse_cpu(options: &Options) -> Result<()> {
    match options.cpu {
        Some(_) => Err(Error::usage(
            "cannot choose packets by CPU with the dpdk tap",
            "DPDK does not tell it",
        )
        .fix("leave out --cpu; --queue chooses by queue")),
        None => Ok(()),
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
            "DPDK takes classic BPF programs only",
        )
        .fix("leave out --inner, or record and use: trawl read --inner"));
    }
    filter
        .at_site(site, snaplen.max(1))
        .map(|classic| instructions(&classic))
}

/// A port of the application.
#[derive(Clone, Debug)]
struct Described {
    number: u16,
    name: String,
    mac: String,
    /// That it receives by, and that it sends by.
    queues: [u32; 2],
}

/// What the helper says until it is at work.
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
                "fail" => return Err(words::refused(self.label, self.prefix, &line, self.helper)),
                "trawl-dpdk" if line.field(0) != dpdk::EXCHANGE_ABI.to_string() => {
                    return Err(words::other_build(line.field(0)));
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
        Err(words::fell_silent(self.label, self.helper))
    }
}

#[derive(Debug)]
struct AttachedDpdk {
    ports: Vec<Port>,
    cleaner: Cleaner,
    /// Its blocks wait in the memory shared with the helper until the thread is started.
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
            said.extend(words::cleared(NAME, &self.cleaner.clear()));
        }
        said
    }

    /// A helper that does not end is killed, whoever we are by then.
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
                // Only where one of the two processes was killed.
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
