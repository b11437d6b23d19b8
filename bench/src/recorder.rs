//! The recorders: trawl at each of its taps, and the peers, with the configurations to try and the values of a capture.

use std::path::PathBuf;

use trawl_sys::Result;

use crate::configuration::{Configuration, DEFAULTS, IN_STACK, ONLY_DEFAULTS, with_gro, without_gro};
use crate::outcome::{Measured, percent};
use crate::series::named;
use crate::traffic::{RATE_REACHED, Traffic};

/// Recorder, and the fate of the packets that it records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorder {
    /// At the hook map of an XDP program that drops, or passes, all packets.
    TrawlHook(Fate),
    /// trawl's own XDP program, which passes them to the stack.
    TrawlXdp,
    /// At the exit of an XDP program that was attached before, by tracing it.
    TrawlTraced,
    TrawlTc,
    TrawlPacket,
    /// The harness's own receivers: a system call for each packet, and AF_XDP.
    Recv,
    Xsk,
    Xdpcap(Fate),
    Tcpdump,
    Dumpcap,
    Tshark,
    NetsniffNg,
    Xdpdump,
    /// The libpcap builds of netmap and PF_RING: through tcpdump, if the host has their modules.
    Netmap,
    PfRing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Drop,
    Pass,
}

pub const RECORDERS: &[(&str, Recorder)] = &[
    ("trawl hook, drop", Recorder::TrawlHook(Fate::Drop)),
    ("trawl hook, pass", Recorder::TrawlHook(Fate::Pass)),
    ("trawl xdp", Recorder::TrawlXdp),
    ("trawl xdp, traced drop", Recorder::TrawlTraced),
    ("trawl tc", Recorder::TrawlTc),
    ("trawl packet", Recorder::TrawlPacket),
    ("AF_PACKET recv", Recorder::Recv),
    ("AF_XDP", Recorder::Xsk),
    ("xdpcap, drop", Recorder::Xdpcap(Fate::Drop)),
    ("xdpcap, pass", Recorder::Xdpcap(Fate::Pass)),
    ("tcpdump", Recorder::Tcpdump),
    ("dumpcap", Recorder::Dumpcap),
    ("tshark", Recorder::Tshark),
    ("netsniff-ng", Recorder::NetsniffNg),
    ("xdpdump", Recorder::Xdpdump),
    ("netmap", Recorder::Netmap),
    ("pf_ring", Recorder::PfRing),
];

/// Configuration of a recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best one on this machine.
    #[default]
    Best,
    /// The defaults, with which the studies measured.
    Published,
    Given(Configuration),
}

/// Settings of a capture.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    pub filter: Option<String>,
    pub configuration: Choice,
    /// Options of the recorder in addition to its configuration's.
    pub options: Vec<String>,
    /// One sent frame in this many passes the filter.
    pub one_in: Option<u64>,
    /// Store that replaces trawl's file.
    pub store: Option<StoreAt>,
    /// MTU of the lab's interfaces, if not the usual one.
    pub mtu: Option<u32>,
}

/// A store, and the settings of a capture into it.
#[derive(Clone, Debug)]
pub struct StoreAt {
    pub url: String,
    pub spool: PathBuf,
    pub environment: Vec<(String, String)>,
}

impl Recorder {
    pub fn find(series: &str) -> Result<Self> {
        named(series, RECORDERS)
    }

    pub fn name(self) -> &'static str {
        let found = RECORDERS.iter().find(|(_, recorder)| *recorder == self);
        found.map_or("a capture", |(name, _)| name)
    }

    /// Returns trawl's tap; `None` for the other tools.
    pub fn tap(self) -> Option<&'static str> {
        match self {
            Self::TrawlHook(_) => Some("hook"),
            Self::TrawlXdp | Self::TrawlTraced => Some("xdp"),
            Self::TrawlTc => Some("tc"),
            Self::TrawlPacket => Some("packet"),
            _ => None,
        }
    }

    /// Returns true if the recorder needs time after the last packet, because packets may still be in the kernel. trawl
    /// writes blocks as they come.
    pub fn needs_rest(self) -> bool {
        self.tap().is_none() && !matches!(self, Self::Recv | Self::Xsk)
    }

    /// Returns the configurations to try, the defaults first.
    pub fn grid(self) -> Vec<Configuration> {
        match self {
            Self::TrawlHook(_) | Self::TrawlXdp | Self::TrawlTraced => {
                vec![DEFAULTS, with_gro(&["--ring-size", "256MiB"])]
            }
            Self::TrawlTc | Self::TrawlPacket => {
                vec![DEFAULTS, without_gro(&[]), without_gro(&["--ring-size", "256MiB"])]
            }
            Self::Recv => IN_STACK.to_vec(),
            Self::Xsk => ONLY_DEFAULTS.to_vec(),
            Self::Tcpdump | Self::Netmap | Self::PfRing => vec![
                DEFAULTS,
                with_gro(&["-B", "65536"]),
                without_gro(&["-B", "16384"]),
                without_gro(&["-B", "131072"]),
                without_gro(&["-B", "131072", "-s", "128"]),
            ],
            Self::Dumpcap | Self::Tshark => vec![
                DEFAULTS,
                without_gro(&["-B", "16"]),
                without_gro(&["-B", "128"]),
                without_gro(&["-B", "128", "-s", "128"]),
            ],
            Self::NetsniffNg => {
                vec![DEFAULTS, without_gro(&["--ring-size", "64MiB"]), without_gro(&["--ring-size", "256MiB"])]
            }
            Self::Xdpcap(_) => vec![
                DEFAULTS,
                with_gro(&["-buffer", "1048576", "-watermark", "65536"]),
                with_gro(&["-buffer", "4194304", "-watermark", "262144"]),
                with_gro(&["-buffer", "8388608", "-watermark", "2097152"]),
            ],
            Self::Xdpdump => {
                vec![DEFAULTS, with_gro(&["--perf-wakeup", "512"]), with_gro(&["--perf-wakeup", "512", "-s", "128"])]
            }
        }
    }
}

impl Measured {
    /// Adds the values of a capture of this traffic.
    pub fn recorded(mut self, recorded: u64, setting: &Setting, traffic: &Traffic) -> Self {
        let sent = self.sent.unwrap_or(0);
        let expected = setting.one_in.map_or(sent, |every| sent / every);
        let seconds = self.seconds.max(f64::EPSILON);
        // The receiving path may slow the sender down.
        let reached = traffic.rate.map_or(1.0, |rate| sent as f64 / seconds / rate);
        let reached = if reached > RATE_REACHED { 1.0 } else { reached };
        let share = percent(recorded as f64, expected.max(1) as f64);
        self.values = [
            ("recorded_percent", share.min(100.0)),
            ("offered_percent", reached * 100.0),
            ("recorded_mpps", recorded as f64 / seconds / 1e6),
        ]
        .into();
        self.expected = Some(expected);
        self.recorded = Some(recorded);
        self
    }
}
