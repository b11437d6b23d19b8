//! `trawl fleet bus`: runs the embedded bus until a signal ends it.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use trawl_front::{published, terminal};
use trawl_sys::events::{self, Signals, Wake};
use trawl_sys::files::{run, text_file};
use trawl_sys::{Error, Result, process};

use crate::server::{Config, Server, Users};
use crate::tls;

/// Runs a small NATS server for trawl's agents and operators alone, to try a fleet or to run a small one
///
/// The file of users is TOML: operators (a list of public keys), and a table, hosts, with the public key of each host.
/// A host has rights to its own subjects alone. Without --dir, all states are gone when the server ends.
#[derive(Debug, clap::Args)]
pub struct Bus {
    /// The users: operators = ["U…"], and below [hosts] a line such as web1 = "U…" for each host
    #[arg(long, value_name = "FILE")]
    users: PathBuf,
    /// Listen at this address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4222")]
    listen: SocketAddr,
    /// Keep the states in files of this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The server's certificate, in PEM; without it, connections are not encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Require certificates of this authority from clients, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
}

/// Time between two looks at the signals; a signal itself ends the wait.
const REST: Duration = Duration::from_secs(60);

pub fn run(args: &Bus) -> Result<ExitCode> {
    process::allow_many_files();
    let signals = Signals::watch()?;
    let wake = Wake::new()?;
    let (sender, errors) = mpsc::channel();
    let waker = wake.clone();
    let server = Server::start(config(args)?, move |error| {
        // The receiver may be gone at the end.
        let _ = sender.send(error);
        waker.ring();
    })?;
    let status = format!("serving agents and operators at {}", server.address);
    terminal::say(&status);
    published::ready(&status);
    loop {
        if let Ok(error) = errors.try_recv() {
            return Err(error);
        }
        if signals.next().is_some_and(|signal| signal.ends()) {
            published::stopping();
            server.end()?;
            return Ok(ExitCode::SUCCESS);
        }
        events::wait(&[signals.as_fd(), wake.as_fd()], REST)?;
    }
}

fn config(args: &Bus) -> Result<Config> {
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let ca = args.tls_ca.as_deref().map(text_file::read).transpose()?;
            let made = tls::server(&text_file::read(certificate)?, &text_file::read(key)?, ca.as_deref());
            Some(made.map_err(|why| Error::failed("cannot serve TLS", why))?)
        }
        _ => None,
    };
    args.dir.as_deref().map(run::make_own).transpose()?;
    Ok(Config {
        listen: args.listen,
        users: Users::parse(&text_file::read(&args.users)?)?,
        tls,
        directory: args.dir.clone(),
    })
}
