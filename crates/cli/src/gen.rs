//! `trawl gen`: generates traffic.

mod output;
mod receive;
mod replay;
mod rfc2544;
mod send;
mod tcp_conn;
mod traffic;

use std::process::ExitCode;

use clap::Subcommand;
use trawl_gen::traffic::Protocol;
use trawl_sys::Result;

use send::{FromFile, Order};

/// Adds the defaults of pacing to the description of a generator.
macro_rules! paced {
    ($what:literal) => {
        concat!(
            $what,
            "\n\nWithout --rate, --bandwidth, --count, --duration and --flood, sends 10 frames a second for 10 seconds. With a rate \
             alone, sends until Ctrl-C. With --count or --duration alone, sends at full speed to a virtual interface in a \
             network namespace, and 1000 frames a second to any other."
        )
    };
}

/// Generates traffic, and counts the frames that the device accepts
#[derive(Debug, clap::Args)]
#[command(long_about = paced!("Generates traffic, and counts the frames that the device accepts"))]
pub struct GenArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Sends UDP datagrams
    #[command(long_about = paced!("Sends UDP datagrams"))]
    Udp(Box<Order<traffic::Udp>>),
    /// Sends TCP segments that belong to no connection: SYN, or other flags
    #[command(long_about = paced!("Sends TCP segments that belong to no connection: SYN, or other flags"))]
    Tcp(Box<Order<traffic::Tcp>>),
    /// Sends ICMP or ICMPv6 messages: echo requests, or another type
    #[command(long_about = paced!("Sends ICMP or ICMPv6 messages: echo requests, or another type"))]
    Icmp(Box<Order<traffic::Icmp>>),
    /// Sends ARP requests or replies
    #[command(long_about = paced!("Sends ARP requests or replies"))]
    Arp(Box<Order<traffic::Arp>>),
    /// Sends Ethernet frames of any type
    #[command(long_about = paced!("Sends Ethernet frames of any type"))]
    Eth(Box<Order<traffic::Eth>>),
    /// Sends frames given in hexadecimal digits
    #[command(long_about = paced!("Sends frames given in hexadecimal digits"))]
    Raw(Box<Order<traffic::Raw>>),
    /// Sends a mix of frames, in phases over time, from a template file
    Template(Box<FromFile>),
    /// Opens real TCP connections to a listener, and sends data over them
    TcpConn(Box<tcp_conn::TcpConnArgs>),
    Receive(receive::ReceiveArgs),
    Replay(Box<replay::ReplayArgs>),
    Rfc2544(Box<rfc2544::Rfc2544Args>),
}

pub fn run(args: GenArgs) -> Result<ExitCode> {
    match args.command {
        Command::Udp(order) => order.run(Protocol::Udp),
        Command::Tcp(order) => order.run(Protocol::Tcp),
        Command::Icmp(order) => order.run(Protocol::Icmp),
        Command::Arp(order) => order.run(Protocol::Arp),
        Command::Eth(order) => order.run(Protocol::Eth),
        Command::Raw(order) => order.run(Protocol::Raw),
        Command::Template(order) => order.run(),
        Command::TcpConn(args) => tcp_conn::run(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Rfc2544(args) => rfc2544::run(&args),
    }
}
