//! The report as text for people.

use std::fmt::Write as _;

use super::file::InterfaceReport;
use super::rate;
use super::report::{Counted, Figures, Flow, Group, Interface, Report, Size, Talker};
use super::{FileReport, MOST};
use crate::columns;
use crate::table::{self, Column};
use crate::text::count;

const PLOT_WIDTH: usize = 72;
/// Width of the names of values, and of the lines of longer values.
const NAME_WIDTH: usize = 18;
const LINE_WIDTH: usize = 100;

impl Report {
    /// Formats the report; `time` formats a number of seconds since 1970.
    pub fn text(&self, time: impl Fn(&str) -> String) -> String {
        let mut out = String::new();
        self.groups(&mut out);
        for file in &self.files {
            // The statistics of the only file are the statistics of all.
            let in_all = self.files.len() == 1 && file.packets == self.packets;
            file.write(&mut out, in_all, &time);
        }
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<18}{value}");
        };
        line("packets", self.packets.to_string());
        line("bytes", format!("{} on the wire, {} captured", self.bytes, self.captured_bytes));
        if self.cut > 0 {
            line("cut", format!("{} packets", self.cut));
        }
        if self.dropped > 0 {
            line("lost", format!("{} packets, by the file's own counts", self.dropped));
        }
        let lengths = format!(", {} to {}", self.smallest, self.largest);
        self.figures.write(&mut line, &lengths, &time);
        if self.files.len() != 1 {
            for kind in &self.encapsulations {
                let packets = format!("{}: {} packets", kind.name, kind.packets);
                line("encapsulation", packets);
            }
        }
        self.rows(&mut out, "interfaces", &self.interfaces);
        self.rows(&mut out, "verdicts", &self.verdicts);
        if !self.protocols.is_empty() {
            let columns = columns![row: Counted; "protocols" -16 format!("  {}", row.name), "packets" 10 row.packets,
                "bytes" 16 row.bytes, "" -1 share(row.packets, self.packets)];
            let _ = write!(out, "\n{}", table::text(&columns, self.protocols.iter()));
        }
        self.conversations(&mut out);
        let class = |size: &Size| format!("  {}-{}", size.from, size.to.map_or(String::new(), |to| to.to_string()));
        let columns = columns![row: Size; "lengths" -16 class(row), "packets" 10 row.packets,
            "" -1 share(row.packets, self.packets)];
        let _ = write!(out, "\n{}", table::text(&columns, self.sizes.iter()));
        self.over_time(&mut out, &time);
        out
    }

    fn rows(&self, out: &mut String, name: &str, rows: &[Interface]) {
        if rows.is_empty() {
            return;
        }
        let label = |row: &Interface| {
            let parts = [&row.interface, &row.hook, &row.verdict, &row.reason];
            let texts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
            format!("  {}", texts.join(" "))
        };
        let columns = [
            Column(name, -16, &label),
            Column("packets", 10, &|row| row.packets.to_string()),
            Column("", -1, &|row| share(row.packets, self.packets)),
        ];
        let _ = write!(out, "\n{}", table::text(&columns, rows.iter()));
    }

    /// Writes the groups of `--by`, which come first.
    fn groups(&self, out: &mut String) {
        if self.by.is_empty() {
            return;
        }
        let values: Vec<_> = (0..self.by.len()).map(|at| move |group: &Group| group.values[at].clone()).collect();
        let mut columns = columns![row: Group; "packets" 11 row.packets, "bytes" 16 row.bytes].to_vec();
        columns.extend(self.by.iter().zip(&values).map(|(name, value)| Column(name, -1, value)));
        out.push_str(&table::text(&columns, self.groups.iter()));
        let count = self.group_count.unwrap_or(0);
        if count > self.groups.len() {
            let shown = self.groups.len();
            let _ = writeln!(out, "  the first {shown} of {count} groups");
        }
        others(out, "groups", self.other_groups.unwrap_or(0));
        out.push('\n');
    }

    fn conversations(&self, out: &mut String) {
        if self.talkers.is_empty() {
            return;
        }
        let columns = columns![row: Talker; "sent" 11 row.sent_packets, "bytes" 13 row.sent_bytes,
            "received" 10 row.received_packets, "bytes" 13 row.received_bytes, "talker" -1 row.address];
        let talkers = table::text(&columns, self.talkers.iter());
        let columns = columns![row: Flow; "packets" 11 row.packets, "bytes" 13 row.bytes,
            "retransmissions" 16 row.retransmissions, "flow" -1 row.label()];
        let _ = write!(
            out,
            "\n{talkers}\nflows: {}, TCP retransmissions: {}, out of order: {}, after missing segments: {}\n{}",
            self.flow_count,
            self.tcp_retransmissions,
            self.tcp_out_of_order,
            self.tcp_missing,
            table::text(&columns, self.flows.iter())
        );
        others(out, "flows", self.other_flows);
        others(out, "talkers", self.other_talkers);
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

impl Figures {
    /// Writes the lines of times and rates; `lengths` follows the average.
    fn write(&self, line: &mut impl FnMut(&str, String), lengths: &str, time: &impl Fn(&str) -> String) {
        if let (Some(first), Some(last)) = (&self.first_time, &self.last_time) {
            line("first packet", time(first));
            line("last packet", time(last));
        }
        line("duration", format!("{:.6} s", self.duration_seconds));
        let rate = format!(
            "{:.1} packets/s, {:.0} bytes/s, {}",
            self.packets_per_second,
            self.bytes_per_second,
            bits(self.bits_per_second)
        );
        line("rate", rate);
        let average = format!("{:.1} bytes on average{lengths}", self.average_length);
        line("length", average);
        let order = if self.in_time_order { "yes" } else { "no" };
        line("time order", order.to_owned());
    }
}

impl Flow {
    /// Returns `10.0.0.1.1234 > 10.0.0.2.80 tcp`.
    pub fn label(&self) -> String {
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
        format!("{}.{} > {}.{} {protocol}", self.src, self.src_port, self.dst, self.dst_port)
    }
}

/// Writes the number of packets beyond the limit of separate counts.
fn others(out: &mut String, what: &str, packets: u64) {
    if packets > 0 {
        let _ = writeln!(
            out,
            "  {packets} packets of further {what}, which are counted as one: only the first {MOST} are listed"
        );
    }
}

impl FileReport {
    fn write(&self, out: &mut String, in_all: bool, time: &impl Fn(&str) -> String) {
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<18}{value}");
        };
        line("file", self.facts.name.clone());
        let compressed = self.facts.compression.map(|how| format!(", compressed by {how}"));
        line("type", self.facts.format.to_owned() + &compressed.unwrap_or_default());
        for kind in &self.encapsulations {
            let packets = format!("{}: {} packets", kind.name, kind.packets);
            line("encapsulation", packets);
        }
        let limit = self.snaplen.map_or("not set".to_owned(), |limit| format!("{limit} bytes"));
        let inferred = match (self.inferred_limit_min, self.inferred_limit_max) {
            (Some(least), Some(most)) if least == most => format!(", inferred: {least} bytes"),
            (Some(least), Some(most)) => format!(", inferred: {least} to {most} bytes"),
            _ => String::new(),
        };
        line("size limit", limit + &inferred);
        if let Some(size) = self.facts.size_bytes {
            line("file size", format!("{size} bytes"));
        }
        line("data size", format!("{} bytes", self.data_bytes));
        if !in_all {
            line("packets", self.packets.to_string());
            self.figures.write(&mut line, "", time);
        }
        if let Some(hash) = &self.facts.sha256 {
            line("SHA256", hash.clone());
        }
        for section in &self.sections {
            let facts = [
                ("hardware", &section.hardware),
                ("capture system", &section.os),
                ("application", &section.application),
            ];
            for (name, value) in facts {
                if let Some(value) = value {
                    line(name, value.escape_debug().to_string());
                }
            }
            for comment in &section.comments {
                line("comment", comment.escape_debug().to_string());
            }
        }
        if self.resolved_ipv4 + self.resolved_ipv6 > 0 {
            line("resolved names", format!("{} IPv4, {} IPv6", self.resolved_ipv4, self.resolved_ipv6));
        }
        if self.decryption_secrets > 0 {
            line("secrets", self.decryption_secrets.to_string());
        }
        for (index, interface) in self.interfaces.iter().enumerate() {
            line(&format!("interface {index}"), continued(&interface.details()));
        }
        if let Some(error) = &self.facts.error {
            line("read until", error.clone());
        }
        let _ = writeln!(out);
    }
}

impl InterfaceReport {
    fn details(&self) -> String {
        let text = |name: &str, value: &Option<String>| {
            let value = value.as_deref()?;
            Some(format!("{name}{}", value.escape_debug()))
        };
        let number = |value: Option<u64>, name: &str| Some(format!("{} {name}", value?));
        let mut parts = vec![
            text("", &self.name),
            text("", &self.description),
            Some(self.encapsulation.clone()),
            number(self.snaplen.map(u64::from), "bytes a packet at most"),
            self.bits_per_second.map(|speed| bits(speed as f64)),
            text("MAC ", &self.mac),
            text("", &self.hardware),
            text("", &self.os),
            text("filter ", &self.filter),
            number(self.ticks_per_second, "ticks a second"),
            Some(format!("{} packets, {} received, {} sent", self.packets, self.received, self.sent)),
            Some(count(self.statistics_blocks, "block") + " of statistics"),
            number(self.dropped, "dropped"),
        ];
        let comments = self.comments.iter().cloned().map(Some);
        parts.extend(comments.map(|comment| text("comment ", &comment)));
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// Breaks a long value into lines, below the beginning of its first.
fn continued(value: &str) -> String {
    let mut lines = String::new();
    let mut at = NAME_WIDTH;
    for word in value.split(' ') {
        let width = word.chars().count();
        if at > NAME_WIDTH && at + 1 + width > LINE_WIDTH {
            let _ = write!(lines, "\n{:NAME_WIDTH$}", "");
            at = NAME_WIDTH;
        } else if at > NAME_WIDTH {
            lines.push(' ');
            at += 1;
        }
        lines.push_str(word);
        at += width;
    }
    lines
}

fn share(part: u64, whole: u64) -> String {
    format!("{:5.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}

/// Formats a rate without decimals.
pub fn whole(value: f64) -> String {
    format!("{value:.0}")
}

/// Formats bits a second with a unit.
pub fn bits(value: f64) -> String {
    let units = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")];
    let unit = units.iter().find(|(size, _)| value >= *size);
    unit.map_or_else(|| format!("{value:.0} bit/s"), |(size, name)| format!("{:.3} {name}", value / size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::report::Group;

    #[test]
    fn long_values_continue_below_their_beginning() {
        let value = "trawl-lab-b:veth0; ".repeat(20);
        let text = continued(value.trim_end());
        assert!(text.lines().all(|line| line.chars().count() <= LINE_WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 20);
        let later = text.lines().nth(1).expect("a second line");
        assert!(later.starts_with(&format!("{:NAME_WIDTH$}trawl", "")), "{text}");
        assert_eq!(continued("short"), "short");
    }

    #[test]
    fn columns_of_tables_are_as_wide_as_their_longest_cell() {
        let group = |values: [&str; 2]| Group { values: values.map(str::to_owned).to_vec(), packets: 1, bytes: 60 };
        let row = |interface: &str| Interface {
            interface: Some(interface.to_owned()),
            hook: None,
            verdict: None,
            reason: None,
            packets: 1,
            bytes: 60,
        };
        let report = Report {
            by: ["verdict", "interface"].map(str::to_owned).to_vec(),
            groups: vec![group(["UNSPEC", "a"]), group(["REDIRECT to cpu 1", "b"])],
            interfaces: vec![row("a"), row("trawl-lab-b:veth0 tc ingress")],
            ..Report::default()
        };
        let text = report.text(str::to_owned);
        let ends = |part: &str, word: &str| {
            let lines = text.lines().skip_while(|line| !line.contains(part)).take(3);
            let ends = lines.filter_map(|line| Some(line.find(word)? + word.len()));
            ends.collect::<Vec<_>>()
        };
        let [first, second] = ends("interfaces  ", " 1  ")[..] else {
            panic!("{text}");
        };
        assert_eq!(first, second, "{text}");
        let starts: Vec<_> = ["interface\n", "a\n", "b\n"]
            .map(|cell| {
                let at = text.find(&format!("  {cell}")).expect(cell);
                at - text[..at].rfind('\n').map_or(0, |line| line + 1)
            })
            .to_vec();
        assert!(starts.iter().all(|start| *start == starts[0]), "{starts:?}\n{text}");
    }
}
