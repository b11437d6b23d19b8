//! The figures as people read them.

use std::fmt::Write as _;

use super::rate;
use super::report::{Flow, Interface, Report};

const PLOT_WIDTH: usize = 72;

impl Report {
    /// `time` shows a number of seconds since 1970 as people want it.
    pub fn text(&self, time: impl Fn(&str) -> String) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<18}{value}");
        };
        if !self.files.is_empty() {
            line("files", self.files.join(", "));
        }
        line("packets", self.packets.to_string());
        line(
            "bytes",
            format!(
                "{} on the wire, {} captured",
                self.bytes, self.captured_bytes
            ),
        );
        if self.cut > 0 {
            line("cut", format!("{} packets", self.cut));
        }
        if self.dropped > 0 {
            line(
                "lost",
                format!("{} packets between those that are there", self.dropped),
            );
        }
        if let (Some(first), Some(last)) = (&self.first_time, &self.last_time) {
            line("first packet", time(first));
            line("last packet", time(last));
        }
        line("duration", format!("{:.6} s", self.duration_seconds));
        line(
            "rate",
            format!(
                "{:.1} packets/s, {}",
                self.packets_per_second,
                bits(self.bits_per_second)
            ),
        );
        line(
            "length",
            format!(
                "{:.1} bytes on average, {} to {}",
                self.average_length, self.smallest, self.largest
            ),
        );
        line(
            "time order",
            if self.in_time_order { "yes" } else { "no" }.to_owned(),
        );
        for kind in &self.encapsulations {
            line(
                "encapsulation",
                format!("{}: {} packets", kind.name, kind.packets),
            );
        }
        self.places(&mut out, "interfaces", &self.interfaces);
        self.places(&mut out, "verdicts", &self.verdicts);
        if !self.protocols.is_empty() {
            let _ = writeln!(out, "\nprotocols           packets            bytes");
            for protocol in &self.protocols {
                let _ = writeln!(
                    out,
                    "  {:<14}{:>11}{:>17}  {}",
                    protocol.name,
                    protocol.packets,
                    protocol.bytes,
                    share(protocol.packets, self.packets)
                );
            }
        }
        self.conversations(&mut out);
        let _ = writeln!(out, "\nlengths             packets");
        for size in &self.sizes {
            let class = match size.to {
                Some(to) => format!("{}-{to}", size.from),
                None => format!("{}-", size.from),
            };
            let shown = share(size.packets, self.packets);
            let _ = writeln!(out, "  {class:<14}{:>11}  {shown}", size.packets);
        }
        self.over_time(&mut out, &time);
        if !self.by.is_empty() {
            let _ = writeln!(
                out,
                "\n    packets            bytes  {}",
                self.by.join("  ")
            );
            for group in &self.groups {
                let values = group.values.join("  ");
                let _ = writeln!(out, "{:>11}{:>17}  {values}", group.packets, group.bytes);
            }
        }
        out
    }

    fn places(&self, out: &mut String, name: &str, places: &[Interface]) {
        if places.is_empty() {
            return;
        }
        let _ = writeln!(out, "\n{name:<20}packets");
        for place in places {
            let parts = [&place.interface, &place.hook, &place.verdict];
            let words: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
            let shown = share(place.packets, self.packets);
            let _ = writeln!(
                out,
                "  {:<14}{:>11}  {shown}",
                words.join(" "),
                place.packets
            );
        }
    }

    fn conversations(&self, out: &mut String) {
        if self.talkers.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "\ntalkers                                     sent packets         bytes    received packets         bytes"
        );
        for talker in &self.talkers {
            let _ = writeln!(
                out,
                "  {:<42}{:>12}{:>14}{:>20}{:>14}",
                talker.address,
                talker.sent_packets,
                talker.sent_bytes,
                talker.received_packets,
                talker.received_bytes
            );
        }
        let _ = writeln!(
            out,
            "\nflows: {}, TCP retransmissions: {}\n    packets         bytes  retransmissions  flow",
            self.flow_count, self.tcp_retransmissions
        );
        for flow in &self.flows {
            let _ = writeln!(
                out,
                "{:>11}{:>14}{:>17}  {}",
                flow.packets,
                flow.bytes,
                flow.retransmissions,
                flow.words()
            );
        }
    }

    fn over_time(&self, out: &mut String, time: &impl Fn(&str) -> String) {
        if self.packets == 0 {
            return;
        }
        let most = self.rate.packets.iter().copied().max().unwrap_or(0);
        let _ = writeln!(
            out,
            "\nrate over time: {} at most in {} s\n  {}",
            most,
            self.rate.slot_seconds,
            rate::plot(&self.rate.packets, PLOT_WIDTH)
        );
        let gaps: Vec<String> = self
            .gaps
            .iter()
            .filter(|gap| gap.seconds > 0.0)
            .map(|gap| format!("  {:.6} s after {}", gap.seconds, time(&gap.after)))
            .collect();
        if !gaps.is_empty() {
            let _ = writeln!(out, "\nlongest gaps\n{}", gaps.join("\n"));
        }
    }
}

impl Flow {
    /// `10.0.0.1.1234 > 10.0.0.2.80 tcp`.
    pub fn words(&self) -> String {
        let protocol = match self.protocol {
            1 => "icmp".to_owned(),
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            58 => "icmp6".to_owned(),
            132 => "sctp".to_owned(),
            other => format!("protocol {other}"),
        };
        if self.src_port == 0 && self.dst_port == 0 {
            return format!("{} > {} {protocol}", self.src, self.dst);
        }
        format!(
            "{}.{} > {}.{} {protocol}",
            self.src, self.src_port, self.dst, self.dst_port
        )
    }
}

fn share(part: u64, whole: u64) -> String {
    format!("{:5.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}

/// Bits a second with a unit.
pub fn bits(value: f64) -> String {
    let units = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")];
    let unit = units.iter().find(|(size, _)| value >= *size);
    unit.map_or_else(
        || format!("{value:.0} bit/s"),
        |(size, name)| format!("{:.3} {name}", value / size),
    )
}
