//! `trawl gen receive`: the receiver for `--stamp`.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use trawl_capture::capture_site::CaptureSite;
use trawl_gen::receive::{
    FlowReport, Latency, PERCENTILES, Progress, ReceiveReport, ReceiveVerdict, Receiver, ReceiverOptions, flow_name,
};
use trawl_program::Site;
use trawl_sys::events::{self, Signal, Signals};
use trawl_sys::{Error, Result};
use trawl_view::{columns, table};

use super::output::{rate, time};
use crate::args::NetnsArg;
use crate::program_args::warn_of_attaching;
use crate::{json, terminal, units};

/// Interval at which the interface is checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Intervals at which packets are counted, if their number ends the command: while they arrive, and while none do.
const COUNT_EVERY: Duration = Duration::from_millis(20);
const COUNT_RARELY: Duration = Duration::from_millis(500);
const SHOW_EVERY: Duration = Duration::from_millis(500);

/// Counts stamped packets: loss, order, duplicates and one-way latency, for each flow and in total
///
/// The packets are sent by `trawl gen … --stamp`. They are counted in the driver, before the network stack, and dropped
/// there unless --pass is given; packets without a stamp always pass. A packet's latency is the time from its stamp to
/// the receiving hook on the clock CLOCK_TAI: on one machine both are the same clock, between machines it is as good as
/// their synchronisation.
#[derive(Debug, clap::Args)]
pub struct ReceiveArgs {
    /// Interface to receive on, NAME or NAMESPACE:NAME
    #[arg(short, long, value_name = "IF", add = crate::completion::interfaces())]
    interface: String,
    #[command(flatten)]
    netns: NetnsArg,
    /// End after this time, for example 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// End after this many stamped packets; a few more may be counted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Pass stamped packets to the network stack
    #[arg(long)]
    pass: bool,
    /// Track this many flows, with 6 KiB of memory each; packets of other flows are counted without order
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_flows: u32,
    /// List this many flows
    #[arg(long, value_name = "N", default_value_t = 10)]
    flows: usize,
    /// Print the result as JSON, with all flows
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ReceiveArgs) -> Result<ExitCode> {
    let site = CaptureSite::find(&args.interface, args.netns.as_deref())?;
    let signals = Signals::watch()?;
    let to = Site::named(site.namespace.clone(), &site.interface.name)?;
    warn_of_attaching(&[to], None);
    let receiver = Receiver::attach(&ReceiverOptions {
        namespace: site.namespace.as_ref(),
        interface: &site.interface.name,
        verdict: if args.pass { ReceiveVerdict::Pass } else { ReceiveVerdict::Drop },
        max_flows: args.max_flows,
    })?;
    if let Some(notice) = receiver.notice() {
        json::say("receiver", json!({}), notice);
    }
    let mode = receiver.mode();
    let receiving = json!({ "interface": &site.label, "mode": mode });
    let text = format!("receiving on {} ({mode} mode)", site.label);
    json::say("receiving", receiving, &text);
    let start = Instant::now();
    let gone = watch(args, &signals, &receiver)?;
    let took = start.elapsed();
    let report = receiver.finish()?;
    let received = Received { interface: &site.label, mode, seconds: took.as_secs_f64(), report: &report };
    json::print_as(args.json, &received, || summary(&site.label, took, &report, args))?;
    if gone {
        let what = format!("stopped receiving on {}", site.label);
        return Err(Error::failed(what, "the interface is gone"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The JSON document of a receiver.
#[derive(Serialize)]
struct Received<'a> {
    interface: &'a str,
    mode: &'a str,
    #[serde(serialize_with = "json::rounded")]
    seconds: f64,
    #[serde(flatten)]
    report: &'a ReceiveReport,
}

/// Waits for the end; returns true if the interface is gone.
fn watch(args: &ReceiveArgs, signals: &Signals, receiver: &Receiver) -> Result<bool> {
    let start = Instant::now();
    let live = terminal::stderr_is_terminal();
    let mut shown = (start, Progress::default());
    let mut gone = false;
    let (mut counted, mut count_every) = (0, COUNT_EVERY);
    loop {
        let left = args.duration.map(|d| d.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        let mut wait = left.unwrap_or(CHECK_EVERY).min(CHECK_EVERY);
        if let Some(count) = args.count {
            let packets = receiver.counts()?.0.packets;
            if packets >= count {
                break;
            }
            count_every = if packets == counted { (count_every * 2).min(COUNT_RARELY) } else { COUNT_EVERY };
            counted = packets;
            wait = wait.min(count_every);
        }
        if receiver.is_orphaned() {
            gone = true;
            break;
        }
        if live && shown.0.elapsed() >= SHOW_EVERY {
            let progress = receiver.progress()?;
            terminal::show_over(&line(start, &progress, &shown));
            shown = (Instant::now(), progress);
        }
        if live {
            wait = wait.min(SHOW_EVERY.saturating_sub(shown.0.elapsed()));
        }
        match signals.next() {
            None => events::wait(&[signals.as_fd()], wait)?,
            Some(Signal::Report) => {
                let begin = (start, Progress::default());
                let line = line(start, &receiver.progress()?, &begin);
                json::say("progress", json!({}), &line);
            }
            Some(_) => break,
        }
    }
    if live && shown.0 != start {
        terminal::end_line();
    }
    Ok(gone)
}

/// Formats the counts so far, and the rate since the last line.
fn line(start: Instant, progress: &Progress, before: &(Instant, Progress)) -> String {
    let seconds = before.0.elapsed().as_secs_f64().max(f64::EPSILON);
    let (now, then) = (progress.stamped, before.1.stamped);
    format!(
        "{:.1} s: {} received, {}, {}, lost {}, without stamp {}",
        start.elapsed().as_secs_f64(),
        now.packets,
        rate((now.packets - then.packets) as f64 / seconds, "pps"),
        rate((now.bytes - then.bytes) as f64 * 8.0 / seconds, "bit/s"),
        progress.lost,
        progress.unstamped.packets,
    )
}

fn summary(interface: &str, took: Duration, report: &ReceiveReport, args: &ReceiveArgs) -> String {
    let (packets, bytes) = (report.received, report.received_bytes);
    let mut text = format!("{interface}: {packets} stamped packets, {bytes} bytes in {:.3} s", took.as_secs_f64());
    if let Some(speed) = report.packets_per_second {
        let _ = write!(text, "; {} from the first to the last", rate(speed, "pps"));
    }
    let _ = writeln!(text, "\nwithout stamp: {}", report.unstamped);
    if packets == 0 {
        text.push_str("no stamped packet arrived; `trawl gen … --stamp` sends them\n");
        return text;
    }
    let share = report.counts.lost as f64 / report.counts.expected.max(1) as f64 * 100.0;
    let _ = writeln!(
        text,
        "lost {} of {} ({share:.4} %), reordered {}, duplicates {}",
        report.counts.lost, report.counts.expected, report.counts.reordered, report.counts.duplicates
    );
    text.push_str(&remarks(report, args));
    if report.latency.count > 0 {
        let _ = writeln!(text, "latency: {}", latency_text(&report.latency));
    }
    text.push_str(&flows_table(report, args.flows));
    text
}

/// Formats remarks that explain the counts.
fn remarks(report: &ReceiveReport, args: &ReceiveArgs) -> String {
    let mut text = String::new();
    if report.counts.too_old > 0 {
        let _ = writeln!(
            text,
            "{} arrived too late to be distinguished from duplicates, and are counted as lost",
            report.counts.too_old
        );
    }
    if report.counts.restarts > 0 {
        let _ = writeln!(text, "senders restarted {} times", report.counts.restarts);
    }
    if report.counts.before_first > 0 {
        let _ = writeln!(
            text,
            "{} packets were sent before the first that arrived: before the receiver started, or they were lost",
            report.counts.before_first
        );
    }
    if report.untracked > 0 {
        let _ = writeln!(
            text,
            "{} packets belong to flows beyond --max-flows {}; their order is not checked",
            report.untracked, args.max_flows
        );
    }
    if report.latency.negative > 0 {
        let _ = writeln!(
            text,
            "{} packets arrived before their stamp, by up to {}: the clocks differ, latencies are not reliable",
            report.latency.negative,
            time(report.latency.most_negative)
        );
    }
    text
}

fn latency_text(latency: &Latency) -> String {
    let mut text = format!("min {}, mean {}, ", time(latency.min), time(latency.mean as u64));
    for ((name, _), value) in PERCENTILES.iter().zip(latency.percentiles) {
        let _ = write!(text, "{} {}, ", name.replace('_', "."), time(value));
    }
    let _ = write!(text, "max {}", time(latency.max));
    text
}

fn flows_table(report: &ReceiveReport, most: usize) -> String {
    let mut text = String::new();
    if report.flows.len() < 2 || most == 0 {
        return text;
    }
    let columns = columns![flow: FlowReport;
        "flow" 10 flow_name(&flow.key),
        "received" 12 flow.received,
        "lost" 10 flow.counts.lost,
        "reordered" 10 flow.counts.reordered,
        "duplicate" 10 flow.counts.duplicates,
        "p50" 10 time(flow.latency.percentiles[0]),
        "p99" 10 time(flow.latency.percentiles[2]),
        "max" 10 time(flow.latency.max),
    ];
    text += &table::text(&columns, report.flows.iter().take(most));
    if let Some(more) = report.flows.len().checked_sub(most).filter(|n| *n > 0) {
        let _ = writeln!(text, "{more} more flows: --flows N or --json shows them");
    }
    text
}
