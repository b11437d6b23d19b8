//! `trawl store serve`: a page about a store.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::json;
use trawl_front::{http, json};
use trawl_spool::default_spool;
use trawl_store::Store;
use trawl_sys::events::{self, Signals};
use trawl_sys::{Error, Result, units};

use super::hosts::HostsArgs;
use crate::view::{Questions, Users, View};

/// Maximum time of a file of packets.
const FILE_TIME: Duration = Duration::from_secs(3600);

/// Serves a page about a store: its hosts, conversations, packets and incidents, and a box for queries
///
/// The page only reads the store. A question ends when its reader closes the page. Without --tokens, only this machine
/// can connect. Each question is a line on standard error.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://
    #[arg(value_name = "URL")]
    url: String,
    /// Also count the chunks for this store that wait in this spool
    #[arg(long, value_name = "DIR", default_value_os_t = default_spool())]
    spool: PathBuf,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9418")]
    listen: SocketAddr,
    /// File with the users who may read the store: a name, a space and the SHA-256 of the user's token on each line
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Maximum number of questions that are answered at once, and of files that are downloaded; others wait
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = clap::value_parser!(u16).range(1..))]
    at_once: u16,
    /// Maximum time of a question; a file of packets may take an hour
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    time: Duration,
    /// Maximum memory of a question
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = units::bytes)]
    memory: u64,
    /// Report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    hosts: HostsArgs,
}

impl Args {
    fn view(&self) -> Result<View> {
        let store = Store::open(&self.url, false)?.url().to_owned();
        let users = self.tokens.as_deref().map(Users::new).transpose()?;
        if users.is_none() && !self.listen.ip().is_loopback() {
            let what = format!("cannot listen on {}", self.listen);
            let why = "anyone who reaches the address could read all packets";
            return Err(Error::usage(what, why).fix("name a file with the users' tokens: --tokens FILE"));
        }
        let spool = ["--spool".into(), self.spool.clone().into_os_string()];
        let memory = ["--memory".into(), format!("{}B", self.memory).into()];
        let query = ["store", "query", "--store", &store].map(OsString::from).into_iter().chain(spool.clone());
        let list = ["store", "ls", &store, "--json"].map(OsString::from).into_iter().chain(spool);
        let status = |options| ["fleet", "status", "--json"].map(OsString::from).into_iter().chain(options).collect();
        Ok(View {
            questions: Questions::new(self.at_once.into(), self.time)?,
            files: Questions::new(self.at_once.into(), FILE_TIME)?,
            users,
            time: self.time,
            query: query.chain(memory).chain(self.hosts.typed()).collect(),
            list: list.collect(),
            fleet: self.hosts.fleet().map(status),
            store,
        })
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let signals = Signals::watch()?;
    let view = args.view()?;
    let listener = http::listen(args.listen)?;
    let address = listener.local_addr().map_err(|e| Error::os("cannot find the address", e))?;
    thread::spawn(move || http::serve(&listener, &|request, client| view.answer(request, client)));
    let url = format!("http://{address}/");
    json::say("serving", json!({ "url": &url }), &format!("serving {url}"));
    while !signals.next().is_some_and(|signal| signal.ends()) {
        events::wait(&[signals.as_fd()], Duration::from_secs(60))?;
    }
    Ok(ExitCode::SUCCESS)
}
