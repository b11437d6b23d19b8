//! The statistics in Prometheus' text format.

use trawl_front::prometheus::{self, Histogram, Histograms, Metric};
use trawl_pipeline::account::PacketAccount;

use super::{CapturePoint, Figures};
use crate::published::{RunningCapture, RunningGenerator};
use trawl_figures::connections::{ConnectionTotals, Durations};
use trawl_figures::counters::{InterfaceCounters, ProgramCounters, RouterCounters};
use trawl_figures::processes::ProcessTotals;
use trawl_figures::series::{Labelled, Labels};

pub(super) fn text(figures: &Figures) -> String {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let build = ("build_info", "The version of trawl that serves these figures.", vec![(version, 1.0)]);
    let groups = [machine, running, own_capture, losses, processes, connections].map(|group| group(figures));
    let page = prometheus::page(std::iter::once(build).chain(groups.into_iter().flatten()));
    page + &prometheus::page_of_histograms(durations(figures))
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

/// Returns the labels of connections.
fn owner(one: &ConnectionTotals) -> Labels {
    labels!(one: process, container, pod)
}

fn connections(figures: &Figures) -> Vec<Metric> {
    let found = &figures.own.connections;
    let all = &found.connections;
    let with = |one: &ConnectionTotals, more: &[(&'static str, &str)]| {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        owner(one).into_iter().chain(more).collect::<Labels>()
    };
    let repeated = all.iter().flat_map(|one| {
        let labels = move |cause, reason| with(one, &[("cause", cause), ("drop_reason", reason)]);
        one.retransmissions.iter().map(move |of| (labels(of.cause, of.drop_reason.as_str()), of.count as f64))
    });
    let resets = all.iter().flat_map(|one| {
        let labels = move |who, reason| with(one, &[("who", who), ("reason", reason)]);
        one.resets.iter().map(move |reset| (labels(reset.who, reset.reason), reset.count as f64))
    });
    let limited = all
        .iter()
        .flat_map(|one| one.limited_seconds.iter().map(move |(by, seconds)| (with(one, &[("by", by)]), *seconds)));
    vec![
        (
            "retransmissions_total",
            "Segments that the sockets of processes sent again, by cause and by the drop on this host.",
            repeated.collect(),
        ),
        ("resets_total", "Connections of processes that were reset, by who did it and why.", resets.collect()),
        (
            "limited_seconds_total",
            "Time in which data of connections waited for a window or for room in a buffer.",
            limited.collect(),
        ),
        (
            "connection_measures_lost_total",
            "Measures of connections for which there was no memory.",
            found.connection_measures_lost.map(single).unwrap_or_default(),
        ),
    ]
}

fn durations(figures: &Figures) -> [Histograms; 6] {
    let values = |durations: fn(&ConnectionTotals) -> &Durations| {
        let all = figures.own.connections.connections.iter().map(|one| (owner(one), durations(one)));
        let all = all.filter(|(_, durations)| durations.count > 0).map(|(labels, one)| {
            let buckets = one.buckets().collect();
            (labels, Histogram { buckets, count: one.count, sum: one.sum_seconds })
        });
        all.collect()
    };
    [
        (
            "connection_handshake_seconds",
            "Time from a client's first segment to its connection.",
            values(|one| &one.handshake),
        ),
        ("connection_round_trip_seconds", "Round trips, at each acknowledgement.", values(|one| &one.round_trip)),
        ("connection_response_seconds", "Time from a client's request to the answer.", values(|one| &one.response)),
        ("connection_think_seconds", "Time from a request to the answer of the server here.", values(|one| &one.think)),
        (
            "connection_read_wait_seconds",
            "Time from the arrival of data until the process reads.",
            values(|one| &one.read_wait),
        ),
        (
            "connection_queue_seconds",
            "Time of a segment between the socket and the network device.",
            values(|one| &one.queue),
        ),
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
