//! `trawl route`: the router between interfaces, by the kernel's own routes.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use trawl_guard::state as guard;
use trawl_program::Site;
use trawl_program::bundled::route::{self, Port};
use trawl_program::unload::UnloadChoice;
use trawl_sys::netlink::XdpMode;
use trawl_sys::words::word;
use trawl_sys::{Error, Result};

use crate::args::{InterfaceArgs, NetnsArg};
use crate::program_args::{AttachArgs, TargetArgs, UnloadArgs, find_all};
use crate::xdp::stats::{Counted, ShowArgs};
use crate::{json, terminal};

/// Forwards packets by the kernel's own routes, before the stack
#[derive(Debug, clap::Args)]
#[command(infer_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Load(Load),
    #[command(visible_aliases = ["show", "list", "status"])]
    Stats(Stats),
    /// Removes ports from the router, or the whole router
    Unload(UnloadArgs),
}

/// Makes interfaces ports of the router, or updates ports with new addresses and VLANs
///
/// Packets are forwarded between the ports and the VLANs on them. Packets that need more than a look-up go to the stack
/// unchanged: for this host, without a known neighbour, too large, with options, or leaving by another interface.
/// Firewall rules, traffic control and connection tracking do not see packets forwarded here.
#[derive(Debug, clap::Args)]
struct Load {
    #[command(flatten)]
    interfaces: InterfaceArgs,
    /// Its priority in a chain: programs with lower numbers run first, and packets that they pass are routed [default:
    /// in no chain]
    #[arg(long, value_name = "N")]
    prio: Option<u32>,
    #[command(flatten)]
    attach: AttachArgs,
}

/// Shows the packets that the router forwarded or left to the stack, by reason
#[derive(Debug, clap::Args)]
#[command(mut_arg("interfaces", |arg| arg.help("Only these ports")))]
struct Stats {
    #[command(flatten)]
    interfaces: InterfaceArgs,
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    options: ShowArgs,
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Load(args) => load(&args),
        Command::Stats(args) => {
            let names = args.interfaces.names();
            return args.options.show(|| counted(&names, &args.netns));
        }
        Command::Unload(args) => unload(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn find(interfaces: &[String], netns: &NetnsArg) -> Result<Vec<Site>> {
    let mut sites: Vec<Site> = Vec::new();
    for site in find_all(interfaces, netns)? {
        if sites.iter().any(|other| !other.shares_namespace(&site)) {
            return Err(Error::usage(
                format!("cannot route on {}", site.label()),
                "the ports of a router are all in one namespace",
            ));
        }
        if sites.iter().all(|other| other.index() != site.index()) {
            sites.push(site);
        }
    }
    Ok(sites)
}

fn load(args: &Load) -> Result<()> {
    let attach = &args.attach;
    attach.verifier_log.begin()?;
    let sites = find(&args.interfaces.some("route load")?, &attach.netns)?;
    let request = attach.request(args.prio);
    attach.warn_of_attaching(&sites);
    let loaded = attach.consent.change(&sites, || guard::around(&sites, || route::load(&sites, &request)))?;
    if !attach.json {
        let messages = loaded.notices.iter().chain(&loaded.warnings);
        messages.for_each(|text| terminal::say(text));
        if let [only] = &loaded.ports[..] {
            let label = only.site.label();
            terminal::say(&format!(
                "{label} is the router's only port: packets for other interfaces go through the stack; trawl route load {} IF adds one",
                word(label)
            ));
        }
    }
    let document = LoadDocument {
        ports: loaded.ports.iter().map(PortDocument::new).collect(),
        vlans: &loaded.vlans,
        notices: &loaded.notices,
        warnings: &loaded.warnings,
    };
    json::print_as(attach.json, &document, || {
        let mut ports: Vec<String> = loaded.ports.iter().map(describe).collect();
        ports.sort();
        let vlans =
            if loaded.vlans.is_empty() { String::new() } else { format!("; VLANs {}", loaded.vlans.join(", ")) };
        format!("routing between {}{vlans}\n", ports.join(", "))
    })
}

fn describe(port: &Port) -> String {
    let mode = port.installed.mode().map_or("", XdpMode::name);
    format!("{} (id {}, {mode})", port.site.label(), port.installed.id())
}

/// The JSON output of `route load`.
#[derive(Debug, Serialize)]
struct LoadDocument<'a> {
    ports: Vec<PortDocument<'a>>,
    vlans: &'a [String],
    notices: &'a [String],
    warnings: &'a [String],
}

#[derive(Debug, Serialize)]
struct PortDocument<'a> {
    interface: &'a str,
    id: u32,
    mode: Option<&'static str>,
}

impl<'a> PortDocument<'a> {
    fn new(port: &'a Port) -> Self {
        Self { interface: port.site.label(), id: port.installed.id(), mode: port.installed.mode().map(XdpMode::name) }
    }
}

fn counted(interfaces: &[String], netns: &NetnsArg) -> Result<Vec<Counted>> {
    let ports = if interfaces.is_empty() {
        route::ports(netns.open()?.as_ref())?
    } else {
        find(interfaces, netns)?.into_iter().map(Port::at).collect::<Result<_>>()?
    };
    if ports.is_empty() {
        return Err(Error::failed("cannot count", "no router is loaded").fix("trawl route load IF IF"));
    }
    let one = |port: &Port| Ok(Counted { interface: port.site.label().to_owned(), account: port.account()? });
    ports.iter().map(one).collect()
}

fn unload(args: &UnloadArgs) -> Result<()> {
    let TargetArgs { interfaces, netns, .. } = &args.target;
    let names = interfaces.names();
    let sites = if names.is_empty() {
        let ports = route::ports(netns.open()?.as_ref())?;
        ports.into_iter().map(|port| port.site).collect()
    } else {
        find(&names, netns)?
    };
    if sites.is_empty() {
        return Err(Error::failed("cannot unload", "no router is loaded"));
    }
    for site in &sites {
        if let Some(installed) = route::installed_on(site)? {
            args.consent.check_unload(site, UnloadChoice::One(installed.id()))?;
        }
    }
    args.consent.change(&sites, || route::unload(&sites))?;
    args.print_removed("the router", &sites)
}
