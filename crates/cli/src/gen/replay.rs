//! `trawl gen replay`: sends recordings again.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;

use trawl_capture::capture_site::CaptureSite;
use trawl_gen::Source;
use trawl_gen::pace::Rate;
use trawl_gen::replay::rewrite::{Mac, Prefix, Rewrite, TagChange};
use trawl_gen::replay::{Replay, ReplayAccount, ReplayOptions, Speed};
use trawl_gen::traffic::field::mac;
use trawl_sys::{Error, Result};

use super::output::{Sent, Watch, summary};
use super::send::{Pacing, SenderArgs};
use crate::args::NetnsArg;
use crate::json;

/// Sends recorded frames: with the recorded timing, at a multiple of its speed, at a rate, or at full speed
///
/// The files are pcap or pcapng, of any size, and recorded from Ethernet. Without --speed, --rate or --bandwidth the
/// gaps between frames are the recorded ones, to the nanosecond if the file has nanoseconds. Frames that the
/// interface's MTU does not allow are left out and counted. The packet engine, which is the default, offers a frame
/// again until the device accepts it; with the other engines, a frame that the device refuses may be missing.
#[derive(Debug, clap::Args)]
// The default is the engine that offers a frame again until the device accepts it: a replay must not have holes.
#[command(mut_arg("engine", |arg| arg.default_value("packet")))]
pub struct ReplayArgs {
    /// The recordings, in the order in which they are sent
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Interface to send on, NAME or NAMESPACE:NAME
    #[arg(short, long, value_name = "IF", add = crate::completion::interfaces())]
    interface: String,
    #[command(flatten)]
    netns: NetnsArg,
    /// Multiple of the recorded speed (2, 0.5), or `max` for no gaps [default: 1]
    #[arg(long, value_name = "TIMES", conflicts_with_all = ["rate", "bandwidth"], allow_hyphen_values = true)]
    speed: Option<SpeedName>,
    /// Number of rounds; 0: until interrupted
    #[arg(long = "loop", value_name = "N", default_value_t = 1)]
    rounds: u64,
    /// Send the packets of all files in the order of their times, instead of one file after the other
    #[arg(long)]
    merge: bool,
    #[command(flatten)]
    rewrite: Changes,
    #[command(flatten)]
    pacing: Pacing,
    #[command(flatten)]
    sender: SenderArgs,
}

/// A speed: `2`, `0.5`, `max`
#[derive(Clone, Copy, Debug)]
struct SpeedName(Speed);

impl FromStr for SpeedName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self(Speed::Unpaced));
        }
        match text.trim_end_matches('x').parse::<f64>() {
            Ok(times) if times.is_finite() && times > 0.0 => Ok(Self(Speed::Times(times))),
            _ => Err("write for example 2, 0.5 or max".to_owned()),
        }
    }
}

impl ReplayArgs {
    fn speed(&self) -> Speed {
        match self.speed {
            Some(SpeedName(speed)) => speed,
            None if self.pacing.rate() == Rate::Unlimited => Speed::Times(1.0),
            None => Speed::Unpaced,
        }
    }

    fn options(&self, site: &CaptureSite) -> Result<ReplayOptions> {
        Ok(ReplayOptions {
            files: self.files.clone(),
            merge: self.merge,
            rounds: (self.rounds > 0).then_some(self.rounds),
            speed: self.speed(),
            rewrite: self.rewrite.rules()?,
            mtu: site.interface.mtu,
        })
    }
}

pub fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let cpus = args.pacing.cpus()?;
    if cpus.len() > 1 {
        return Err(Error::usage(
            format!("cannot replay from {} threads", cpus.len()),
            "only one thread keeps the order of the frames",
        )
        .fix("leave out --threads, and name one CPU with --cpus"));
    }
    let site = CaptureSite::find(&args.interface, args.netns.as_deref())?;
    args.sender.check(&site)?;
    let replay = Replay::open(args.options(&site)?)?;
    let account = replay.account();
    // The closure could be called by several threads, but there is only one, which takes the replay.
    let replay = Mutex::new(Some(replay));
    let source = |_| -> Result<Box<dyn Source>> {
        let taken = replay.lock().ok().and_then(|mut replay| replay.take());
        let replay = taken.ok_or_else(|| Error::failed("cannot replay", "it is being sent"))?;
        Ok(Box::new(replay))
    };
    let mut watch = Watch::new()?;
    let plan = args.pacing.plan(&site, &cpus);
    let mut report = args.sender.run(&site, &plan, &source, &mut watch)?;
    let outcome = account.outcome();
    report.gaps = report.gaps.or_else(|| outcome.gaps.clone());
    let sent = Sent::new(&site.label, &report, watch.notes(), Some(&outcome));
    json::print_as(args.sender.json, &sent, || summary(&site.label, &report) + &remarks(&outcome, site.interface.mtu))?;
    match report.failure {
        Some(error) => Err(error),
        None if outcome.problems.is_empty() => Ok(ExitCode::SUCCESS),
        None => Err(Error::failed("not everything was sent", outcome.problems.join("; "))),
    }
}

fn remarks(outcome: &ReplayAccount, mtu: u32) -> String {
    let mut text = String::new();
    let mut remark = |count: u64, text_of: &str| {
        if count > 0 {
            let _ = writeln!(text, "{count} {text_of}");
        }
    };
    let too_long = format!("frames were left out: the interface's MTU is {mtu}");
    remark(outcome.too_long, &too_long);
    remark(outcome.too_short, "frames were left out: shorter than an Ethernet header");
    remark(outcome.cut, "frames were truncated in the recording, and sent without the missing part");
    remark(outcome.backwards, "frames were recorded with an earlier time than their predecessor, and sent at once");
    text
}

// Changes to replayed frames, as arguments.

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Changes to the frames (a wrong checksum stays wrong)")]
pub struct Changes {
    /// Source MAC address of all frames
    #[arg(long, value_name = "MAC", value_parser = mac)]
    src_mac: Option<Mac>,
    /// Destination MAC address of all frames
    #[arg(long, value_name = "MAC", value_parser = mac)]
    dst_mac: Option<Mac>,
    /// Replace a MAC address by another, on both sides; may be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = pair(mac))]
    map_mac: Vec<(Mac, Mac)>,
    /// Source IP address of all packets; one for IPv4 and one for IPv6 may be given
    #[arg(long, value_name = "IP")]
    src_ip: Vec<IpAddr>,
    /// Destination IP address of all packets; one for IPv4 and one for IPv6 may be given
    #[arg(long, value_name = "IP")]
    dst_ip: Vec<IpAddr>,
    /// Replace a prefix by another, on both sides, for example 10.0.0.0/8=172.16.0.0/12; may be repeated, the first
    /// match counts
    #[arg(long, value_name = "OLD=NEW", value_parser = pair(prefix))]
    map_ip: Vec<(Prefix, Prefix)>,
    /// VLAN of all frames (a tag is added if there is none), or `none` to remove the outermost tag
    #[arg(long, value_name = "ID|none", value_parser = tag)]
    vlan: Option<TagChange>,
    /// Replace a VLAN by another; may be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = pair(vlan), conflicts_with = "vlan")]
    map_vlan: Vec<(u16, u16)>,
}

impl Changes {
    pub fn rules(&self) -> Result<Rewrite> {
        let (source_v4, source_v6) = by_version("--src-ip", &self.src_ip)?;
        let (destination_v4, destination_v6) = by_version("--dst-ip", &self.dst_ip)?;
        for (old, new) in &self.map_ip {
            if old.is_ipv6() != new.is_ipv6() {
                return Err(Error::usage(format!("cannot map {old} to {new}"), "one is IPv4 and the other IPv6"));
            }
        }
        Ok(Rewrite {
            source_mac: self.src_mac,
            destination_mac: self.dst_mac,
            macs: self.map_mac.clone(),
            source_v4,
            source_v6,
            destination_v4,
            destination_v6,
            prefixes: self.map_ip.clone(),
            tag: self.vlan,
            tags: self.map_vlan.clone(),
        })
    }
}

/// Returns at most one address of each version.
fn by_version(name: &str, given: &[IpAddr]) -> Result<(Option<std::net::Ipv4Addr>, Option<std::net::Ipv6Addr>)> {
    let (mut v4, mut v6) = (None, None);
    for address in given {
        let twice = match address {
            IpAddr::V4(address) => v4.replace(*address).is_some(),
            IpAddr::V6(address) => v6.replace(*address).is_some(),
        };
        if twice {
            let why = format!("{name} names another address of the same version");
            return Err(Error::usage(format!("cannot set the address {address}"), why));
        }
    }
    Ok((v4, v6))
}

fn prefix(text: &str) -> Result<Prefix, String> {
    text.parse()
}

fn vlan(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(id @ 0..=4095) => Ok(id),
        _ => Err(format!("'{text}' is not a VLAN number, 0 to 4095")),
    }
}

fn tag(text: &str) -> Result<TagChange, String> {
    if text == "none" {
        return Ok(TagChange::Remove);
    }
    vlan(text).map(TagChange::Set)
}

/// Parses `OLD=NEW`.
fn pair<T>(one: fn(&str) -> Result<T, String>) -> impl Fn(&str) -> Result<(T, T), String> + Clone + Send + Sync {
    move |text| {
        let (old, new) = text.split_once('=').ok_or_else(|| format!("'{text}': write OLD=NEW"))?;
        Ok((one(old)?, one(new)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds() {
        let speed = |text: &str| text.parse::<SpeedName>().map(|name| name.0);
        assert_eq!(speed("2x"), Ok(Speed::Times(2.0)));
        assert_eq!(speed("0.25"), Ok(Speed::Times(0.25)));
        assert_eq!(speed("max"), Ok(Speed::Unpaced));
        for text in ["", "0", "-1", "inf", "nan", "fast"] {
            assert!(speed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arguments_are_read() {
        assert_eq!(mac("02:00:00:00:00:0A"), Ok([2, 0, 0, 0, 0, 10]));
        assert_eq!(tag("none"), Ok(TagChange::Remove));
        assert_eq!(tag("7"), Ok(TagChange::Set(7)));
        assert_eq!(pair(vlan)("1=2"), Ok((1, 2)));
        for text in ["", "1:2:3:4:5", "g0:0:0:0:0:0", "1:2:3:4:5:6:7", "+1:0:0:0:0:0"] {
            assert!(mac(text).is_err(), "{text}");
        }
        assert!(tag("4096").is_err() && pair(vlan)("1").is_err() && pair(vlan)("1=x").is_err());
    }
}
