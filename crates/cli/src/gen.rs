//! `trawl gen`: makes traffic.

mod output;
mod pacing;
mod receive;
mod replay;

use std::process::ExitCode;

use clap::Subcommand;
use trawl_gen::engine::Packet;
use trawl_gen::run::{Plan, run as run_generator};
use trawl_gen::source::InTurn;
use trawl_gen::{Engine, Source};
use trawl_kernel::{Error, Result};
use trawl_lab::frame;
use trawl_tap::site::Site;

use output::Watch;
use pacing::Pacing;

/// Makes traffic: at a rate, for a time, counted as the device took it
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Udp(Udp),
    Receive(receive::Args),
    Replay(Box<replay::Args>),
}

/// What every kind of traffic is told.
#[derive(Debug, clap::Args)]
struct Common {
    /// Interface that the frames leave by, NAME or NAMESPACE:NAME
    #[arg(short, long, value_name = "IF")]
    interface: String,
    /// Network namespace of an interface that names none: a name, a path or a process id
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    #[command(flatten)]
    pacing: Pacing,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// UDP datagrams
#[derive(Debug, clap::Args)]
struct Udp {
    #[command(flatten)]
    common: Common,
    /// Length of each frame, without the checksum at its end
    #[arg(long, value_name = "BYTES", default_value_t = 60)]
    size: usize,
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Udp(args) => udp(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Replay(args) => replay::run(&args),
    }
}

fn udp(args: &Udp) -> Result<ExitCode> {
    let common = &args.common;
    let site = Site::find(&common.interface, common.netns.as_deref())?;
    let Some(mac) = site.interface.mac else {
        return Err(Error::failed(
            format!("cannot send out of {}", site.label),
            "it has no Ethernet address to send from",
        ));
    };
    let frame = frame::udp_from(mac, args.size)?;
    let cpus = common.pacing.cpus()?;
    let plan = Plan {
        namespace: site.namespace.as_ref(),
        interface: &site.label,
        cpus: &cpus,
        rate: common.pacing.rate(),
        burst: common.pacing.burst(),
        count: common.pacing.count(),
        duration: common.pacing.duration(),
    };
    let open = |_| {
        let source = InTurn::new(vec![frame.clone()]);
        let engine = Packet::open(&site.interface.name, source.longest())?;
        Ok((
            Box::new(engine) as Box<dyn Engine>,
            Box::new(source) as Box<dyn Source>,
        ))
    };
    let mut watch = Watch::new(common.json)?;
    let report = run_generator(&plan, &open, &mut |figures| watch.look(figures))?;
    watch.end(&site.label, &report)
}
