//! Arguments about events: packets are kept in memory, and written only around an event.

use std::time::Duration;

use trawl_packet::verdict::{VerdictKind, VerdictSet};
use trawl_plan::options::{TRIGGER_MEMORY_DEFAULT, TRIGGER_MEMORY_MIN, TriggerPlan};
use trawl_sys::{Error, Result};

use crate::{completion, units};

const BEFORE: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Triggers")]
pub(super) struct TriggerArgs {
    /// Keep packets in memory, and write them only around events; an event is a packet that matches this expression
    #[arg(long, value_name = "EXPRESSION", value_parser = expression, hide_short_help = true)]
    trigger: Option<String>,
    /// A packet with one of these verdicts is an event: aborted, drop, pass, tx, redirect
    #[arg(long, value_name = "LIST", add = completion::verdicts(), hide_short_help = true)]
    on_verdict: Option<String>,
    /// The signal SIGUSR2 is an event
    #[arg(long, hide_short_help = true)]
    on_signal: bool,
    /// Write the packets of this time before an event [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true, hide_short_help = true)]
    pre_trigger: Option<Duration>,
    /// Write the packets of this time after an event [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true, hide_short_help = true)]
    post_trigger: Option<Duration>,
    /// Memory for packets before an event; new packets overwrite the oldest [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, hide_short_help = true)]
    trigger_memory: Option<u64>,
    /// End after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    trigger_count: Option<u64>,
}

/// Parses a time, which may be zero.
fn time(text: &str) -> std::result::Result<Duration, String> {
    match text {
        "0" | "0s" | "0ms" | "0us" => Ok(Duration::ZERO),
        _ => units::duration(text),
    }
}

fn expression(text: &str) -> std::result::Result<String, String> {
    match text.trim() {
        "" => Err("an empty expression matches every packet".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

impl TriggerArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        self.trigger.is_some() || self.on_verdict.is_some() || self.on_signal
    }

    /// Returns true if an expression needs whole packets, even if only their beginnings are written.
    pub(super) fn needs_whole_packets(&self) -> bool {
        self.trigger.is_some()
    }

    pub(super) fn plan(&self, has_verdicts: bool, available: u64) -> Result<Option<TriggerPlan>> {
        let Self { trigger, on_verdict, on_signal, pre_trigger, post_trigger, trigger_memory, trigger_count } = self;
        if !self.is_asked_for() {
            let without = [
                (pre_trigger.is_some(), "--pre-trigger"),
                (post_trigger.is_some(), "--post-trigger"),
                (trigger_memory.is_some(), "--trigger-memory"),
                (trigger_count.is_some(), "--trigger-count"),
            ];
            return match without.iter().find(|(is_given, _)| *is_given) {
                Some((_, name)) => Err(Error::usage(format!("cannot use {name}"), "no event is given")
                    .fix("name one: --trigger EXPRESSION, --on-verdict LIST or --on-signal")),
                None => Ok(None),
            };
        }
        if on_verdict.is_some() && !has_verdicts {
            return Err(Error::usage("cannot wait for a verdict", "--meta leaves verdicts out of the records")
                .fix("add verdict to --meta"));
        }
        let verdicts = on_verdict
            .as_deref()
            .map(|list| VerdictSet::parse(VerdictKind::Xdp, list))
            .transpose()
            .map_err(|e| Error::usage("cannot understand --on-verdict", e))?;
        let memory = trigger_memory.unwrap_or(TRIGGER_MEMORY_DEFAULT);
        if memory < TRIGGER_MEMORY_MIN {
            return Err(Error::usage(
                format!("cannot keep packets in {memory} bytes of memory"),
                "it is too small for a few packets of maximum size",
            )
            .fix("choose --trigger-memory 1MiB or more"));
        }
        if memory > available {
            let why = format!("{} MiB are available", available >> 20);
            let what = format!("cannot keep packets in {} MiB of memory", memory >> 20);
            return Err(Error::usage(what, why).fix("choose a smaller --trigger-memory"));
        }
        Ok(Some(TriggerPlan {
            before: pre_trigger.unwrap_or(BEFORE),
            after: post_trigger.unwrap_or(AFTER),
            expression: trigger.clone(),
            verdicts,
            signal: *on_signal,
            memory,
            events: *trigger_count,
        }))
    }
}

/// Refuses other options that have no meaning around events, or prevent events.
pub(super) fn check(plan: &TriggerPlan, kept: Option<&VerdictSet>, count: Option<u64>) -> Result<()> {
    if count.is_some() {
        let why = "packets are written around events";
        return Err(Error::usage("cannot use -c", why).fix("--trigger-count N ends after N events"));
    }
    if let (Some(kept), Some(wanted)) = (kept, &plan.verdicts)
        && !wanted.actions().any(|action| kept.contains(action))
    {
        let what = "cannot wait for a verdict that --verdict leaves out";
        return Err(
            Error::usage(what, "no packet with it is recorded").fix("add it to --verdict, or leave --verdict out")
        );
    }
    Ok(())
}
