//! `trawl follow`: one packet's way over the tracepoints of the kernel's network stack, to its end. Experimental.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use trawl_kernel::{Error, Result, clock, host, process};
use trawl_tap::account::Summary;
use trawl_tap::assembly::{Host, Point};
use trawl_tap::notice::Notice;
use trawl_tap::options::{Drops, Options};
use trawl_tap::session::{Ended, Observer, Session};
use trawl_tap::sink::Sink;
use trawl_tap::site::Site;
use trawl_view::drop::Drop as Dropped;
use trawl_view::print::{PrintOptions, Printer};
use trawl_view::record::{PacketView, Place, RingBlocks, Source, add_places};

use crate::libpcap::LibpcapArg;
use crate::why::watching_drops;
use crate::{json, terminal, units};

/// A packet that was not seen for so long is not known again: bpf/include/drop.h.
const AGE_NS: u64 = 10_000_000_000;
/// The steps that are a packet's end.
const ENDS: [&str; 2] = ["consumed", "dropped"];

/// Shows the way of single packets: where each was received, queued and transmitted, and where it ended (experimental)
#[derive(Debug, clap::Args)]
pub struct Args {
    /// End after this many packets
    #[arg(short = 'c', long = "count", value_name = "N", default_value_t = u64::MAX, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Packets that are seen first in this network namespace; they are followed into others
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// Packets that are seen first at this interface, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// End after this time, for example 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// One JSON object a line for each packet
    #[arg(long)]
    json: bool,
    /// Which packets, as tcpdump takes it
    #[arg(value_name = "FILTER", trailing_var_arg = true, required = true)]
    expression: Vec<String>,
    #[command(flatten)]
    libpcap: LibpcapArg,
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    let sites = args
        .interfaces
        .iter()
        .map(|text| Site::find(text, args.netns.as_deref()))
        .collect::<Result<Vec<_>>>()?;
    let options = options(&args)?;
    let about = host::describe();
    let host = Host {
        os: about.os,
        hardware: about.hardware,
        application: format!("trawl {}", env!("CARGO_PKG_VERSION")),
    };
    let mut observer = Watcher;
    let session = Session::attach(&sites, &options, host, &mut observer)?;
    let mut sink = Following {
        places: session
            .interfaces()
            .iter()
            .zip(session.hook_names())
            .map(|(interface, hook)| Place::new(interface, hook))
            .collect(),
        described: 0,
        open: BTreeMap::new(),
        left: args.count,
        json: args.json,
    };
    let (summary, ended) = session.run(&mut sink, &mut observer)?;
    sink.end_all()?;
    terminal::say(&format!("steps: {}", summary.total));
    match ended {
        Ended::Signal | Ended::Duration | Ended::Count => Ok(ExitCode::SUCCESS),
        Ended::Output(error) => Err(error),
        other => Err(Error::failed("cannot go on following packets", other)),
    }
}

fn options(args: &Args) -> Result<Options> {
    let drops = Drops {
        reasons: None,
        no_losses: true,
        stack: false,
        follow: true,
        namespace: args.netns.clone(),
    };
    watching_drops(drops, &args.expression, args.duration)
}

struct Watcher;

impl Observer for Watcher {
    fn notice(&mut self, notice: &Notice) {
        if let Notice::Text { text } = notice {
            terminal::say(text);
        }
    }

    fn started(&mut self, points: &[Point]) {
        for point in points {
            terminal::say(&format!(
                "following packets on {} (experimental)",
                point.label
            ));
        }
    }

    fn figures(&mut self, summary: &Summary) {
        terminal::say(&summary.total.to_string());
    }
}

/// A packet on its way.
#[derive(Debug, Serialize)]
struct Way {
    packet_id: u64,
    /// The packet as it was seen first, in tcpdump's manner.
    packet: String,
    steps: Vec<Step>,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum End {
    Consumed,
    Dropped,
    /// It was not seen any more, or not known again for certain.
    Gap,
}

#[derive(Debug, Serialize)]
struct Step {
    step: String,
    /// Since 1970.
    time_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    netns: Option<String>,
    /// The packet at this step, where addresses or ports are others than before.
    #[serde(skip_serializing_if = "Option::is_none")]
    packet: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The function where it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl Step {
    /// `None` for what is no step of a packet that is followed.
    fn new(packet: &PacketView<'_>) -> Option<(Self, String)> {
        let comment = packet.comment?.strip_prefix("step=")?;
        let step = comment.split(' ').next()?;
        let word = |key: &str| {
            let mut words = comment.split(' ').filter_map(|word| word.split_once('='));
            let found = words.find(|(one, _)| *one == key);
            found.map(|(_, value)| value.to_owned())
        };
        let drop = comment
            .split_once(' ')
            .and_then(|(_, rest)| Dropped::parse(rest));
        let mut line = String::new();
        Printer::new(PrintOptions {
            timestamp: trawl_view::print::Timestamp::None,
            ..PrintOptions::default()
        })
        .line(
            &mut line,
            &PacketView {
                link_type: packet.link_type,
                captured: packet.captured,
                original_len: packet.original_len,
                ..PacketView::default()
            },
        );
        let step = Self {
            step: step.to_owned(),
            time_ns: packet.timestamp_ns,
            interface: packet
                .interface
                .filter(|name| *name != "unknown")
                .map(str::to_owned),
            netns: word("netns"),
            packet: None,
            reason: drop.map(|drop| drop.reason.to_owned()),
            at: word("at"),
        };
        Some((step, line.trim_end().to_owned()))
    }
}

struct Following {
    places: Vec<Place>,
    described: usize,
    open: BTreeMap<u64, (Way, String)>,
    /// Packets whose way is still to be shown.
    left: u64,
    json: bool,
}

impl Following {
    fn take(&mut self, packet: &PacketView<'_>) -> Result<()> {
        let (Some(id), Some((mut step, line))) = (packet.packet_id, Step::new(packet)) else {
            return Ok(());
        };
        let is_end = ENDS.contains(&step.step.as_str());
        let (way, last) = self.open.entry(id).or_insert_with(|| {
            let way = Way {
                packet_id: id,
                packet: line.clone(),
                steps: Vec::new(),
                end: End::Gap,
            };
            (way, line.clone())
        });
        if *last != line {
            step.packet = Some(line.clone());
            *last = line;
        }
        way.end = match step.step.as_str() {
            "consumed" => End::Consumed,
            "dropped" => End::Dropped,
            _ => End::Gap,
        };
        way.steps.push(step);
        if is_end && let Some((way, _)) = self.open.remove(&id) {
            self.tell(&way)?;
        }
        Ok(())
    }

    /// What was not seen for so long is not known again.
    fn end_old(&mut self) -> Result<()> {
        let now = clock::wall();
        let is_old = |way: &Way| {
            let last = way.steps.last().map_or(0, |step| step.time_ns);
            now.saturating_sub(last) > AGE_NS
        };
        let old: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, (way, _))| is_old(way))
            .map(|(id, _)| *id)
            .collect();
        for id in old {
            if let Some((way, _)) = self.open.remove(&id) {
                self.tell(&way)?;
            }
        }
        Ok(())
    }

    fn end_all(&mut self) -> Result<()> {
        for (way, _) in std::mem::take(&mut self.open).into_values() {
            self.tell(&way)?;
        }
        Ok(())
    }

    fn tell(&mut self, way: &Way) -> Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        if self.left == 0 {
            process::interrupt(std::process::id())?;
        }
        let text = match self.json {
            true => json::line(way)?,
            false => words(way),
        };
        terminal::write_out(&text)
    }
}

fn words(way: &Way) -> String {
    let mut text = format!("{}\n", way.packet);
    let first = way.steps.first().map_or(0, |step| step.time_ns);
    for step in &way.steps {
        let micros = step.time_ns.saturating_sub(first) as f64 / 1000.0;
        let mut at = step.interface.clone().unwrap_or_default();
        if let Some(netns) = &step.netns {
            at += &format!(" ({netns})");
        }
        let mut more: Vec<String> = Vec::new();
        more.extend(step.reason.clone());
        more.extend(step.at.as_ref().map(|at| format!("at {at}")));
        more.extend(step.packet.as_ref().map(|packet| format!("now {packet}")));
        text += &format!(
            "  {micros:>10.1} us  {:<12} {at:<24} {}",
            step.step,
            more.join(" ")
        );
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    if way.end == End::Gap {
        text += "                 gap          not seen any more, or not known again for certain\n";
    }
    text
}

impl Sink for Following {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        add_places(&mut self.places, &mut self.described, bytes);
        let places = std::mem::take(&mut self.places);
        let mut source = RingBlocks::new(bytes, &places);
        let mut result = Ok(());
        while let (Ok(()), Ok(true)) = (&result, source.advance()) {
            if let Some(packet) = source.current() {
                result = self.take(&packet);
            }
        }
        self.places = places;
        result.and_then(|()| self.end_old())
    }

    fn rest(&mut self) -> Result<()> {
        self.end_old()
    }
}
