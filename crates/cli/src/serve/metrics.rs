//! The statistics in Prometheus' text format.

use std::fmt::Write as _;

use trawl_pipeline::account::PacketAccount;
use trawl_view::text;

use super::{CapturePoint, Figures};
use crate::published::{RunningCapture, RunningGenerator};
use trawl_figures::counters::{InterfaceCounters, ProgramCounters, RouterCounters};
use trawl_figures::losses::Lost;
use trawl_figures::processes::ProcessTotals;
use trawl_figures::series::{Labelled, Labels};

type Values = Vec<(Labels, f64)>;

pub(super) fn text(figures: &Figures) -> String {
    let mut out = Text::default();
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    let help = "The version of trawl that serves these figures.";
    out.add("build_info", help, vec![(version, 1.0)]);
    machine(figures, &mut out);
    running(figures, &mut out);
    own_capture(figures, &mut out);
    losses(&figures.own.lost, &mut out);
    processes(figures, &mut out);
    out.0
}

#[derive(Default)]
struct Text(String);

impl Text {
    /// Appends a metric: its help, and its values by labels; nothing without values.
    fn add(&mut self, name: &str, help: &str, values: Values) {
        if values.is_empty() {
            return;
        }
        let kind = match name.ends_with("_total") {
            true => "counter",
            false => "gauge",
        };
        let name = format!("trawl_{name}");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let braces = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let _ = writeln!(self.0, "{name}{braces} {value}");
        }
    }

    fn add_one(&mut self, name: &str, help: &str, value: u64) {
        self.add(name, help, vec![(Vec::new(), value as f64)]);
    }
}

fn escaped(value: &str) -> String {
    text::printable(value).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn machine(figures: &Figures, out: &mut Text) {
    let counters = &figures.counters;
    let of_side = |one: &InterfaceCounters, direction: &str, count: u64| {
        let labels = vec![
            ("interface", one.interface.clone()),
            ("netns", one.netns.clone()),
            ("direction", direction.to_owned()),
        ];
        (labels, count as f64)
    };
    let sides = |of: usize| {
        let all = counters.interfaces.iter().flat_map(|one| {
            let [received, sent] = one.sides();
            [of_side(one, "in", received[of]), of_side(one, "out", sent[of])]
        });
        all.collect()
    };
    let help = "Packets that an interface received and sent.";
    out.add("interface_packets_total", help, sides(0));
    let help = "Bytes that an interface received and sent.";
    out.add("interface_bytes_total", help, sides(1));
    let help = "Packets that an interface dropped.";
    out.add("interface_dropped_total", help, sides(2));
    out.add("interface_errors_total", "Errors of an interface.", sides(3));
    let softnet = &counters.softnet;
    let help = "Packets that the stack's receive queues processed.";
    out.add_one("softnet_processed_total", help, softnet.processed);
    let help = "Packets that the stack's receive queues dropped.";
    out.add_one("softnet_dropped_total", help, softnet.dropped);
    let help = "Times that a receive queue's budget was used up.";
    out.add_one("softnet_time_squeezed_total", help, softnet.time_squeezed);
    let programs = |value: fn(&ProgramCounters) -> f64| {
        let all = counters.xdp_programs.iter().map(|one| {
            let labels = vec![
                ("interface", one.interface.clone()),
                ("netns", one.netns.clone()),
                ("hook", "xdp".to_owned()),
                ("program", one.name.clone()),
                ("id", one.id.to_string()),
            ];
            (labels, value(one))
        });
        all.collect()
    };
    let help = "Runs of an XDP program, while the kernel counts them.";
    out.add("xdp_program_runs_total", help, programs(|one| one.runs as f64));
    let help = "Time that an XDP program ran, while the kernel counts it.";
    let seconds = programs(|one| one.run_time_ns as f64 / 1e9);
    out.add("xdp_program_run_seconds_total", help, seconds);
    let verdicts = counters.xdp_verdicts.iter().map(|one| {
        let labels = vec![
            ("interface", one.interface.clone()),
            ("netns", one.netns.clone()),
            ("program", one.program.clone()),
            ("id", one.id.to_string()),
            ("verdict", one.verdict.to_owned()),
        ];
        (labels, one.packets as f64)
    });
    let traced = labelled(&figures.own.verdicts.program_verdicts);
    let help = "Packets of an XDP program, by its verdict.";
    out.add("xdp_verdicts_total", help, verdicts.chain(traced).collect());
    let not_counted = figures.own.verdicts.programs_not_counted.iter().map(|one| {
        let labels = vec![
            ("interface", one.interface.clone()),
            ("netns", one.netns.clone()),
            ("program", one.program.clone()),
            ("id", one.id.to_string()),
            ("reason", one.reason.clone()),
        ];
        (labels, 1.0)
    });
    let help = "XDP programs whose verdicts cannot be counted.";
    out.add("xdp_programs_not_counted", help, not_counted.collect());
    let rules = counters.guard_rules.iter().map(|rule| {
        let labels = vec![("id", rule.id.to_string()), ("rule", rule.rule.clone())];
        (labels, rule.packets as f64)
    });
    let help = "Packets that a rule of the guard decided about.";
    out.add("guard_rule_packets_total", help, rules.collect());
    let ports = |count: fn(&RouterCounters) -> u64| {
        let all = counters.router.iter().map(|one| {
            let labels = vec![("interface", one.interface.clone()), ("outcome", one.outcome.clone())];
            (labels, count(one) as f64)
        });
        all.collect()
    };
    let help = "Packets that a port of the router received, by what became of them.";
    out.add("router_packets_total", help, ports(|one| one.packets));
    let help = "Bytes that a port of the router received, by what became of them.";
    out.add("router_bytes_total", help, ports(|one| one.bytes));
}

/// Adds the counts of other commands on this machine.
fn running(figures: &Figures, out: &mut Text) {
    let pid = |pid: u32| ("pid", pid.to_string());
    let captures = |count: fn(&RunningCapture) -> u64| {
        let all = figures.captures.iter();
        all.map(|one| (vec![pid(one.pid)], count(one) as f64)).collect()
    };
    let help = "Packets that a running capture saw.";
    out.add("running_capture_seen_total", help, captures(|one| one.seen));
    let help = "Packets that did not match a running capture's filter.";
    let filtered_out = captures(|one| one.filtered_out);
    out.add("running_capture_filtered_out_total", help, filtered_out);
    let help = "Packets that a running capture recorded.";
    let recorded = captures(|one| one.recorded);
    out.add("running_capture_recorded_total", help, recorded);
    let lost = figures.captures.iter().flat_map(|one| {
        let labels = |reason: &str| vec![pid(one.pid), ("reason", reason.to_owned())];
        let reasons = one.lost.iter();
        reasons.map(move |(reason, count)| (labels(reason), *count as f64))
    });
    let help = "Packets that a running capture lost, by reason.";
    out.add("running_capture_lost_total", help, lost.collect());
    let generators = |count: fn(&RunningGenerator) -> u64| {
        let all = figures.generators.iter().map(|one| {
            let labels = vec![pid(one.pid), ("interface", one.interface.clone())];
            (labels, count(one) as f64)
        });
        all.collect()
    };
    let help = "Frames that a running generator sent.";
    out.add("generator_frames_total", help, generators(|one| one.frames));
    let help = "Bytes that a running generator sent.";
    out.add("generator_bytes_total", help, generators(|one| one.bytes));
    let help = "Frames of a running generator that the device refused.";
    out.add("generator_refused_total", help, generators(|one| one.refused));
}

fn own_capture(figures: &Figures, out: &mut Text) {
    let Some(capture) = &figures.own.capture else {
        return;
    };
    let labels = |point: &CapturePoint| {
        vec![("interface", point.interface.clone()), ("netns", point.netns.clone()), ("hook", point.hook.clone())]
    };
    let counts = |count: fn(&PacketAccount) -> u64| {
        let points = capture.points.iter();
        points.map(|point| (labels(point), count(&point.account) as f64)).collect()
    };
    let help = "Packets that the capture saw.";
    out.add("capture_seen_total", help, counts(|one| one.seen));
    let help = "Packets that did not match the capture's filter.";
    out.add("capture_filtered_out_total", help, counts(|one| one.filtered_out));
    let help = "Packets that the capture recorded.";
    out.add("capture_recorded_total", help, counts(|one| one.recorded));
    let lost = capture.points.iter().flat_map(|point| {
        let lost = point.account.lost.iter();
        lost.map(move |(reason, count)| {
            let mut labels = labels(point);
            labels.push(("reason", reason.to_string()));
            (labels, *count as f64)
        })
    });
    let help = "Packets that the capture lost, by reason.";
    out.add("capture_lost_total", help, lost.collect());
    let verdicts = capture.verdicts.iter().map(|one| {
        let labels = vec![
            ("interface", one.interface.clone()),
            ("netns", one.netns.clone()),
            ("hook", one.hook.clone()),
            ("verdict", one.verdict.clone()),
        ];
        (labels, one.packets as f64)
    });
    let help = "Packets that the capture saw, by verdict.";
    out.add("capture_verdict_packets_total", help, verdicts.collect());
}

fn labelled(all: &[Labelled]) -> impl Iterator<Item = (Labels, f64)> {
    let value = |one: &Labelled| (one.labels.clone(), one.packets as f64);
    all.iter().map(value)
}

fn losses(lost: &Lost, out: &mut Text) {
    let values = |all: &[Labelled]| labelled(all).collect();
    let help = "Packets that the kernel dropped, by reason and place, since this command began.";
    out.add("drops_total", help, values(&lost.drops));
    let help = "Drops that could not be counted, because they happened within another one.";
    out.add_one("drops_missed_total", help, lost.drops_missed);
    let help = "Counters of lost packets of the kernel and of drivers, since this command began.";
    out.add("kernel_losses_total", help, values(&lost.kernel_counters));
    let help = "Packets that XDP lost without a socket buffer, since this command began.";
    out.add("xdp_losses_total", help, values(&lost.xdp_losses));
}

fn processes(figures: &Figures, out: &mut Text) {
    let values = |counts: fn(&ProcessTotals) -> [u64; 2]| {
        let all = figures.own.processes.iter().flat_map(|one| {
            let of_direction = |(direction, count): (&str, u64)| {
                let labels = vec![
                    ("process", one.process.clone()),
                    ("container", one.container.clone()),
                    ("direction", direction.to_owned()),
                ];
                (labels, count as f64)
            };
            ["in", "out"].into_iter().zip(counts(one)).map(of_direction)
        });
        all.collect()
    };
    let help = "Packets that the sockets of processes received and sent.";
    let packets = values(|one| [one.rx_packets, one.tx_packets]);
    out.add("process_packets_total", help, packets);
    let help = "Bytes that the sockets of processes received and sent, from the IP header on.";
    let bytes = values(|one| [one.rx_bytes, one.tx_bytes]);
    out.add("process_bytes_total", help, bytes);
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
