//! `trawl route`: the router between interfaces, by the kernel's own routes.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use trawl_guard::state as guard;
use trawl_program::Site;
use trawl_program::bundled::route::{self, Port};
use trawl_program::unload::Which;
use trawl_sys::netlink::XdpMode;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};

use crate::args::NetnsArg;
use crate::program_args::{AttachArgs, Consent};
use crate::xdp::stats::{Counted, How};
use crate::{json, terminal};

/// Forwards packets between interfaces by the kernel's own routes, before the stack
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Load(Load),
    Stats(Stats),
    Unload(Unload),
}

/// Makes interfaces ports of the router, or updates ports with new addresses and VLANs
///
/// Packets are forwarded between the ports and the VLANs on them. Packets that need more than a look-up go to the stack
/// unchanged: for this host, without a known neighbour, too large, with options, or leaving by another interface.
/// Firewall rules, traffic control and connection tracking do not see packets forwarded here.
#[derive(Debug, clap::Args)]
struct Load {
    /// The interfaces, NAME or NAMESPACE:NAME, all in one namespace
    #[arg(value_name = "IF", required = true)]
    interfaces: Vec<String>,
    /// Its priority in a chain: programs with lower numbers run first, and packets that they pass are routed [default: in no chain]
    #[arg(long, value_name = "N")]
    prio: Option<u32>,
    #[command(flatten)]
    attach: AttachArgs,
}

/// Shows the packets that the router forwarded or left to the stack, by reason
#[derive(Debug, clap::Args)]
struct Stats {
    /// Only these ports
    #[arg(value_name = "IF")]
    interfaces: Vec<String>,
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    how: How,
}

/// Removes ports from the router, or all of it
#[derive(Debug, clap::Args)]
struct Unload {
    /// These ports [default: all in the namespace]
    #[arg(value_name = "IF")]
    interfaces: Vec<String>,
    #[command(flatten)]
    netns: NetnsArg,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    consent: Consent,
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Load(args) => load(&args),
        Command::Stats(args) => {
            return args
                .how
                .show(|| counted(&args.interfaces, args.netns.as_deref()));
        }
        Command::Unload(args) => unload(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn find(interfaces: &[String], netns: Option<&str>) -> Result<Vec<Site>> {
    let mut sites: Vec<Site> = Vec::new();
    for text in interfaces {
        let site = Site::find(text, netns)?;
        if sites.iter().any(|other| !other.is_beside(&site)) {
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
    let sites = find(&args.interfaces, attach.netns.as_deref())?;
    let request = attach.request(args.prio);
    let loaded = attach.consent.change(&sites, || {
        guard::around(&sites, || route::load(&sites, &request))
    })?;
    if !attach.json {
        let told = loaded.told.iter().chain(&loaded.warnings);
        told.for_each(|text| terminal::say(text));
    }
    let document = LoadDocument {
        ports: loaded.ports.iter().map(PortDocument::new).collect(),
        vlans: &loaded.vlans,
        notices: &loaded.told,
        warnings: &loaded.warnings,
    };
    json::print_as(attach.json, &document, || {
        let mut ports: Vec<String> = loaded.ports.iter().map(describe).collect();
        ports.sort();
        let vlans = match loaded.vlans.is_empty() {
            true => String::new(),
            false => format!("; VLANs {}", loaded.vlans.join(", ")),
        };
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
        Self {
            interface: port.site.label(),
            id: port.installed.id(),
            mode: port.installed.mode().map(XdpMode::name),
        }
    }
}

/// The JSON output of `route unload`.
#[derive(Debug, Serialize)]
struct UnloadDocument<'a> {
    unloaded: Vec<&'a str>,
}

fn all_ports(netns: Option<&str>) -> Result<Vec<Port>> {
    let namespace = netns.map(Namespace::open).transpose()?;
    route::ports(namespace.as_ref())
}

fn counted(interfaces: &[String], netns: Option<&str>) -> Result<Vec<Counted>> {
    let ports = match interfaces.is_empty() {
        true => all_ports(netns)?,
        false => find(interfaces, netns)?
            .into_iter()
            .map(Port::at)
            .collect::<Result<_>>()?,
    };
    if ports.is_empty() {
        return Err(
            Error::failed("cannot count", "no router is loaded").fix("trawl route load IF IF")
        );
    }
    let one = |port: &Port| {
        Ok(Counted {
            interface: port.site.label().to_owned(),
            account: port.account()?,
        })
    };
    ports.iter().map(one).collect()
}

fn unload(args: &Unload) -> Result<()> {
    let sites = match args.interfaces.is_empty() {
        true => all_ports(args.netns.as_deref())?
            .into_iter()
            .map(|port| port.site)
            .collect(),
        false => find(&args.interfaces, args.netns.as_deref())?,
    };
    if sites.is_empty() {
        return Err(Error::failed("cannot unload", "no router is loaded"));
    }
    for site in &sites {
        if let Some(installed) = route::installed_on(site)? {
            args.consent
                .check_unload(site, Which::One(installed.id()))?;
        }
    }
    args.consent.change(&sites, || route::unload(&sites))?;
    let document = UnloadDocument {
        unloaded: sites.iter().map(Site::label).collect(),
    };
    json::print_as(args.json, &document, || {
        format!(
            "unloaded the router from {}\n",
            document.unloaded.join(", ")
        )
    })
}
