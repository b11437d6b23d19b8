//! `trawl balance`: the layer-4 load balancer.

mod change;
mod show;

use std::ffi::OsString;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use trawl_balance::file;
use trawl_balance::{Balancer, Forward, Service};
use trawl_program::{Site, unload};
use trawl_sys::{Error, Result};

use crate::args::{NamedValue, NetnsArg, WatchArg, choice};
use crate::program_args::{AttachArgs, UnloadArgs};
use crate::{completion, units};

/// Balances flows to virtual addresses over backends, in XDP
///
/// Maglev hashing chooses the backend of a new flow. A flow keeps its backend when other backends are added or removed.
/// Packets for other addresses go to the stack.
#[derive(Debug, clap::Args)]
#[command(infer_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Load(Load),
    /// Adds, removes and lists virtual addresses
    #[command(subcommand)]
    Vip(VipCommand),
    /// Adds, removes and drains backends, and sets their weights
    #[command(subcommand)]
    Backend(BackendCommand),
    /// Lists the virtual addresses with their backends
    #[command(visible_aliases = ["show", "status"])]
    List(BalancerArgs),
    Stats(Stats),
    Check(Check),
    /// Detaches the balancer from interfaces, and removes its table and flows
    #[command(mut_arg("interfaces", |arg| arg.help("The interfaces [default: the only one in the namespace with a balancer]")))]
    Unload(UnloadArgs),
}

#[derive(Debug, Subcommand)]
enum VipCommand {
    Add(VipAdd),
    Remove(VipRemove),
    /// Lists the virtual addresses with their backends
    #[command(visible_aliases = ["show", "status"])]
    List(BalancerArgs),
}

#[derive(Debug, Subcommand)]
enum BackendCommand {
    Add(BackendAdd),
    /// Removes a backend; its flows move to other backends
    Remove(BackendArgs),
    Drain(Drain),
    Weight(Weight),
}

/// The options that select a balancer.
#[derive(Debug, clap::Args)]
struct BalancerArgs {
    /// The balancer on this interface, NAME or NAMESPACE:NAME [default: the only one in the namespace]
    #[arg(long, value_name = "IF", add = completion::interfaces())]
    on: Option<String>,
    #[command(flatten)]
    netns: NetnsArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BalancerArgs {
    fn balancer(&self) -> Result<Balancer> {
        if let Some(on) = &self.on {
            return Balancer::at(Site::find(on, self.netns.as_deref())?);
        }
        let mut all = Balancer::all_in(self.netns.open()?.as_ref())?;
        match (all.pop(), all.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => {
                Err(Error::failed("no balancer is loaded", "no interface here has one").fix("trawl balance load IF"))
            }
            (Some(last), _) => {
                let names: Vec<&str> = all.iter().map(|one| one.site.label()).collect();
                Err(Error::usage(
                    "the balancer to use is ambiguous",
                    format!("several are loaded: {}, {}", names.join(", "), last.site.label()),
                )
                .fix("name one: --on IF"))
            }
        }
    }
}

const FORWARDS: [NamedValue<Forward>; 3] = [
    ("direct", "To a backend on the same link, by its MAC address", Forward::Direct),
    ("ipip", "IP in IP", Forward::Ipip),
    ("gue", "Generic UDP encapsulation, variant 1", Forward::Gue),
];

/// Attaches the balancer to an interface, or replaces the table of an attached balancer
///
/// The file is applied as a whole; if it has an error, nothing changes. Backends in the old and the new table keep
/// their flows and counts.
#[derive(Debug, clap::Args)]
struct Load {
    /// The interface, NAME or NAMESPACE:NAME; then virtual addresses and backends in TOML, `-` for standard input
    /// [default: the present ones, or none]
    #[arg(value_names = ["IF", "FILE.toml"], num_args = 0..=3, add = completion::interface_and_file())]
    words: Vec<OsString>,
    /// The interface, in the form that trawl capture accepts
    #[arg(short = 'i', long = "interface", value_name = "IF", add = completion::interfaces())]
    interface: Option<String>,
    /// Its priority in a chain: programs with lower numbers run first [default: 20]
    #[arg(long, value_name = "N")]
    prio: Option<u32>,
    /// Size of the flow table; a full table forgets the least recently used flow [default: 262144]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1024..=67_108_864))]
    flows: Option<u32>,
    #[command(flatten)]
    attach: AttachArgs,
}

/// Adds a virtual address without backends
#[derive(Debug, clap::Args)]
struct VipAdd {
    /// Protocol (tcp, udp or quic), address and port, such as tcp:192.0.2.1:80 or udp:[2001:db8::1]:53; all ports
    /// without a port
    #[arg(value_name = "VIP")]
    vip: Service,
    /// Method of forwarding packets to its backends
    #[arg(long, value_parser = choice(&FORWARDS), default_value = "ipip")]
    forward: Forward,
    /// The UDP port of the backends' tunnels, with --forward gue
    #[arg(long, value_name = "PORT", default_value_t = trawl_balance::table::GUE_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    gue_port: u16,
    #[command(flatten)]
    target: BalancerArgs,
    /// Apply even if it cuts off the client that SSH_CONNECTION names
    #[arg(long)]
    yes: bool,
}

/// Removes a virtual address with its backends
#[derive(Debug, clap::Args)]
struct VipRemove {
    /// The virtual address, as `trawl balance vip list` shows it
    #[arg(value_name = "VIP")]
    vip: Service,
    #[command(flatten)]
    target: BalancerArgs,
}

/// Adds a backend to a virtual address
#[derive(Debug, clap::Args)]
struct BackendAdd {
    #[command(flatten)]
    which: BackendArgs,
    /// Its share of new flows, relative to the other backends
    #[arg(long, value_name = "N", default_value_t = 1)]
    weight: u32,
    /// Its MAC address, with --forward direct [default: from the kernel's neighbour table]
    #[arg(long, value_parser = file::mac)]
    mac: Option<[u8; 6]>,
    /// Its server id in QUIC connection ids
    #[arg(long, value_name = "N")]
    server_id: Option<u16>,
}

/// A backend of a virtual address.
#[derive(Debug, clap::Args)]
struct BackendArgs {
    /// The virtual address, as `trawl balance vip list` shows it
    #[arg(value_name = "VIP")]
    vip: Service,
    /// The backend's own address
    #[arg(value_name = "ADDRESS")]
    backend: IpAddr,
    #[command(flatten)]
    target: BalancerArgs,
}

/// Stops new flows to a backend; its existing flows stay
#[derive(Debug, clap::Args)]
struct Drain {
    #[command(flatten)]
    which: BackendArgs,
    /// Allow new flows again
    #[arg(long)]
    undo: bool,
}

/// Changes a backend's share of new flows
#[derive(Debug, clap::Args)]
struct Weight {
    #[command(flatten)]
    which: BackendArgs,
    /// 1 to 10000
    #[arg(value_name = "N")]
    weight: u32,
}

/// Shows packet counts by virtual address and backend
#[derive(Debug, clap::Args)]
struct Stats {
    #[command(flatten)]
    watch: WatchArg,
    #[command(flatten)]
    target: BalancerArgs,
}

/// Checks the health of the backends by TCP connection or HTTP
///
/// It checks once and changes nothing. With --apply, a backend that does not answer gets no packets until it answers a
/// later check. The exit status is 1 if a backend is not healthy.
#[derive(Debug, clap::Args)]
struct Check {
    /// Request this path by HTTP; a status from 200 to 399 is healthy
    #[arg(long, value_name = "PATH")]
    http: Option<String>,
    /// The TCP port to check [default: the port of the virtual address]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Time to wait for each answer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::duration)]
    timeout: Duration,
    /// Check repeatedly, with this pause, until interrupted
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    every: Option<Duration>,
    /// Disable backends that do not answer, and enable backends that do
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    target: BalancerArgs,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let only_reads = matches!(args.command, Command::Stats(_) | Command::List(_) | Command::Vip(VipCommand::List(_)));
    if !only_reads {
        unload::clear_leftovers();
    }
    match args.command {
        Command::Load(args) => change::load(&args),
        Command::Vip(VipCommand::Add(args)) => change::add_vip(&args),
        Command::Vip(VipCommand::Remove(args)) => change::remove_vip(&args),
        Command::List(args) | Command::Vip(VipCommand::List(args)) => show::list(&args),
        Command::Backend(BackendCommand::Add(args)) => change::add_backend(&args),
        Command::Backend(BackendCommand::Remove(args)) => change::remove_backend(&args),
        Command::Backend(BackendCommand::Drain(args)) => change::drain(&args),
        Command::Backend(BackendCommand::Weight(args)) => change::weight(&args),
        Command::Stats(args) => show::stats(&args),
        Command::Check(args) => return show::check(&args),
        Command::Unload(args) => change::unload(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}
