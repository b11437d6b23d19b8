//! `trawl gen rfc2544`: throughput and latency between two interfaces.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use trawl_capture::capture_site::CaptureSite;
use trawl_gen::engine::Device;
use trawl_gen::receive::{Latency, PERCENTILES};
use trawl_gen::rfc2544::{CHECKSUM, Measurement, Progress, Rfc2544Options, Rfc2544Results, SIZES, Side, Trial};
use trawl_gen::target;
use trawl_gen::traffic::{Protocol, Spec};
use trawl_sys::netlink::Netlink;
use trawl_sys::{Error, Result, host};

use super::output::{Watch, rate, time, wire_bits};
use super::send::SenderArgs;
use crate::json::{rounded, rounded_option};
use crate::{json, units};

/// Measures the devices between two interfaces by RFC 2544: throughput and latency for each frame size
///
/// Stamped UDP frames leave by --tx, and are counted and dropped when they arrive at --rx. The highest rate without
/// loss is found by bisection, from the fastest rate of the sender; the latencies are from the best trial. Both
/// interfaces are on this machine, perhaps in namespaces of their own, and one clock serves both.
#[derive(Debug, clap::Args)]
pub struct Rfc2544Args {
    /// Interface to send on, NAME or NAMESPACE:NAME
    #[arg(long, value_name = "IF", add = crate::completion::interfaces())]
    tx: String,
    /// Interface that the frames arrive at, NAME or NAMESPACE:NAME
    #[arg(long, value_name = "IF", add = crate::completion::interfaces())]
    rx: String,
    /// Frame sizes with the checksum at their end [default: the RFC's sizes that the MTU allows: 64 128 256 512 1024
    /// 1280 1518]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Time that each trial sends; the RFC asks for 60s
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "2s")]
    duration: Duration,
    /// Maximum loss, in per cent, that counts as no loss
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, allow_hyphen_values = true)]
    loss: f64,
    /// Precision of the search for the rate, in per cent of the fastest
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, allow_hyphen_values = true)]
    resolution: f64,
    /// Maximum frames a second, for example 1.5Mpps
    #[arg(long, value_name = "PPS", value_parser = units::frame_rate, allow_hyphen_values = true)]
    max_rate: Option<f64>,
    /// Measure the loss at the fastest rate and at each tenth below, too, until two rates in a row have none
    #[arg(long)]
    frame_loss: bool,
    /// Measure the longest burst without loss, too
    #[arg(long)]
    back_to_back: bool,
    /// Destination address of the frames [default: the first address of --rx]
    #[arg(long, value_name = "ADDR")]
    dst: Option<String>,
    /// Source address [default: the one of the route to the destination]
    #[arg(long, value_name = "ADDR")]
    src: Option<String>,
    /// Destination MAC address [default: the next hop's]
    #[arg(long, value_name = "MAC")]
    dst_mac: Option<String>,
    /// Use IPv6, also if no address is given
    #[arg(short = '6', long)]
    ipv6: bool,
    #[command(flatten)]
    sender: SenderArgs,
    /// The CPU to send from [default: the kernel's choice]
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
}

pub fn run(args: &Rfc2544Args) -> Result<ExitCode> {
    let (tx, rx) = (CaptureSite::find(&args.tx, None)?, CaptureSite::find(&args.rx, None)?);
    let mut watch = Watch::new()?;
    args.sender.check(&tx)?;
    let mut measurement = Measurement::new(Rfc2544Options {
        tx: side(&tx),
        rx: side(&rx),
        spec: args.spec(&tx, &rx)?,
        sizes: args.sizes(&tx),
        duration: args.duration,
        loss: args.loss / 100.0,
        resolution: args.resolution / 100.0,
        most: args.max_rate,
        cpu: args.cpu,
        engine: args.sender.engine(0, watch.notes(), &Device::default()),
        frame_loss: args.frame_loss,
        back_to_back: args.back_to_back,
    })?;
    if let Some(notice) = measurement.receiver().notice() {
        json::say("receiver", json!({}), notice);
    }
    let longest = measurement.longest();
    let measuring = json!({ "sender": &tx.label, "receiver": &rx.label, "at_most_seconds": longest.as_secs_f64() });
    let (from, to, longest) = (&tx.label, &rx.label, seconds(longest));
    let text = format!("measuring {from} to {to}, for {longest} at most");
    json::say("measuring", measuring, &text);
    let mut outcomes: Vec<Rfc2544Results> = Vec::new();
    let mut measure = |size| {
        let outcome = measurement.measure(size, &mut |progress| watch.show_line(&line(progress)));
        outcome?.ok_or_else(|| Error::failed("not everything was measured", "stopped"))
    };
    let mut failure = None;
    for size in args.sizes(&tx) {
        match measure(size) {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let doubtful = match failure {
        Some(_) => Vec::new(),
        None => disturbed(&outcomes),
    };
    for at in doubtful {
        match measure(outcomes[at].size) {
            Ok(again) if again.fastest > outcomes[at].fastest => outcomes[at] = again,
            Ok(_) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    let disturbed = disturbed(&outcomes);
    watch.end_line();
    let document = Document {
        conditions: conditions(args, &tx, &rx, &measurement),
        results: outcomes
            .iter()
            .enumerate()
            .map(|(at, outcome)| SizeResult { sender_disturbed: disturbed.contains(&at), ..SizeResult::new(outcome) })
            .collect(),
    };
    json::print_as(args.sender.json, &document, || {
        summary(args, &measurement, &outcomes) + &doubts(&outcomes, &disturbed)
    })?;
    failure.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Minimum share of the sender's full speed with larger frames. A lower speed with smaller frames is doubtful.
const MIN_SHARE: f64 = 0.8;

/// Returns the positions of sizes with which the sender was much slower than with a larger size. A smaller frame costs
/// the sender no more than a larger one, so another cause has slowed it down.
fn disturbed(outcomes: &[Rfc2544Results]) -> Vec<usize> {
    let is_slower =
        |one: &Rfc2544Results, other: &Rfc2544Results| one.size < other.size && one.fastest < MIN_SHARE * other.fastest;
    let is_doubtful = |one: &Rfc2544Results| outcomes.iter().any(|other| is_slower(one, other));
    let doubtful = outcomes.iter().enumerate().filter(|(_, one)| is_doubtful(one));
    doubtful.map(|(at, _)| at).collect()
}

/// Returns a line for each size whose results are too low because the sender was slowed down.
fn doubts(outcomes: &[Rfc2544Results], disturbed: &[usize]) -> String {
    let mut text = String::new();
    let best = outcomes.iter().max_by(|a, b| a.fastest.total_cmp(&b.fastest));
    for (one, best) in disturbed.iter().filter_map(|at| outcomes.get(*at).zip(best)) {
        let _ = writeln!(
            text,
            "{:>6} bytes: doubtful: the sender reached only {}, and {} with {} bytes: something else slowed it down; measure again",
            one.size,
            rate(one.fastest, "pps"),
            rate(best.fastest, "pps"),
            best.size
        );
    }
    text
}

fn side(site: &CaptureSite) -> Side<'_> {
    Side { namespace: site.namespace.as_ref(), interface: &site.interface, label: &site.label }
}

impl Rfc2544Args {
    fn sizes(&self, tx: &CaptureSite) -> Vec<usize> {
        if !self.sizes.is_empty() {
            return self.sizes.clone();
        }
        // IPv6 and the stamp do not fit into the shortest frame.
        let shortest = if self.is_v6() { 84 } else { 64 };
        let longest = tx.interface.mtu as usize + 14 + CHECKSUM;
        let mut sizes: Vec<usize> = SIZES.into_iter().filter(|size| *size <= longest).collect();
        sizes.iter_mut().for_each(|size| *size = (*size).max(shortest));
        sizes
    }

    fn is_v6(&self) -> bool {
        self.ipv6 || self.dst.as_ref().is_some_and(|dst| dst.contains(':'))
    }

    /// Returns the frames to send: UDP to the other side.
    fn spec(&self, tx: &CaptureSite, rx: &CaptureSite) -> Result<Spec> {
        let mut spec = Spec::new(Protocol::Udp);
        let destination = match &self.dst {
            Some(text) => text.clone(),
            None => self.address_of(rx)?,
        };
        spec.set("dst", destination)?;
        if let Some(src) = &self.src {
            spec.set("src", src.clone())?;
        }
        if let Some(mac) = &self.dst_mac {
            spec.set("dst-mac", mac.clone())?;
        }
        target::complete(&mut spec, tx.namespace.as_ref(), &tx.interface, self.is_v6())?;
        Ok(spec)
    }

    fn address_of(&self, rx: &CaptureSite) -> Result<String> {
        let addresses = Netlink::open(rx.namespace.as_ref())?.addresses(rx.interface.index)?;
        let fits = |address: &&std::net::IpAddr| match address {
            std::net::IpAddr::V4(_) => !self.ipv6,
            std::net::IpAddr::V6(v6) => self.ipv6 && !v6.is_unicast_link_local(),
        };
        let found = addresses.iter().find(fits).map(ToString::to_string);
        found.ok_or_else(|| {
            Error::usage(format!("cannot send to {}", rx.label), "it has no address of that version")
                .fix("give --dst ADDRESS and --dst-mac MAC")
        })
    }
}

fn line(progress: &Progress<'_>) -> String {
    let offered = progress.offered.map(|offered| format!(" at {}", rate(offered, "pps")));
    format!(
        "{} bytes: {}{}, {} sent",
        progress.size,
        progress.doing,
        offered.unwrap_or_default(),
        progress.figures.frames
    )
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        n if n < 10.0 => format!("{n:.1} s"),
        n if n < 120.0 => format!("{n:.0} s"),
        n => format!("{:.0} min", (n / 60.0).ceil()),
    }
}

fn summary(args: &Rfc2544Args, measurement: &Measurement<'_>, outcomes: &[Rfc2544Results]) -> String {
    let mut text = format!(
        "{} to {}: {} engine, received in {} mode, trials of {}, up to {} % lost\n",
        args.tx,
        args.rx,
        measurement.engine(),
        measurement.receiver().mode(),
        seconds(args.duration),
        args.loss
    );
    let _ = writeln!(
        text,
        "{:>6} {:>14} {:>16} {:>10} {:>10} {:>10} {:>10} {:>10}  limit",
        "bytes", "throughput", "on the wire", "min", "p50", "p99", "p99.9", "max"
    );
    for outcome in outcomes {
        text.push_str(&row(outcome));
    }
    for outcome in outcomes {
        text.push_str(&further(outcome));
    }
    text
}

fn row(outcome: &Rfc2544Results) -> String {
    let size = outcome.size;
    let Some(best) = &outcome.throughput else {
        let tried = outcome.trials.last().and_then(|trial| trial.offered);
        let lowest = rate(tried.unwrap_or(0.0), "pps");
        return format!("{size:>6} none: frames were still lost at {lowest}\n");
    };
    let latency = &best.latency;
    let limit = if outcome.trials.len() == 1 { "the sender" } else { "the device under test" };
    format!(
        "{size:>6} {:>14} {:>16} {:>10} {:>10} {:>10} {:>10} {:>10}  {limit}\n",
        rate(best.rate(), "pps"),
        rate(wire_bits(best.rate(), size), "bit/s"),
        time(latency.min),
        time(latency.percentiles[0]),
        time(latency.percentiles[2]),
        time(latency.percentiles[3]),
        time(latency.max),
    )
}

fn further(outcome: &Rfc2544Results) -> String {
    let mut text = String::new();
    for trial in outcome.frame_loss.iter().flatten() {
        let _ = writeln!(
            text,
            "{:>6} bytes at {}: {:.4} % lost",
            outcome.size,
            rate(trial.rate(), "pps"),
            trial.loss_percent
        );
    }
    if let Some(frames) = outcome.back_to_back {
        let _ = writeln!(text, "{:>6} bytes: {frames} back to back", outcome.size);
    }
    text
}

/// A measurement by RFC 2544 in JSON.
#[derive(Serialize)]
struct Document<'a> {
    conditions: Conditions<'a>,
    results: Vec<SizeResult<'a>>,
}

#[derive(Serialize)]
struct Conditions<'a> {
    tx: &'a str,
    rx: &'a str,
    tx_driver: Option<&'a str>,
    rx_driver: Option<&'a str>,
    engine: &'a str,
    receive_mode: &'a str,
    trial_seconds: f64,
    accepted_loss_percent: f64,
    resolution_percent: f64,
    max_rate: Option<f64>,
    /// Latencies are from the stamp in the sender to the XDP hook of the receiver, by this clock.
    latency_clock: &'static str,
    kernel: String,
    cpus: u32,
    trawl: &'static str,
}

#[derive(Serialize)]
struct SizeResult<'a> {
    size: usize,
    #[serde(serialize_with = "rounded")]
    sender_frames_per_second: f64,
    /// The sender was much slower than with larger frames.
    sender_disturbed: bool,
    #[serde(serialize_with = "rounded_option")]
    throughput_frames_per_second: Option<f64>,
    #[serde(serialize_with = "rounded_option")]
    throughput_wire_bits_per_second: Option<f64>,
    latency_ns: Option<&'a Latency>,
    trials: &'a [Trial],
    frame_loss: Option<&'a [Trial]>,
    back_to_back_frames: Option<u64>,
}

impl<'a> SizeResult<'a> {
    fn new(outcome: &'a Rfc2544Results) -> Self {
        let best = outcome.throughput.as_ref();
        Self {
            size: outcome.size,
            sender_frames_per_second: outcome.fastest,
            sender_disturbed: false,
            throughput_frames_per_second: best.map(Trial::rate),
            throughput_wire_bits_per_second: best.map(|best| wire_bits(best.rate(), outcome.size)),
            latency_ns: best.map(|best| &best.latency),
            trials: &outcome.trials,
            frame_loss: outcome.frame_loss.as_deref(),
            back_to_back_frames: outcome.back_to_back,
        }
    }
}

fn conditions<'a>(
    args: &Rfc2544Args,
    tx: &'a CaptureSite,
    rx: &'a CaptureSite,
    measurement: &'a Measurement<'_>,
) -> Conditions<'a> {
    Conditions {
        tx: &tx.label,
        rx: &rx.label,
        tx_driver: tx.interface.driver.as_deref(),
        rx_driver: rx.interface.driver.as_deref(),
        engine: measurement.engine(),
        receive_mode: measurement.receiver().mode(),
        trial_seconds: args.duration.as_secs_f64(),
        accepted_loss_percent: args.loss,
        resolution_percent: args.resolution,
        max_rate: args.max_rate,
        latency_clock: "CLOCK_TAI",
        kernel: host::kernel_release(),
        cpus: host::cpus(),
        trawl: env!("CARGO_PKG_VERSION"),
    }
}

/// The columns of [`row`] depend on these.
const _: () = assert!(PERCENTILES[0].1 == 0.5 && PERCENTILES[2].1 == 0.99 && PERCENTILES[3].1 == 0.999);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_slower_than_a_larger_one_is_doubtful() {
        let outcome = |(size, fastest)| Rfc2544Results {
            size,
            fastest,
            throughput: None,
            trials: Vec::new(),
            frame_loss: None,
            back_to_back: None,
        };
        let of = |speeds: [(usize, f64); 3]| speeds.map(outcome);
        let slowed = of([(64, 623e3), (128, 1600e3), (512, 1564e3)]);
        assert_eq!(disturbed(&slowed), [0]);
        let text = doubts(&slowed, &[0]);
        assert!(text.contains("64 bytes: doubtful") && text.contains("128 bytes"), "{text}");
        let usual = of([(64, 1500e3), (128, 1600e3), (1518, 800e3)]);
        assert!(disturbed(&usual).is_empty());
    }
}
