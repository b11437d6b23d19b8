//! What `trawl why` tells: rows in words and as JSON, and an account that adds up.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use trawl_kernel::counters::Counters;
use trawl_tap::account::Account;
use trawl_view::why::{Place, Row, Tally};

use super::advice;

/// The flows that a row names.
const FLOWS: usize = 3;
/// Counters of packets that came to an end, and the reasons and the protocol by which the tap at drops sees the same.
const COUNTERS: [(&str, &[&str], Option<&str>, &str); 22] = [
    ("UdpNoPorts", &["NO_SOCKET"], Some("udp"), "no socket"),
    ("Udp6NoPorts", &["NO_SOCKET"], Some("udp6"), "no socket"),
    (
        "UdpRcvbufErrors",
        &["SOCKET_RCVBUFF", "PROTO_MEM"],
        Some("udp"),
        "receive buffer full",
    ),
    (
        "Udp6RcvbufErrors",
        &["SOCKET_RCVBUFF", "PROTO_MEM"],
        Some("udp6"),
        "receive buffer full",
    ),
    (
        "UdpInCsumErrors",
        &["UDP_CSUM"],
        Some("udp"),
        "wrong checksum",
    ),
    (
        "Udp6InCsumErrors",
        &["UDP_CSUM"],
        Some("udp6"),
        "wrong checksum",
    ),
    ("TcpInCsumErrors", &["TCP_CSUM"], None, "wrong checksum"),
    (
        "IpInHdrErrors",
        &["IP_INHDR", "IP_CSUM", "PKT_TOO_SMALL"],
        None,
        "wrong IP header",
    ),
    (
        "IpInAddrErrors",
        &["IP_INADDRERRORS", "IP_INVALID_DEST", "IP_INVALID_SOURCE"],
        None,
        "wrong address",
    ),
    (
        "IpInUnknownProtos",
        &["IP_NOPROTO"],
        None,
        "unknown protocol",
    ),
    ("IpOutNoRoutes", &["IP_OUTNOROUTES"], None, "no route"),
    (
        "IpFragFails",
        &["PKT_TOO_BIG"],
        None,
        "too big, and not to be cut up",
    ),
    (
        "IpReasmFails",
        &["FRAG_REASM_TIMEOUT", "DUP_FRAG", "FRAG_TOO_FAR"],
        None,
        "fragments missing",
    ),
    ("IpExtInNoRoutes", &["IP_INNOROUTES"], None, "no route"),
    ("Ip6InNoRoutes", &["IP_INNOROUTES"], None, "no route"),
    (
        "TcpExtListenDrops",
        &["TCP_LISTEN_OVERFLOW"],
        None,
        "accept queue full",
    ),
    (
        "TcpExtTCPBacklogDrop",
        &["SOCKET_BACKLOG"],
        None,
        "socket backlog full",
    ),
    (
        "TcpExtTCPRcvQDrop",
        &["PROTO_MEM"],
        Some("tcp"),
        "no memory for TCP",
    ),
    ("TcpExtTCPReqQFullDrop", &[], None, "queue of SYNs full"),
    (
        "TcpExtIPReversePathFilter",
        &["IP_RPFILTER"],
        None,
        "reverse path filter",
    ),
    (
        "SoftnetDropped",
        &["CPU_BACKLOG"],
        None,
        "queue of the CPU full",
    ),
    ("SoftnetFlowLimit", &[], None, "limit for one flow"),
];

#[derive(Debug, Serialize)]
pub struct Report {
    rows: Vec<ReportRow>,
    counters: Vec<Counter>,
    /// Packets that nobody wanted any more, by reason.
    no_losses: BTreeMap<String, u64>,
    account: Sums,
}

#[derive(Debug, Serialize)]
struct ReportRow {
    packets: u64,
    #[serde(flatten)]
    place: Place,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
    /// The size of the receive buffer that was full, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    receive_buffer: Option<u32>,
    flows: Vec<Flow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Debug, Serialize)]
struct Process {
    name: String,
    pid: u32,
}

#[derive(Debug, Serialize)]
struct Flow {
    flow: String,
    packets: u64,
}

/// A counter that went up.
#[derive(Debug, Serialize)]
struct Counter {
    name: String,
    difference: u64,
    /// As many of these are in the rows.
    in_rows: u64,
    /// What no row has: the kernel counted it without freeing a packet as dropped.
    counter_only: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    what: &'static str,
}

#[derive(Debug, Serialize)]
struct Sums {
    seen: u64,
    filtered_out: u64,
    recorded: u64,
    lost: u64,
}

impl Report {
    pub fn new(tally: &Tally, differences: &Counters, account: &Account, _all: bool) -> Self {
        let no_losses: u64 = tally.no_losses.values().sum();
        Self {
            rows: tally
                .sorted()
                .into_iter()
                .map(|(place, row)| ReportRow::new(place, row))
                .collect(),
            counters: counters(tally, differences),
            no_losses: tally.no_losses.clone(),
            account: Sums {
                seen: account.seen,
                filtered_out: account.filtered_out + no_losses,
                recorded: account.recorded.saturating_sub(no_losses),
                lost: account.lost_total(),
            },
        }
    }

    pub fn account(&self) -> String {
        let Sums {
            seen,
            filtered_out,
            recorded,
            lost,
        } = self.account;
        format!("{seen} seen, {filtered_out} filtered out, {recorded} recorded, {lost} lost")
    }
}

impl ReportRow {
    fn new(place: &Place, row: &Row) -> Self {
        let flow = |(flow, packets): (&str, u64)| Flow {
            flow: flow.to_owned(),
            packets,
        };
        Self {
            packets: row.packets,
            place: place.clone(),
            receive_buffer: row.receive_buffer,
            process: row.process.clone().map(|(name, pid)| Process { name, pid }),
            flows: row.most_concerned(FLOWS).into_iter().map(flow).collect(),
            advice: advice::of(place, row.destination.as_deref()),
        }
    }
}

fn counters(tally: &Tally, differences: &Counters) -> Vec<Counter> {
    let known = COUNTERS
        .iter()
        .filter_map(|(name, reasons, protocol, what)| {
            let difference = *differences.get(*name)?;
            let in_rows = tally.of_reasons(reasons, *protocol).min(difference);
            Some(Counter {
                name: (*name).to_owned(),
                difference,
                in_rows,
                counter_only: difference - in_rows,
                what,
            })
        });
    let devices = differences.iter().filter(|(name, _)| name.contains(' '));
    let devices = devices.map(|(name, difference)| {
        let device = name.split(' ').next();
        // What an XDP program drops of socket buffers is in the rows as well.
        let in_rows = match name.contains("xdp_drops") {
            true => tally
                .rows
                .iter()
                .filter(|(place, _)| {
                    place.reason == trawl_view::why::REASON_XDP
                        && place.interface.as_deref() == device
                })
                .map(|(_, row)| row.packets)
                .sum(),
            false => 0,
        };
        let in_rows = in_rows.min(*difference);
        Counter {
            name: name.clone(),
            difference: *difference,
            in_rows,
            counter_only: difference - in_rows,
            what: "",
        }
    });
    known.chain(devices).collect()
}

/// The rows alone, for a look while it goes on.
pub fn rows(tally: &Tally) -> String {
    tally
        .sorted()
        .into_iter()
        .map(|(place, row)| line(row.packets, place, row))
        .collect()
}

fn line(packets: u64, place: &Place, row: &Row) -> String {
    let flows: Vec<String> = row
        .most_concerned(FLOWS)
        .into_iter()
        .map(|(flow, packets)| format!("{flow} ({packets})"))
        .collect();
    let process = row.process.clone();
    words(
        packets,
        place,
        process.as_ref().map(|(name, pid)| (name.as_str(), *pid)),
        row.receive_buffer,
        &flows,
    )
}

fn words(
    packets: u64,
    place: &Place,
    process: Option<(&str, u32)>,
    receive_buffer: Option<u32>,
    flows: &[String],
) -> String {
    let mut at: Vec<String> = Vec::new();
    at.push(
        place
            .hook
            .map_or_else(|| place.function.clone(), str::to_owned),
    );
    at.extend(place.interface.clone());
    at.extend(place.netns.as_ref().map(|netns| format!("({netns})")));
    let mut who: Vec<String> = Vec::new();
    who.extend(place.socket.clone());
    who.extend(process.map(|(name, pid)| format!("{name}[{pid}]")));
    who.extend(receive_buffer.map(|bytes| match bytes % 1024 {
        0 => format!("receive buffer of {} KiB full", bytes / 1024),
        _ => format!("receive buffer of {bytes} bytes full"),
    }));
    if who.is_empty() {
        who.push(flows.join(", "));
    }
    format!(
        "{packets:>8}  {:<18} {:<34} {}\n",
        place.reason,
        at.join(" "),
        who.join(" ")
    )
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let flows: Vec<String> = row
                .flows
                .iter()
                .map(|flow| format!("{} ({})", flow.flow, flow.packets))
                .collect();
            let process = row
                .process
                .as_ref()
                .map(|process| (process.name.as_str(), process.pid));
            f.write_str(&words(
                row.packets,
                &row.place,
                process,
                row.receive_buffer,
                &flows,
            ))?;
            if let Some(advice) = &row.advice {
                writeln!(f, "{:>10}{advice}", "")?;
            }
        }
        for counter in self
            .counters
            .iter()
            .filter(|counter| counter.counter_only > 0)
        {
            writeln!(
                f,
                "{:>8}  {:<18} {:<34} {}",
                counter.counter_only, "counter only", counter.name, counter.what
            )?;
        }
        let total: u64 = self.no_losses.values().sum();
        if total > 0 {
            let mut reasons: Vec<_> = self.no_losses.iter().collect();
            reasons.sort_by(|a, b| b.1.cmp(a.1));
            let reasons: Vec<String> = reasons
                .into_iter()
                .map(|(reason, packets)| format!("{reason} {packets}"))
                .collect();
            writeln!(
                f,
                "not losses: {total} ({}), --all shows them",
                reasons.join(", ")
            )?;
        }
        if self.rows.is_empty()
            && self
                .counters
                .iter()
                .all(|counter| counter.counter_only == 0)
        {
            writeln!(f, "no packet was dropped")?;
        }
        Ok(())
    }
}
