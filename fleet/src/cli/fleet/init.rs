//! `trawl fleet init`: makes the files of a new fleet.

use std::path::PathBuf;
use std::process::ExitCode;

use trawl_front::terminal;
use trawl_sys::Result;

use crate::setup::{self, Plan};

/// Makes a directory with the keys, certificates, policies and NATS configuration of a new fleet
///
/// README.md in the directory has the remaining steps: the files to copy to each server and host. The directory must not
/// exist yet.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// The new directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Names of the hosts, as --host of their agents
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    hosts: Vec<String>,
    /// Names or addresses of the NATS servers; several form a cluster
    #[arg(long = "server", value_name = "NAMES", value_delimiter = ',', required = true)]
    servers: Vec<String>,
    /// Port of the servers
    #[arg(long, value_name = "PORT", default_value_t = 4222)]
    port: u16,
    /// Copies of each state, on as many servers
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: u8,
    /// Days for which the certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 3650)]
    days: u32,
}

pub fn run(args: &Init) -> Result<ExitCode> {
    let plan = Plan {
        hosts: args.hosts.clone(),
        servers: args.servers.clone(),
        port: args.port,
        replicas: args.replicas.into(),
        days: args.days,
    };
    setup::write(&args.directory, &plan.files()?)?;
    terminal::write_out(&format!("Made {}. The remaining steps, in its README.md:\n\n", args.directory.display()))?;
    terminal::write_out(&plan.instructions())?;
    Ok(ExitCode::SUCCESS)
}
