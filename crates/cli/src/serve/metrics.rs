//! The figures in Prometheus' text format.

use std::fmt::Write as _;
use trawl_view::text;

use super::Figures;

/// One metric: its name, what it counts, and its values by labels.
struct Metric {
    name: &'static str,
    help: &'static str,
    values: Vec<(Vec<(&'static str, String)>, f64)>,
}

pub(super) fn text(figures: &Figures) -> String {
    let mut out = String::new();
    for metric in metrics(figures) {
        if metric.values.is_empty() {
            continue;
        }
        let kind = if metric.name.ends_with("_total") {
            "counter"
        } else {
            "gauge"
        };
        let _ = writeln!(
            out,
            "# HELP {} {}\n# TYPE {} {kind}",
            metric.name, metric.help, metric.name
        );
        for (labels, value) in metric.values {
            let labels: Vec<String> = labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
                .collect();
            let braces = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let _ = writeln!(out, "{}{braces} {value}", metric.name);
        }
    }
    out
}

fn escaped(value: &str) -> String {
    text::printable(value)
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn metrics(figures: &Figures) -> Vec<Metric> {
    let counters = &figures.counters;
    let mut all = vec![Metric {
        name: "trawl_build_info",
        help: "The version of trawl that serves these figures.",
        values: vec![(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)],
    }];
    let mut add = |name, help, values| all.push(Metric { name, help, values });
    for (name, help, of) in [
        (
            "trawl_interface_packets_total",
            "Packets that an interface received and sent.",
            [0, 4],
        ),
        (
            "trawl_interface_bytes_total",
            "Bytes that an interface received and sent.",
            [1, 5],
        ),
        (
            "trawl_interface_dropped_total",
            "Packets that an interface dropped.",
            [2, 6],
        ),
        (
            "trawl_interface_errors_total",
            "Errors of an interface.",
            [3, 7],
        ),
    ] {
        let values = counters.interfaces.iter().flat_map(|interface| {
            let counts = [
                interface.rx_packets,
                interface.rx_bytes,
                interface.rx_dropped,
                interface.rx_errors,
                interface.tx_packets,
                interface.tx_bytes,
                interface.tx_dropped,
                interface.tx_errors,
            ];
            let labels = |way: &str| {
                vec![
                    ("interface", interface.interface.clone()),
                    ("netns", interface.netns.clone()),
                    ("direction", way.to_owned()),
                ]
            };
            [
                (labels("in"), counts[of[0]] as f64),
                (labels("out"), counts[of[1]] as f64),
            ]
        });
        add(name, help, values.collect());
    }
    for (name, help, value) in [
        (
            "trawl_softnet_processed_total",
            "Packets that the stack's receive queues processed.",
            counters.softnet.processed,
        ),
        (
            "trawl_softnet_dropped_total",
            "Packets that the stack's receive queues dropped.",
            counters.softnet.dropped,
        ),
        (
            "trawl_softnet_time_squeezed_total",
            "Times that a receive queue's budget was used up.",
            counters.softnet.time_squeezed,
        ),
    ] {
        add(name, help, vec![(Vec::new(), value as f64)]);
    }
    let program_labels = |program: &crate::figures::ProgramCounters| {
        vec![
            ("interface", program.interface.clone()),
            ("netns", program.netns.clone()),
            ("hook", "xdp".to_owned()),
            ("program", program.name.clone()),
            ("id", program.id.to_string()),
        ]
    };
    let programs = &counters.xdp_programs;
    add(
        "trawl_xdp_program_runs_total",
        "Runs of an XDP program, while the kernel counts them.",
        programs
            .iter()
            .map(|p| (program_labels(p), p.runs as f64))
            .collect(),
    );
    add(
        "trawl_xdp_program_run_seconds_total",
        "Time that an XDP program ran, while the kernel counts it.",
        programs
            .iter()
            .map(|p| (program_labels(p), p.run_time_ns as f64 / 1e9))
            .collect(),
    );
    add(
        "trawl_guard_rule_packets_total",
        "Packets that a rule of the guard decided about.",
        counters
            .guard_rules
            .iter()
            .map(|rule| {
                let labels = vec![("id", rule.id.to_string()), ("rule", rule.rule.clone())];
                (labels, rule.packets as f64)
            })
            .collect(),
    );
    let router = &counters.router;
    let port = |one: &crate::figures::RouterCounters| {
        vec![
            ("interface", one.interface.clone()),
            ("outcome", one.outcome.clone()),
        ]
    };
    add(
        "trawl_router_packets_total",
        "Packets that a port of the router received, by what became of them.",
        router
            .iter()
            .map(|one| (port(one), one.packets as f64))
            .collect(),
    );
    add(
        "trawl_router_bytes_total",
        "Bytes that a port of the router received, by what became of them.",
        router
            .iter()
            .map(|one| (port(one), one.bytes as f64))
            .collect(),
    );
    running(figures, &mut add);
    if let Some(capture) = &figures.capture {
        for (name, help, value) in [
            (
                "trawl_capture_seen_total",
                "Packets that the capture saw.",
                capture.seen,
            ),
            (
                "trawl_capture_filtered_out_total",
                "Packets that did not match the capture's filter.",
                capture.filtered_out,
            ),
            (
                "trawl_capture_recorded_total",
                "Packets that the capture recorded.",
                capture.recorded,
            ),
        ] {
            add(name, help, vec![(Vec::new(), value as f64)]);
        }
        let lost = capture.lost.iter();
        let lost =
            lost.map(|(reason, count)| (vec![("reason", reason.to_string())], *count as f64));
        add(
            "trawl_capture_lost_total",
            "Packets that the capture lost, by reason.",
            lost.collect(),
        );
        let place = |one: &super::Verdict| {
            vec![
                ("interface", one.interface.clone()),
                ("netns", one.netns.clone()),
                ("hook", one.hook.clone()),
            ]
        };
        let (mut verdicts, mut drops) = (Vec::new(), Vec::new());
        for one in &capture.verdicts {
            let (values, label) = match &one.reason {
                Some(reason) => (&mut drops, ("reason", reason.clone())),
                None => (&mut verdicts, ("verdict", one.verdict.clone())),
            };
            let mut labels = place(one);
            labels.push(label);
            values.push((labels, one.packets as f64));
        }
        add(
            "trawl_capture_verdict_packets_total",
            "Packets that the capture saw, by verdict.",
            verdicts,
        );
        add(
            "trawl_capture_drop_packets_total",
            "Packets that the kernel dropped, by its reason.",
            drops,
        );
    }
    all
}

type Values = Vec<(Vec<(&'static str, String)>, f64)>;

/// What other commands on this machine tell of themselves.
fn running(figures: &Figures, add: &mut impl FnMut(&'static str, &'static str, Values)) {
    let pid = |pid: u32| ("pid", pid.to_string());
    for (name, help, of) in [
        (
            "trawl_running_capture_seen_total",
            "Packets that a running capture saw.",
            0,
        ),
        (
            "trawl_running_capture_filtered_out_total",
            "Packets that did not match a running capture's filter.",
            1,
        ),
        (
            "trawl_running_capture_recorded_total",
            "Packets that a running capture recorded.",
            2,
        ),
    ] {
        let value = |one: &crate::published::RunningCapture| {
            let count = [one.seen, one.filtered_out, one.recorded][of];
            (vec![pid(one.pid)], count as f64)
        };
        add(name, help, figures.captures.iter().map(value).collect());
    }
    let lost = figures.captures.iter().flat_map(|one| {
        let reasons = one.lost.iter();
        reasons.map(|(reason, count)| {
            (
                vec![pid(one.pid), ("reason", reason.to_string())],
                *count as f64,
            )
        })
    });
    add(
        "trawl_running_capture_lost_total",
        "Packets that a running capture lost, by reason.",
        lost.collect(),
    );
    for (name, help, of) in [
        (
            "trawl_generator_frames_total",
            "Frames that a running generator sent.",
            0,
        ),
        (
            "trawl_generator_bytes_total",
            "Bytes that a running generator sent.",
            1,
        ),
        (
            "trawl_generator_refused_total",
            "Frames of a running generator that the device refused.",
            2,
        ),
    ] {
        let value = |one: &crate::published::RunningGenerator| {
            let labels = vec![pid(one.pid), ("interface", one.interface.clone())];
            (labels, [one.frames, one.bytes, one.refused][of] as f64)
        };
        add(name, help, figures.generators.iter().map(value).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Counters, InterfaceCounters};

    #[test]
    fn labels_are_escaped_and_kinds_told() {
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
