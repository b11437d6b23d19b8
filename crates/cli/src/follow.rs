//! `trawl follow`: one packet's way over the kernel's network stack, to its end. Experimental.

mod step;
mod way;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use trawl_pipeline::{Blocks, Outcome, Pressure, Writer};
use trawl_sys::privilege::Capabilities;
use trawl_sys::{Error, Result, clock, process};
use trawl_tap::assembly::Host;
use trawl_tap::drop::Along;
use trawl_tap::options::{At, Drops, Memory, MemorySize, Options};
use trawl_tap::session::{self, Ended};
use trawl_view::record::{BlockOrigin, PacketView, RingBlocks, Source, add_places};

use crate::json::Remark;
use crate::libpcap::LibpcapArg;
use crate::netns::NamespacesArg;
use crate::why::{Watcher, watching_drops};
use crate::{capture, json, terminal, units};
use way::{End, Joined, PacketPath};

/// A way that was not gone on for so long after its last step is told.
const PATIENCE_NS: u64 = 100_000_000;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A packet that was not seen for so long is not known again: bpf/include/drop.h.
const AGE_NS: u64 = 10_000_000_000;

/// Shows the way of single packets: XDP, GRO, tc, netfilter, routing, queues, devices and namespaces, to the socket or to where each ended (experimental)
#[derive(Debug, clap::Args)]
pub struct Args {
    /// End after this many packets
    #[arg(short = 'c', long = "count", value_name = "N", default_value_t = u64::MAX, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    #[command(flatten)]
    namespaces: NamespacesArg,
    /// Packets that are seen first at this interface, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// Look at netfilter, tc and XDP in these network namespaces [default: where packets are seen first]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    within: Vec<String>,
    /// Memory for steps that are not printed yet; while half of it is in use, new packets are not followed and count as lost [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
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

impl Args {
    /// The namespaces with netfilter, tc and XDP programs to look at; none for all.
    fn within(&self) -> Vec<String> {
        if !self.within.is_empty() {
            return self.within.clone();
        }
        let of_interfaces = self.interfaces.iter().map(|name| name.split_once(':'));
        let named: Option<Vec<_>> = of_interfaces.collect();
        match named {
            Some(named) if !named.is_empty() => {
                named.into_iter().map(|(name, _)| name.to_owned()).collect()
            }
            _ => self.namespaces.names(),
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    let drops = Drops {
        no_losses: true,
        follow: true,
        namespaces: args.namespaces.names(),
        entries: args.interfaces.clone(),
        within: args.within(),
        ..Drops::default()
    };
    let sites = Along::find(&drops)?.with_programs();
    let options = Options {
        at: Some(At::Both),
        memory: Memory::growing_to(args.memory.map_or(MemorySize::Usual, MemorySize::Total)),
        ..watching_drops(drops, &args.expression, args.duration)
    };
    let mut observer = Watcher {
        json: args.json,
        started: |point| {
            let is_whole = point.site.is_none();
            is_whole.then(|| format!("following packets on {} (experimental)", point.label))
        },
    };
    let attached = session::attach(&sites, &options, Host::this(), &mut observer)?;
    let confined = attached.confine(None, Capabilities::empty())?;
    let mut sink = Following {
        places: capture::shown::origins(confined.session()),
        described: 0,
        open: BTreeMap::new(),
        joined: Joined::default(),
        left: args.count,
        json: args.json,
        now: 0,
        came: false,
        looked: Instant::now(),
    };
    let (summary, ended) = confined.run(&mut sink, &mut observer)?;
    sink.end_all()?;
    json::say(
        &Remark::Account(&summary.total),
        &format!("steps: {}", summary.total),
    );
    match ended {
        Ended::Signal | Ended::Duration | Ended::Count | Ended::Size => Ok(ExitCode::SUCCESS),
        Ended::Output(error) => Err(error),
        other => Err(Error::failed("cannot continue to follow packets", other)),
    }
}

struct Following {
    places: Vec<BlockOrigin>,
    described: usize,
    open: BTreeMap<u64, PacketPath>,
    /// What receive offload joined, of late.
    joined: Joined,
    /// Packets whose way is still to be shown.
    left: u64,
    json: bool,
    /// The time of the last record, or later.
    now: u64,
    /// There were records since ways were looked at last.
    came: bool,
    /// When ways were looked at last that have not gone on.
    looked: Instant,
}

impl Following {
    fn take(&mut self, packet: &PacketView<'_>) -> Result<()> {
        let Some(id) = packet.packet_id else {
            return Ok(());
        };
        self.now = self.now.max(packet.timestamp_ns);
        self.came = true;
        let Some(seen) = step::Seen::new(packet) else {
            return Ok(());
        };
        self.joined.note(id, &seen);
        let way = self
            .open
            .entry(id)
            .or_insert_with(|| PacketPath::new(id, packet, &seen));
        way.go_on(packet, seen);
        if way.is_over()
            && let Some(way) = self.open.remove(&id)
        {
            self.tell(&way)?;
        }
        Ok(())
    }

    /// Ways that have not gone on for a while.
    fn end_old(&mut self) -> Result<()> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        // Records may be read long after they were made; the clock counts when there are none to read.
        if !std::mem::take(&mut self.came) {
            self.now = self.now.max(clock::wall());
        }
        let now = self.now;
        let joined = &self.joined;
        let is_old = |way: &PacketPath| {
            let idle = now.saturating_sub(way.last_time());
            let comes_no_more = way.may_be_over() || joined.has(way).is_some();
            idle > AGE_NS || idle > PATIENCE_NS && comes_no_more
        };
        let old: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, way)| is_old(way))
            .map(|(id, _)| *id)
            .collect();
        for id in old {
            if let Some(way) = self.open.remove(&id) {
                self.close(way)?;
            }
        }
        self.joined.forget_before(now.saturating_sub(AGE_NS));
        Ok(())
    }

    fn end_all(&mut self) -> Result<()> {
        for way in std::mem::take(&mut self.open).into_values() {
            self.close(way)?;
        }
        Ok(())
    }

    fn close(&mut self, mut way: PacketPath) -> Result<()> {
        if matches!(way.end, End::Gap | End::Consumed)
            && let Some(into) = self.joined.has(&way)
        {
            way.end = End::Joined;
            way.joined_into = Some(into);
        }
        self.tell(&way)
    }

    fn tell(&mut self, way: &PacketPath) -> Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        if self.left == 0 {
            process::interrupt(std::process::id())?;
        }
        let text = match self.json {
            true => json::line(way)?,
            false => way.to_string(),
        };
        terminal::write_out(&text)
    }
}

impl Writer for Following {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let bytes = blocks.bytes();
        add_places(&mut self.places, &mut self.described, bytes);
        let places = std::mem::take(&mut self.places);
        let mut source = RingBlocks::new(bytes, &places);
        let mut result = Ok(Pressure::Idle);
        while let (Ok(_), Ok(true)) = (&result, source.advance()) {
            if let Some(packet) = source.current() {
                result = self.take(&packet).map(|()| Pressure::Idle);
            }
        }
        self.places = places;
        result
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.end_old().map(|()| Pressure::Idle)
    }

    fn finish(&mut self) -> Outcome {
        Outcome::default()
    }
}
