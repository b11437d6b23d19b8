//! The statistics in Prometheus' text format.

use trawl_front::prometheus::{self, Metric};
use trawl_pipeline::account::PacketAccount;

use super::{CapturePoint, Figures};
use crate::published::{RunningCapture, RunningGenerator};
use trawl_figures::counters::{InterfaceCounters, ProgramCounters, RouterCounters};
use trawl_figures::processes::ProcessTotals;
use trawl_figures::series::{Labelled, Labels};

pub(super) fn text(figures: &Figures) -> String {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let build = ("build_info", "The version of trawl that serves these figures.", vec![(version, 1.0)]);
    let groups = [machine, running, own_capture, losses, processes].map(|group| group(figures));
    prometheus::page(std::iter::once(build).chain(groups.into_iter().flatten()))
}

fn single(value: u64) -> prometheus::Values {
    prometheus::single(value as f64)
}

/// Lists labels: fields under their own names, then further labels with their values.
macro_rules! labels {
    ($of:ident: $($field:ident),+ $(; $name:literal $value:expr)*) => {
        vec![$((stringify!($field), $of.$field.to_string())),+ $(, ($name, $value.to_string()))*]
    };
}

fn machine(figures: &Figures) -> Vec<Metric> {
    let counters = &figures.counters;
    let of_side = |one: &InterfaceCounters, direction: &str, count: u64| {
        (labels!(one: interface, netns; "direction" direction), count as f64)
    };
    let sides = |of: usize| {
        let all = counters.interfaces.iter().flat_map(|one| {
            let [received, sent] = one.sides();
            [of_side(one, "in", received[of]), of_side(one, "out", sent[of])]
        });
        all.collect()
    };
    let softnet = &counters.softnet;
    let programs = |value: fn(&ProgramCounters) -> f64| {
        let all = counters
            .xdp_programs
            .iter()
            .map(|one| (labels!(one: interface, netns; "hook" "xdp"; "program" one.name; "id" one.id), value(one)));
        all.collect()
    };
    let seconds = programs(|one| one.run_time_ns as f64 / 1e9);
    let verdicts = counters
        .xdp_verdicts
        .iter()
        .map(|one| (labels!(one: interface, netns, program, id, verdict), one.packets as f64));
    let traced = labelled(&figures.own.verdicts.program_verdicts);
    let not_counted = figures
        .own
        .verdicts
        .programs_not_counted
        .iter()
        .map(|one| (labels!(one: interface, netns, program, id, reason), 1.0));
    let rules = counters.guard_rules.iter().map(|rule| (labels!(rule: id, rule), rule.packets as f64));
    let ports = |count: fn(&RouterCounters) -> u64| {
        let all = counters.router.iter().map(|one| (labels!(one: interface, outcome), count(one) as f64));
        all.collect()
    };
    vec![
        ("interface_packets_total", "Packets that an interface received and sent.", sides(0)),
        ("interface_bytes_total", "Bytes that an interface received and sent.", sides(1)),
        ("interface_dropped_total", "Packets that an interface dropped.", sides(2)),
        ("interface_errors_total", "Errors of an interface.", sides(3)),
        ("softnet_processed_total", "Packets that the stack's receive queues processed.", single(softnet.processed)),
        ("softnet_dropped_total", "Packets that the stack's receive queues dropped.", single(softnet.dropped)),
        (
            "softnet_time_squeezed_total",
            "Times that a receive queue's budget was used up.",
            single(softnet.time_squeezed),
        ),
        (
            "xdp_program_runs_total",
            "Runs of an XDP program, while the kernel counts them.",
            programs(|one| one.runs as f64),
        ),
        ("xdp_program_run_seconds_total", "Time that an XDP program ran, while the kernel counts it.", seconds),
        ("xdp_verdicts_total", "Packets of an XDP program, by its verdict.", verdicts.chain(traced).collect()),
        ("xdp_programs_not_counted", "XDP programs whose verdicts cannot be counted.", not_counted.collect()),
        ("guard_rule_packets_total", "Packets that a rule of the guard decided about.", rules.collect()),
        ("router_packets_total", "Packets that a port of the router received, by outcome.", ports(|one| one.packets)),
        ("router_bytes_total", "Bytes that a port of the router received, by outcome.", ports(|one| one.bytes)),
    ]
}

/// Returns the counts of other commands on this machine.
fn running(figures: &Figures) -> Vec<Metric> {
    let pid = |pid: u32| ("pid", pid.to_string());
    let captures = |count: fn(&RunningCapture) -> u64| {
        let all = figures.captures.iter();
        all.map(|one| (vec![pid(one.pid)], count(one) as f64)).collect()
    };
    let filtered_out = captures(|one| one.filtered_out);
    let recorded = captures(|one| one.recorded);
    let lost = figures.captures.iter().flat_map(|one| {
        let labels = |reason: &str| vec![pid(one.pid), ("reason", reason.to_owned())];
        let reasons = one.lost.iter();
        reasons.map(move |(reason, count)| (labels(reason), *count as f64))
    });
    let generators = |count: fn(&RunningGenerator) -> u64| {
        let all = figures.generators.iter().map(|one| {
            let labels = vec![pid(one.pid), ("interface", one.interface.clone())];
            (labels, count(one) as f64)
        });
        all.collect()
    };
    vec![
        ("running_capture_seen_total", "Packets that a running capture saw.", captures(|one| one.seen)),
        ("running_capture_filtered_out_total", "Packets that did not match a running capture's filter.", filtered_out),
        ("running_capture_recorded_total", "Packets that a running capture recorded.", recorded),
        ("running_capture_lost_total", "Packets that a running capture lost, by reason.", lost.collect()),
        (
            "running_capture_memory_bytes",
            "Memory for records that a running capture has.",
            captures(|one| one.memory_bytes),
        ),
        ("generator_frames_total", "Frames that a running generator sent.", generators(|one| one.frames)),
        ("generator_bytes_total", "Bytes that a running generator sent.", generators(|one| one.bytes)),
        (
            "generator_refused_total",
            "Frames of a running generator that the device refused.",
            generators(|one| one.refused),
        ),
    ]
}

fn own_capture(figures: &Figures) -> Vec<Metric> {
    let Some(capture) = &figures.own.capture else {
        return Vec::new();
    };
    let labels = |point: &CapturePoint| labels!(point: interface, netns, hook);
    let counts = |count: fn(&PacketAccount) -> u64| {
        let points = capture.points.iter();
        points.map(|point| (labels(point), count(&point.account) as f64)).collect()
    };
    let lost = capture.points.iter().flat_map(|point| {
        let lost = point.account.lost.iter();
        lost.map(move |(reason, count)| {
            let mut labels = labels(point);
            labels.push(("reason", reason.to_string()));
            (labels, *count as f64)
        })
    });
    let verdicts =
        capture.verdicts.iter().map(|one| (labels!(one: interface, netns, hook, verdict), one.packets as f64));
    vec![
        ("capture_seen_total", "Packets that the capture saw.", counts(|one| one.seen)),
        (
            "capture_filtered_out_total",
            "Packets that did not match the capture's filter.",
            counts(|one| one.filtered_out),
        ),
        ("capture_recorded_total", "Packets that the capture recorded.", counts(|one| one.recorded)),
        ("capture_lost_total", "Packets that the capture lost, by reason.", lost.collect()),
        ("capture_verdict_packets_total", "Packets that the capture saw, by verdict.", verdicts.collect()),
    ]
}

fn labelled(all: &[Labelled]) -> impl Iterator<Item = (Labels, f64)> {
    let value = |one: &Labelled| (one.labels.clone(), one.packets as f64);
    all.iter().map(value)
}

fn losses(figures: &Figures) -> Vec<Metric> {
    let lost = &figures.own.lost;
    let values = |all: &[Labelled]| labelled(all).collect();
    vec![
        (
            "drops_total",
            "Packets that the kernel dropped, by reason and place, since this command began.",
            values(&lost.drops),
        ),
        (
            "drops_missed_total",
            "Drops that could not be counted, because they happened within another one.",
            single(lost.drops_missed),
        ),
        (
            "kernel_losses_total",
            "Counters of lost packets of the kernel and of drivers, since this command began.",
            values(&lost.kernel_counters),
        ),
        (
            "xdp_losses_total",
            "Packets that XDP lost without a socket buffer, since this command began.",
            values(&lost.xdp_losses),
        ),
    ]
}

fn processes(figures: &Figures) -> Vec<Metric> {
    let values = |counts: fn(&ProcessTotals) -> [u64; 2]| {
        let all = figures.own.processes.iter().flat_map(|one| {
            let of_direction = |(direction, count): (&str, u64)| {
                (labels!(one: process, container; "direction" direction), count as f64)
            };
            ["in", "out"].into_iter().zip(counts(one)).map(of_direction)
        });
        all.collect()
    };
    let packets = values(|one| [one.rx_packets, one.tx_packets]);
    let bytes = values(|one| [one.rx_bytes, one.tx_bytes]);
    vec![
        ("process_packets_total", "Packets that the sockets of processes received and sent.", packets),
        ("process_bytes_total", "Bytes that the sockets of processes received and sent, from the IP header on.", bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_figures::counters::{Counters, InterfaceCounters};

    #[test]
    fn labels_are_escaped_and_kinds_declared() {
        let figures = Figures {
            counters: Counters {
                interfaces: vec![InterfaceCounters {
                    interface: "a\"b\\".to_owned(),
                    rx_packets: 7,
                    ..InterfaceCounters::default()
                }],
                ..Counters::default()
            },
            ..Figures::default()
        };
        let text = text(&figures);
        assert!(text.contains("# TYPE trawl_interface_packets_total counter\n"));
        let line = "trawl_interface_packets_total{interface=\"a\\\"b\\\\\",netns=\"\",direction=\"in\"} 7\n";
        assert!(text.contains(line), "{text}");
    }
}
