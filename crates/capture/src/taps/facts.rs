//! Properties of taps, and the refusal of options that a tap does not support.

use serde::Serialize;
use trawl_bpf::probe::{KernelFeature, ProbeAnswer};
use trawl_plan::TapChoice;
use trawl_plan::options::{At, CaptureOptions, Direction, Stamps, TimeSource};
use trawl_sys::{Error, Result};

/// Data that a tap provides about a packet, and its effect on the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gives {
    pub received: bool,
    pub sent: bool,
    /// Packets before an XDP program has run (`--at entry`), as well as after.
    pub entry: bool,
    /// Verdict of the XDP program (`--verdict`).
    pub verdict: bool,
    /// A choice among the XDP programs of an interface (`--program`).
    pub programs: bool,
    /// Receive queue of the packet (`--queue`).
    pub queue: bool,
    pub hardware_time: bool,
    /// Reason for which the kernel dropped the packet.
    pub drop_reason: bool,
    /// Process of the packet (`--process`).
    pub process: bool,
    /// The packet does not reach its destination.
    pub steals_packets: bool,
}

impl Gives {
    pub const NOTHING: Self = Self {
        received: false,
        sent: false,
        entry: false,
        verdict: false,
        programs: false,
        queue: false,
        hardware_time: false,
        drop_reason: false,
        process: false,
        steals_packets: false,
    };

    /// Returns each property with its name in JSON.
    pub fn named(&self) -> [(&'static str, bool); 10] {
        [
            ("received", self.received),
            ("sent", self.sent),
            ("entry", self.entry),
            ("verdict", self.verdict),
            ("programs", self.programs),
            ("queue", self.queue),
            ("hardware_time", self.hardware_time),
            ("drop_reason", self.drop_reason),
            ("process", self.process),
            ("takes_packets_away", self.steals_packets),
        ]
    }
}

/// Origin of a tap's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadsBy {
    /// A BPF program writes them.
    Program,
    /// Threads read the packets from sockets of their own.
    Thread,
}

/// Properties of a tap: the packets that it sees, the data that it provides, and its requirements.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Facts {
    /// Value of `--tap`.
    #[serde(rename = "name")]
    pub choice: TapChoice,
    /// Variant of the `xdp` tap, which has two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<&'static str>,
    pub sees: &'static str,
    pub gives: Gives,
    pub needs: &'static str,
    /// Required kernel features.
    #[serde(skip)]
    pub features: &'static [KernelFeature],
    #[serde(skip)]
    pub reads_by: ReadsBy,
    /// True if the tap can read the clock once for the packets of a poll (`--time poll`).
    #[serde(skip)]
    pub stamps_by_polls: bool,
    /// Reasons for which a tap does not provide the receive queue and the hardware time.
    #[serde(skip)]
    pub no_queue: &'static str,
    #[serde(skip)]
    pub no_hardware_time: &'static str,
    /// Finds an unmet requirement besides the kernel.
    #[serde(skip)]
    pub lacks: fn() -> Option<Missing>,
}

/// The properties that most taps share.
pub const MOST: Facts = Facts {
    choice: TapChoice::Auto,
    variant: None,
    sees: "",
    gives: Gives::NOTHING,
    needs: "",
    features: &[],
    reads_by: ReadsBy::Program,
    stamps_by_polls: false,
    no_queue: "",
    no_hardware_time: "its programs are bound to no device",
    lacks: || None,
};

/// A requirement of a tap that this machine does not meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub feature: &'static str,
    /// True if the kernel has the feature but does not permit its use.
    pub refused: bool,
    pub why: String,
}

impl Facts {
    /// Returns the value of `--tap`.
    pub fn name(&self) -> &'static str {
        self.choice.name()
    }

    /// Returns the unmet requirements. An empty list: the tap works on this machine.
    pub fn missing(&self) -> Vec<Missing> {
        let lack = |feature: &KernelFeature| {
            let answer = feature.probe();
            answer.why().map(|why| Missing {
                feature: feature.name(),
                refused: matches!(answer, ProbeAnswer::Refused { .. }),
                why: why.to_owned(),
            })
        };
        self.features.iter().filter_map(lack).chain((self.lacks)()).collect()
    }

    /// Refuses options that the tap does not support.
    pub(crate) fn check(&self, options: &CaptureOptions) -> Result<()> {
        let Self { gives, stamps_by_polls, no_hardware_time, .. } = self;
        let name = self.name();
        let without = |what: &str| format!("cannot {what} with the {name} tap");
        if options.direction == Some(Direction::Out) && !gives.sent {
            let why = "an XDP hook sees received packets only";
            return refuse(without("see sent packets"), why, "use --tap tc or --tap packet");
        }
        if options.at.is_some_and(At::entry) && !gives.entry {
            let what = without("record at entry");
            return refuse(what, "it sees a packet once", "leave out --at");
        }
        if options.filter_at == Some(At::Entry) && !gives.entry {
            let what = without("filter packets as they arrived at an XDP program");
            return refuse(what, "it sees a packet once", "leave out --filter-at");
        }
        if options.verdicts.is_some() && !gives.verdict {
            return refuse(
                without("choose packets by verdict"),
                "it does not see verdicts",
                "leave out --verdict, or use --tap xdp or --tap tailcall",
            );
        }
        if options.programs.is_some() && !gives.programs {
            return refuse(
                without("choose an XDP program"),
                "only the xdp tap can, and only at an attached program",
                "leave out --program, or use --tap xdp",
            );
        }
        if options.time == TimeSource::Hardware && !gives.hardware_time {
            return refuse(without("read hardware time stamps"), no_hardware_time, "leave out --time hw");
        }
        if options.recording.stamps == Stamps::Poll && !stamps_by_polls {
            return refuse(
                without("read the clock once a poll"),
                "its packets are stamped one by one",
                "leave out --time poll, or use --tap xdp, tailcall or tc",
            );
        }
        if options.process.is_some() && !gives.process {
            return refuse(
                without("name processes"),
                "it does not see the packets' sockets",
                "leave out --process, or use --tap tc",
            );
        }
        self.check_queue(options)
    }

    pub(crate) fn check_queue(&self, options: &CaptureOptions) -> Result<()> {
        if options.queue.is_none() || self.gives.queue {
            return Ok(());
        }
        let what = format!("cannot choose packets by queue with the {} tap", self.name());
        refuse(what, self.no_queue, "leave out --queue")
    }
}

fn refuse(what: String, why: &str, fix: &'static str) -> Result<()> {
    Err(Error::usage(what, why).fix(fix))
}
