//! `trawl lab`: networks of namespaces for trying things out.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use serde_json::json;
use trawl_kernel::interface::Interface;
use trawl_kernel::netns::Namespace;
use trawl_kernel::{Error, Result};
use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::{Pair, PairOptions, Record, frame};

use crate::terminal::write_out;

/// Makes and removes networks of namespaces for trying things out
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes two namespaces joined by a veth that is ready for native XDP
    Up(Up),
    /// Takes a lab down
    Down {
        /// Its name
        #[arg(default_value = DEFAULT_NAME)]
        name: String,
    },
    /// Removes what killed processes left behind
    Clean {
        /// Labs that are in use as well, and every namespace named trawl-…
        #[arg(long)]
        all: bool,
    },
    /// Lists the labs
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Sends test frames out of an interface and counts them
    #[command(hide = true)]
    Send(Send),
}

const DEFAULT_NAME: &str = "lab";

#[derive(Debug, clap::Args)]
struct Up {
    /// What to call it: the namespaces are trawl-NAME-a and trawl-NAME-b
    #[arg(default_value = DEFAULT_NAME)]
    name: String,
    /// Receive and transmit queues of each interface [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    queues: Option<u32>,
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: u32,
    /// Leave GRO off: the veth then takes no XDP frames before it has a program of its own
    #[arg(long)]
    no_gro: bool,
    /// Let the hosts speak by themselves (link-local addresses, ARP, neighbour and multicast discovery)
    #[arg(long)]
    chatty: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EngineName {
    /// XDP frames made in the kernel
    Live,
    /// A raw packet socket
    Packet,
}

#[derive(Debug, clap::Args)]
struct Send {
    /// The interface that the frames leave by
    #[arg(short, value_name = "IF")]
    interface: String,
    /// The namespace it is in
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    #[arg(long, value_name = "N")]
    count: u64,
    /// Frames a second [default: as fast as they go]
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Length of each frame, without the checksum at its end
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: usize,
    #[arg(long, value_enum, default_value_t = EngineName::Live)]
    engine: EngineName,
    /// The CPU to send from
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let text = match args.command {
        Command::Up(up) => make(&up)?,
        Command::Down { name } => {
            let lab = trawl_lab::remove(&name)?;
            format!("removed {}: {}\n", lab.id, lab.namespaces.join(", "))
        }
        Command::Clean { all } => clean(all)?,
        Command::List { json } => list(json),
        Command::Send(args) => send_frames(&args)?,
    };
    write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn make(up: &Up) -> Result<String> {
    let defaults = PairOptions::default();
    let options = PairOptions {
        queues: up.queues.unwrap_or(defaults.queues),
        gro: !up.no_gro,
        mtu: up.mtu,
        quiet: !up.chatty,
        ..defaults
    };
    let pair = Pair::named(&up.name, &options)?;
    let mut text = String::new();
    for station in [&pair.a, &pair.b] {
        let mac: Vec<String> = station
            .mac
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let _ = writeln!(
            text,
            "{}  {}  {}  {}  {}",
            station.name,
            station.interface,
            mac.join(":"),
            station.ipv4,
            station.ipv6
        );
    }
    let _ = writeln!(
        text,
        "try it:       trawl capture -i {}:{}",
        pair.a.name, pair.a.interface
    );
    let _ = writeln!(text, "take it down: trawl lab down {}", up.name);
    pair.keep()?;
    Ok(text)
}

fn clean(all: bool) -> Result<String> {
    let cleaned = trawl_lab::clean(all)?;
    trawl_program::leftovers::clear_away();
    trawl_guard::state::sweep();
    if cleaned.removed.is_empty() && cleaned.kept.is_empty() {
        return Ok("nothing to remove\n".to_owned());
    }
    let removed = cleaned
        .removed
        .iter()
        .map(|name| format!("removed {name}\n"));
    let kept = cleaned
        .kept
        .iter()
        .map(|name| format!("left alone {name} (in use; --all removes it too)\n"));
    Ok(removed.chain(kept).collect())
}

fn list(as_json: bool) -> String {
    let labs = trawl_lab::list();
    if as_json {
        return format!("{}\n", json!(labs));
    }
    let line = |lab: &Record| {
        let state = match lab.owner {
            None => "up until it is taken down".to_owned(),
            Some(owner) if lab.in_use() => format!("in use by process {}", owner.pid),
            Some(_) => "left behind (trawl lab clean)".to_owned(),
        };
        format!("{}  {}  {state}\n", lab.id, lab.namespaces.join(" "))
    };
    labs.iter().map(line).collect()
}

fn send_frames(args: &Send) -> Result<String> {
    let namespace = args.netns.as_deref().map(Namespace::open).transpose()?;
    let interface = Interface::find(namespace.as_ref(), &args.interface)?;
    let Some(mac) = interface.mac else {
        return Err(Error::failed(
            format!("cannot send out of {}", args.interface),
            "it has no Ethernet address to send from",
        ));
    };
    let frames = [frame::udp_from(mac, args.size)?];
    let sent = send(&Job {
        namespace: namespace.as_ref(),
        interface: &args.interface,
        frames: &frames,
        count: args.count,
        engine: match args.engine {
            EngineName::Live => Engine::Live,
            EngineName::Packet => Engine::Packet,
        },
        rate: args.rate,
        cpu: args.cpu,
    })?;
    Ok(format!(
        "sent {} frames of {} bytes in {:.3} s: {:.0} a second; {} were refused at first and sent again\n",
        sent.packets,
        args.size,
        sent.took.as_secs_f64(),
        sent.per_second(),
        sent.again
    ))
}
