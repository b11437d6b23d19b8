//! `trawl fleet init`: makes the files of a fleet, or of further hosts of one.

use std::path::PathBuf;
use std::process::ExitCode;

use trawl_front::terminal;
use trawl_sys::{Error, Result};

use crate::setup::{self, Fleet, Plan};

/// Makes a directory with the keys, certificates, policies and NATS configuration of a new fleet
///
/// README.md in the directory has the remaining steps: the files to copy to each server and host. If the directory
/// exists, the hosts join its fleet: authority/ signs their certificates, each server's configuration gets their rights,
/// and nothing of other hosts changes.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// The directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Names of the new hosts, as --host of their agents
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    hosts: Vec<String>,
    /// Names or addresses of the NATS servers of a new fleet; several form a cluster
    #[arg(long = "server", value_name = "NAMES", value_delimiter = ',')]
    servers: Vec<String>,
    /// Port of the servers
    #[arg(long, value_name = "PORT", default_value_t = 4222, requires = "servers")]
    port: u16,
    /// Copies of each state, on as many servers
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "servers", value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: u8,
    /// Days for which the certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 3650)]
    days: u32,
}

pub fn run(args: &Init) -> Result<ExitCode> {
    let shown = args.directory.display();
    let (done, steps) = if args.directory.symlink_metadata().is_ok() {
        if !args.servers.is_empty() {
            let why = "it exists already, with servers of its own";
            let error = Error::failed(format!("cannot make {shown}"), why);
            return Err(error.fix("name a new directory, or add hosts to this one without --server"));
        }
        let fleet = Fleet::read(&args.directory, args.days)?;
        let addition = fleet.add(&args.hosts, args.days)?;
        fleet.write(&addition)?;
        ("Extended", addition.instructions)
    } else {
        if args.servers.is_empty() {
            let error = Error::usage(format!("cannot make {shown}"), "a new fleet needs a server");
            return Err(error.fix("--server nats.example.org"));
        }
        let plan = Plan {
            hosts: args.hosts.clone(),
            servers: args.servers.clone(),
            port: args.port,
            replicas: args.replicas.into(),
            days: args.days,
        };
        setup::write(&args.directory, &plan.files()?)?;
        ("Made", plan.instructions())
    };
    terminal::write_out(&format!("{done} {shown}. The remaining steps, in its README.md:\n\n{steps}"))?;
    Ok(ExitCode::SUCCESS)
}
