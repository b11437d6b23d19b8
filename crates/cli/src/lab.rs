//! `trawl lab`: networks of namespaces for experiments.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::topology::{PRESETS, Topology, namespace};
use trawl_lab::{IPIP_DEVICE, PairOptions, Record, sender};
use trawl_sys::netlink::Netlink;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result, files::text_file};

use crate::args::NetnsArg;
use crate::json;
use crate::terminal::write_out;

pub mod lesson;

/// Creates and removes test networks of namespaces
#[derive(Debug, clap::Args)]
#[command(infer_subcommands = true)]
pub struct LabArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Creates namespaces joined by veths for native XDP: two, a preset, or the nodes of a file
    Up(Up),
    /// Runs a command in a node of a lab
    Exec {
        /// The lab's name
        #[arg(add = crate::completion::labs())]
        name: String,
        /// The node, for example a
        node: String,
        /// The command, with its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Draws a lab: its nodes, links and addresses
    Show {
        /// The lab's name
        #[arg(default_value = DEFAULT_NAME, add = crate::completion::labs())]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Removes a lab
    Down {
        /// The lab's name
        #[arg(default_value = DEFAULT_NAME, add = crate::completion::labs())]
        name: String,
        /// Print the removed lab as JSON
        #[arg(long)]
        json: bool,
    },
    /// Removes the labs of killed processes
    Clean {
        /// Also remove labs in use, and every namespace named trawl-…
        #[arg(long)]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Lists the labs
    #[command(visible_alias = "status")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    Lesson(lesson::Args),
    /// Sends test frames out of an interface and counts them
    #[command(hide = true)]
    Send(Send),
}

const DEFAULT_NAME: &str = "lab";

#[derive(Debug, clap::Args)]
struct Up {
    /// The lab's name (the namespaces are trawl-NAME-NODE), or FILE.toml, which describes and names it
    #[arg(default_value = DEFAULT_NAME)]
    name: String,
    /// The file that describes the lab
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["preset", "queues", "mtu", "no_gro", "chatty"])]
    file: Option<PathBuf>,
    /// The name of a built-in network
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(PRESETS))]
    preset: Option<String>,
    /// Print the lab as JSON
    #[arg(long)]
    json: bool,
    /// Receive and transmit queues of each interface [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    queues: Option<u32>,
    /// MTU of each interface
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: u32,
    /// Leave GRO off: a veth then receives no XDP frames until a program is attached to it
    #[arg(long)]
    no_gro: bool,
    /// Keep the traffic of the kernel itself (link-local addresses, neighbour and multicast discovery)
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
    /// The interface to send from
    #[arg(short, value_name = "IF", add = crate::completion::interfaces())]
    interface: String,
    #[command(flatten)]
    netns: NetnsArg,
    #[arg(long, value_name = "N")]
    count: u64,
    /// Frames per second [default: as fast as possible]
    #[arg(long, value_name = "PPS", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Length of each frame, without the frame check sequence
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: usize,
    #[arg(long, value_enum, default_value_t = EngineName::Live)]
    engine: EngineName,
    /// The CPU to send from
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

pub fn run(args: LabArgs) -> Result<ExitCode> {
    let text = match args.command {
        Command::Up(up) => raise(&up)?,
        Command::Exec { name, node, command } => {
            let status = trawl_lab::inside(&name, &node, &command)?
                .status()
                .map_err(|e| Error::os("cannot run ip netns exec", e))?;
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
        }
        Command::Show { name, json } => show(&name, json)?,
        Command::Down { name, json } => {
            let lab = trawl_lab::remove(&name)?;
            clear_leftovers();
            if json { json::line(&lab)? } else { format!("removed {}: {}\n", lab.id, lab.namespaces.join(", ")) }
        }
        Command::Clean { all, json } => clean(all, json)?,
        Command::List { json } => list(json)?,
        Command::Lesson(args) => return lesson::run(&args),
        Command::Send(args) => send_frames(&args)?,
    };
    write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the plain pair, or the lab of a file or a preset.
fn raise(up: &Up) -> Result<String> {
    let as_file = up.name.ends_with(".toml").then(|| PathBuf::from(&up.name));
    let file = up.file.as_ref().or(as_file.as_ref());
    let (id, topology) = match (file, up.preset.as_deref()) {
        (Some(_), Some(_)) => {
            return Err(Error::usage("cannot use --preset", "the file describes the lab completely"));
        }
        (Some(path), None) => {
            let text = text_file::read(path)?;
            let id = match as_file.as_deref().and_then(Path::file_stem) {
                Some(stem) => stem.to_string_lossy().into_owned(),
                None => up.name.clone(),
            };
            (id, Topology::parse(&text)?)
        }
        (None, None | Some("pair")) => {
            let defaults = PairOptions::default();
            let options = PairOptions {
                queues: up.queues.unwrap_or(defaults.queues),
                gro: !up.no_gro,
                mtu: up.mtu,
                quiet: !up.chatty,
                ..defaults
            };
            (up.name.clone(), options.topology())
        }
        (None, Some(preset)) => {
            let mut topology = Topology::preset(preset)?;
            for link in &mut topology.links {
                link.mtu = up.mtu;
                link.queues = up.queues.unwrap_or(0);
                link.gro = !up.no_gro;
                link.neighbours = !up.chatty;
            }
            (up.name.clone(), topology)
        }
    };
    let made = trawl_lab::raise(&id, &topology)?;
    if up.json {
        return json::line(&trawl_lab::find(&id)?);
    }
    let mut text = topology.draw(&id);
    let first = topology.nodes.first().map_or("a", |node| node.name.as_str());
    if !made {
        let _ = writeln!(text, "{id} was up already");
    }
    if up.preset.as_deref() == Some("balance") {
        text += &try_balance(&id)?;
    } else if topology.plain {
        let inside = namespace(&id, first);
        let _ = writeln!(text, "try it:       trawl capture -i {inside}:veth0");
    } else {
        let _ = writeln!(text, "try it:       trawl lab exec {id} {first} ip addr");
    }
    let _ = writeln!(text, "take it down: trawl lab down {id}");
    Ok(text)
}

/// Returns commands that balance connections in the lab, by IPIP if the kernel has devices for it.
fn try_balance(id: &str) -> Result<String> {
    let server = Namespace::by_name(&namespace(id, "s1"))?;
    let has_tunnels = Netlink::inside(&server)?.find_link(IPIP_DEVICE)?.is_some();
    let forward = if has_tunnels { "ipip" } else { "direct" };
    let on = format!("--on {}:veth0", namespace(id, "lb"));
    let vip = "tcp:192.0.2.80:80";
    let mut text = format!(
        "try it:       trawl balance load {}:veth0\n\
         {:14}trawl balance vip add {vip} --forward {forward} {on}\n",
        namespace(id, "lb"),
        ""
    );
    for server in 1..=3 {
        let _ = writeln!(text, "{:14}trawl balance backend add {vip} 10.77.{}.2 {on}", "", server + 1);
    }
    for server in 1..=3 {
        let _ = writeln!(text, "{:14}trawl lab exec {id} s{server} python3 -m http.server 80 &", "");
    }
    let _ = writeln!(text, "{:14}trawl balance check {on}", "");
    let _ = writeln!(text, "{:14}trawl lab exec {id} client curl -s http://192.0.2.80/", "");
    Ok(text)
}

fn show(id: &str, as_json: bool) -> Result<String> {
    let lab = trawl_lab::find(id)?;
    if as_json {
        return json::line(&lab);
    }
    // The lab of a test or a demonstration has no file with its topology, so the drawing shows its namespaces as they
    // are.
    Ok(match &lab.topology {
        Some(topology) => topology.draw(id),
        None => {
            let prefix = namespace(id, "");
            let node = |name: &String| name.strip_prefix(&prefix).unwrap_or(name).to_owned();
            let nodes: Vec<String> = lab.namespaces.iter().map(node).collect();
            format!("{}\n", nodes.join(" ───── "))
        }
    })
}

/// Removes leftovers, outside a lab, of programs and rules loaded in it.
fn clear_leftovers() {
    trawl_program::unload::clear_leftovers();
    trawl_guard::state::sweep();
}

fn clean(all: bool, as_json: bool) -> Result<String> {
    let cleaned = trawl_lab::clean(all)?;
    clear_leftovers();
    if as_json {
        return json::line(&cleaned);
    }
    if cleaned.removed.is_empty() && cleaned.kept.is_empty() {
        return Ok("nothing to remove\n".to_owned());
    }
    let removed = cleaned.removed.iter().map(|name| format!("removed {name}\n"));
    let kept = cleaned.kept.iter().map(|name| format!("kept {name} (in use; --all removes it too)\n"));
    Ok(removed.chain(kept).collect())
}

fn list(as_json: bool) -> Result<String> {
    let labs = trawl_lab::list()?;
    if as_json {
        return json::line(&labs);
    }
    let line = |lab: &Record| {
        let state = match lab.owner {
            None => "up until it is taken down".to_owned(),
            Some(owner) if lab.in_use() => format!("in use by process {}", owner.pid),
            Some(_) => "left by a killed process (trawl lab clean)".to_owned(),
        };
        format!("{}  {}  {state}\n", lab.id, lab.namespaces.join(" "))
    };
    Ok(labs.iter().map(line).collect())
}

fn send_frames(args: &Send) -> Result<String> {
    let namespace = args.netns.open()?;
    let interface = Interface::find(namespace.as_ref(), &args.interface)?;
    let Some(mac) = interface.mac else {
        return Err(Error::failed(
            format!("cannot send out of {}", args.interface),
            "it has no Ethernet address to send from",
        ));
    };
    let frames = [sender::udp_from(mac, args.size)?];
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
