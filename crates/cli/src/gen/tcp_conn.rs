//! `trawl gen tcp-conn`: real connections to a real listener.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use trawl_gen::connections::{Connecting, ConnectionAccount, run as run_connections};
use trawl_sys::{Error, Result};

use super::output::{Watch, rate, time};
use crate::args::NetnsArg;
use crate::{json, units};

/// Opens real TCP connections to a listener, and sends data over them
///
/// The connections are the kernel's own, with the same packets as any program on this host would send.
#[derive(Debug, clap::Args)]
pub struct TcpConnArgs {
    /// The listener, ADDRESS:PORT or [ADDRESS]:PORT
    #[arg(value_name = "TO")]
    to: SocketAddr,
    /// Source address [default: the one of the route]
    #[arg(long, value_name = "ADDR")]
    src: Option<IpAddr>,
    #[command(flatten)]
    netns: NetnsArg,
    /// Number of connections open at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// New connections a second [default: as many as the limit of open ones allows]
    #[arg(long, value_name = "RATE", value_parser = units::frame_rate, allow_hyphen_values = true)]
    rate: Option<f64>,
    /// Close a connection after this many bytes and open another one [default: keep it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    bytes: Option<u64>,
    /// Bits of data a second over all connections, for example 100Mbit [default: as much as they accept]
    #[arg(long, value_name = "BITS", value_parser = units::bandwidth, allow_hyphen_values = true)]
    bandwidth: Option<f64>,
    /// End after this many connections
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time [default: 10s, unless --count ends it]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

const DEFAULT_TIME: Duration = Duration::from_secs(10);

pub fn run(args: &TcpConnArgs) -> Result<ExitCode> {
    let namespace = args.netns.open()?;
    let plan = Connecting {
        namespace: namespace.as_ref(),
        to: args.to,
        from: args.src,
        connections: args.connections as usize,
        rate: args.rate,
        bytes: args.bytes,
        bandwidth: args.bandwidth,
        count: args.count,
        duration: args.duration.or(args.count.is_none().then_some(DEFAULT_TIME)),
    };
    let mut watch = Watch::new()?;
    let account = run_connections(&plan, &mut |account| watch.show_line(&line(account)));
    watch.end_line();
    let account = account?;
    let connections = Connections { to: args.to, account: &account };
    json::print_as(args.json, &connections, || summary(args, &account))?;
    match &account.last_failure {
        Some(why) if account.connected == 0 => Err(Error::failed("no connection was made", why)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The JSON document of a run.
#[derive(Serialize)]
struct Connections<'a> {
    to: SocketAddr,
    #[serde(flatten)]
    account: &'a ConnectionAccount,
}

fn line(account: &ConnectionAccount) -> String {
    format!(
        "{:.1} s: {} connections, {} open, {} failed, {} bytes sent, {} received",
        account.seconds, account.connected, account.open, account.failed, account.bytes_sent, account.bytes_received,
    )
}

fn summary(args: &TcpConnArgs, account: &ConnectionAccount) -> String {
    let seconds = account.seconds.max(f64::EPSILON);
    let mut text = format!(
        "{}: {} connections in {seconds:.3} s ({:.1} a second), {} closed, {} ended by the other side, {} still open, {} failed\n",
        args.to,
        account.connected,
        account.connected as f64 / seconds,
        account.closed,
        account.ended_by_peer,
        account.open,
        account.failed,
    );
    text += &format!(
        "{} bytes sent and acknowledged ({}), {} received\n",
        account.bytes_sent,
        rate(account.bytes_sent as f64 * 8.0 / seconds, "bit/s"),
        account.bytes_received
    );
    if !account.handshakes.is_empty() {
        let at = |share| time(account.handshakes.value_at_quantile(share));
        text += &format!("handshake time: p50 {}, p99 {}, max {}\n", at(0.5), at(0.99), at(1.0));
    }
    if let Some(why) = &account.last_failure {
        text += &format!("last failure: {why}\n");
    }
    text
}
