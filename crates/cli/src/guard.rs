//! `trawl guard`: drops packets by rules, before the stack sees them.

mod change;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Subcommand};
use trawl_guard::rule::{Action, IcmpType, Ports, Preset};
use trawl_guard::values::{self, MacPrefix};
use trawl_guard::{Prefix, state};
use trawl_program::unload;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};

use crate::args::{InterfaceArgs, NamedValue, NetnsArg, WatchArg, choice};
use crate::completion;
use crate::program_args::{self, AttachArgs, Change, Consent, TargetArgs};

/// Drops packets by rules before the stack sees them
///
/// Rules match addresses, protocols, ports and rates. They apply to every guarded interface of the network namespace,
/// unless --on names one, and may be added before an interface is guarded. The rule with the longest source prefix
/// decides about a packet; among equal ones, the rule with the longest destination prefix; then a rule with --on, then
/// one with MAC addresses (complete ones first), then the one with the fewest ports (an ICMP type counts as one port),
/// then the one with the fewest source ports, then one with --syn or --established; a limit comes before a rule that
/// denies, and that before one that allows. If no rule decides, the interface's default does. The guard does not track
/// connections: if the default is deny, replies to this host's requests need a rule too.
#[derive(Debug, clap::Args)]
#[command(infer_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Load(Load),
    /// Adds a rule that drops packets
    ///
    /// With --rate it drops packets above the rate from each source, and leaves the rest to the other rules.
    Deny(Rule),
    /// Adds a rule that lets packets pass
    ///
    /// With --rate it drops packets above the rate from each source.
    Allow(Rule),
    Preset(PresetRule),
    Remove(Remove),
    Apply(Apply),
    #[command(visible_aliases = ["show", "status"])]
    List(List),
    /// Shows the packets of guarded interfaces by outcome
    #[command(mut_arg("interfaces", |arg| arg.help("These interfaces [default: all that are guarded]")))]
    Stats(TargetArgs),
    /// Removes the guard from an interface, and with the last interface of a namespace the rules
    Unload(TargetArgs),
    /// Prints the rules and defaults as a file for `trawl guard apply`
    Save(NetnsArg),
    Confirm(Confirm),
}

/// Returns the namespace, which an interface's name may also give, and the name alone: NAME or NAMESPACE:NAME.
fn split<'a>(netns: &NetnsArg, interface: Option<&'a str>) -> Result<(Option<Namespace>, Option<&'a str>)> {
    let Some((namespace, name)) = interface.and_then(|text| text.split_once(':')) else {
        return Ok((netns.open()?, interface));
    };
    if let Some(other) = netns.as_deref().filter(|other| *other != namespace) {
        return Err(Error::usage(
            format!("cannot use {namespace}:{name}"),
            format!("--netns names another namespace, {other}"),
        )
        .fix("leave out --netns"));
    }
    Ok((Some(Namespace::open(namespace)?), Some(name)))
}

/// Options for changing rules.
#[derive(Debug, clap::Args)]
struct ChangeArgs {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    consent: Consent,
}

impl ChangeArgs {
    /// Changes the rules of a namespace, temporarily if requested.
    fn make<R>(&self, namespace: Option<&Namespace>, change: impl FnOnce() -> Result<R>) -> Result<R> {
        self.consent.make(vec![Change::Guard(namespace, &[])], change)
    }
}

const ACTIONS: [NamedValue<Action>; 2] = [("allow", "", Action::Allow), ("deny", "", Action::Deny)];

/// Guards an interface, or changes the default of a guarded one
///
/// ARP, neighbour discovery and packets other than IP always pass.
#[derive(Debug, clap::Args)]
struct Load {
    #[command(flatten)]
    interfaces: InterfaceArgs,
    /// Verdict for packets that no rule matches [default: allow]
    #[arg(long, value_parser = choice(&ACTIONS))]
    default: Option<Action>,
    /// Its priority in a chain: programs with lower numbers run first [default: 10]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    prio: Option<u32>,
    #[command(flatten)]
    attach: AttachArgs,
}

#[derive(Debug, clap::Args)]
struct Rule {
    /// From these addresses; each further --src makes another rule
    #[arg(long, value_name = "PREFIX", action = ArgAction::Append)]
    src: Vec<Prefix>,
    /// To these addresses
    #[arg(long, value_name = "PREFIX")]
    dst: Option<Prefix>,
    /// Of this protocol, by name or number
    #[arg(long, value_name = "P", value_parser = values::protocol, add = completion::protocols())]
    proto: Option<u8>,
    /// To this port or range; TCP and UDP without --proto
    #[arg(long, value_name = "N[-M]")]
    port: Option<Ports>,
    /// From this port or range; TCP and UDP without --proto
    #[arg(long, value_name = "N[-M]")]
    src_port: Option<Ports>,
    /// From this MAC address, or from those with the same first BITS
    #[arg(long, value_name = "MAC[/BITS]")]
    src_mac: Option<MacPrefix>,
    /// To this MAC address, or to those with the same first BITS
    #[arg(long, value_name = "MAC[/BITS]")]
    dst_mac: Option<MacPrefix>,
    /// Of this type of ICMP, by name (for IPv4 and IPv6) or number
    #[arg(long, value_name = "TYPE", add = completion::icmp_types())]
    icmp: Option<IcmpType>,
    /// TCP packets that open a connection (SYN without ACK)
    #[arg(long, conflicts_with = "established")]
    syn: bool,
    /// TCP packets that belong to a connection
    #[arg(long)]
    established: bool,
    /// Packets per second from each source (an address, or an IPv6 network of 64 bits); k and M are accepted
    #[arg(long, value_name = "PPS", value_parser = values::rate)]
    rate: Option<u64>,
    /// The rule expires after this time, for example 10m
    #[arg(long = "for", value_name = "TIME", value_parser = values::duration)]
    lasts: Option<Duration>,
    /// On this interface only, NAME or NAMESPACE:NAME
    #[arg(long, value_name = "IF", add = completion::interfaces())]
    on: Option<String>,
    /// Match every packet; required for a rule without other conditions
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    how: ChangeArgs,
}

/// Adds preset rules against a flood: ping-flood, udp-flood or syn-flood
#[derive(Debug, clap::Args)]
struct PresetRule {
    /// ping-flood (10 per second), udp-flood (5000) or syn-flood (100)
    #[arg(value_name = "NAME", add = completion::presets())]
    name: Preset,
    /// Packets per second from each source
    #[arg(long, value_name = "PPS", value_parser = values::rate)]
    rate: Option<u64>,
    /// On this interface only, NAME or NAMESPACE:NAME
    #[arg(long, value_name = "IF", add = completion::interfaces())]
    on: Option<String>,
    #[command(flatten)]
    how: ChangeArgs,
}

/// Removes rules by their numbers, or all rules
#[derive(Debug, clap::Args)]
struct Remove {
    /// The rules' numbers, as `trawl guard list` shows them
    #[arg(
        value_name = "ID",
        required_unless_present = "all",
        conflicts_with = "all",
        add = completion::rules()
    )]
    ids: Vec<u32>,
    /// All rules; defaults stay
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    how: ChangeArgs,
}

/// Replaces all rules by the rules of a file, atomically
///
/// If the file has an error, nothing changes. Rules for the same packets as before keep their numbers and hits.
#[derive(Debug, clap::Args)]
struct Apply {
    /// Rules in TOML; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only check the file, and list the changes that it would make
    #[arg(long)]
    check: bool,
    /// Accept a rule that denies every packet without `all = true`
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    how: ChangeArgs,
}

/// Shows the rules with their hits, and the defaults
#[derive(Debug, clap::Args)]
#[command(mut_arg("interfaces", |arg| arg.help("The rules on this interface, NAME or NAMESPACE:NAME [default: on all]")))]
struct List {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    watch: WatchArg,
}

/// Keeps a change that was made with --confirm
#[derive(Debug, clap::Args)]
struct Confirm {
    #[command(flatten)]
    netns: NetnsArg,
    /// Print the confirmed change as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    // Leftovers are cleared first, but not by commands that only read: they change nothing.
    if !matches!(args.command, Command::List(_) | Command::Stats(_) | Command::Save(_)) {
        unload::clear_leftovers();
        state::sweep();
    }
    match args.command {
        Command::Load(args) => change::load(&args),
        Command::Deny(args) => change::add(Action::Deny, &args),
        Command::Allow(args) => change::add(Action::Allow, &args),
        Command::Preset(args) => change::preset(&args),
        Command::Remove(args) => change::remove(&args),
        Command::Apply(args) => change::apply(&args),
        Command::Unload(args) => change::unload(&args),
        Command::List(args) => show::list(&args),
        Command::Stats(args) => show::stats(&args),
        Command::Save(args) => show::save(&args),
        Command::Confirm(args) => {
            let namespace = args.netns.open()?;
            program_args::keep(&Change::Guard(namespace.as_ref(), &[]), args.json)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}
