//! `trawl xdp`: XDP programs on interfaces shown, loaded and taken off.

mod bundled;
mod confirm;
pub mod consent;
mod load;
mod maps;
mod sites;
pub mod stats;
mod status;
mod unload;

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use trawl_sys::Result;
use trawl_sys::netlink::XdpMode;

/// Shows, loads and removes XDP programs
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Status(status::Args),
    Load(load::Args),
    Unload(unload::Args),
    Maps(maps::Args),
    Stats(stats::Args),
    Confirm(confirm::Args),
}

pub use confirm::command as confirm_command;

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Status(args) => status::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Unload(args) => unload::run(&args),
        Command::Maps(args) => maps::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Confirm(args) => confirm::run(&args),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeName {
    /// In the driver
    Native,
    /// After the driver, in the stack
    Skb,
    /// On the card
    Hw,
}

impl From<ModeName> for XdpMode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Native => Self::Native,
            ModeName::Skb => Self::Skb,
            ModeName::Hw => Self::Offload,
        }
    }
}
