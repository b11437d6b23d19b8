//! The taps, a file or folder each, and their table: what each sees, provides and needs. Refusals of a capture, `trawl
//! taps` and the guide's matrix come from it.

pub mod dpdk;
pub mod drop;
pub mod hook;
pub mod packet;
pub mod pcap;
pub mod select;
pub mod tap;
pub mod tc;
mod threads;
pub mod trace;
pub mod watch;
pub mod xdp;

use serde::Serialize;
use trawl_bpf::probe::{KernelFeature, ProbeAnswer};
use trawl_io::dpdk::{PROGRAM as DPDK_HELPER, Presence, presence};
use trawl_io::libpcap::Library;
use trawl_sys::{Error, Result};

use crate::Tap;
use crate::capture_site::CaptureSite;
use crate::taps::dpdk::Dpdk;
use crate::taps::hook::Hook;
use crate::taps::packet::Packet;
use crate::taps::pcap::Pcap;
use crate::taps::tc::Tc;
use trawl_plan::TapChoice;
use trawl_plan::options::{At, CaptureOptions, Direction, Stamps, TimeSource};

/// The taps to attach at a site.
pub type SiteTaps = Vec<Box<dyn Tap>>;

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
    const NOTHING: Self = Self {
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

/// One row of the table.
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
    /// Returns the taps to attach at a site for the value of `--tap`.
    #[serde(skip)]
    taps: fn(&CaptureSite, &CaptureOptions) -> Result<SiteTaps>,
    /// Required kernel features.
    #[serde(skip)]
    pub features: &'static [KernelFeature],
    #[serde(skip)]
    pub reads_by: ReadsBy,
    /// True if the tap can read the clock once for the packets of a poll (`--time poll`).
    #[serde(skip)]
    stamps_by_polls: bool,
    /// Reasons for which a tap does not provide the receive queue and the hardware time.
    #[serde(skip)]
    no_queue: &'static str,
    #[serde(skip)]
    no_hardware_time: &'static str,
    /// Finds an unmet requirement besides the kernel.
    #[serde(skip)]
    lacks: fn() -> Option<Missing>,
}

/// The properties that most taps share.
const MOST: Facts = Facts {
    choice: TapChoice::Auto,
    taps: |_, _| Ok(Vec::new()),
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

pub const XDP: Facts = Facts {
    choice: TapChoice::Xdp,
    taps: select::at_xdp,
    variant: Some("own_program"),
    sees: "received packets, before the stack, at trawl's own XDP program",
    gives: Gives {
        received: true,
        entry: true,
        verdict: true,
        queue: true,
        hardware_time: true,
        process: true,
        ..Gives::NOTHING
    },
    needs: "an interface without an XDP program",
    features: &[KernelFeature::Xdp, KernelFeature::XdpLink, KernelFeature::MmapableArray],
    stamps_by_polls: true,
    ..MOST
};

pub const TRACE: Facts = Facts {
    choice: TapChoice::Xdp,
    taps: select::at_xdp,
    variant: Some("attached_program"),
    sees: "received packets, at entry and exit of any XDP program already attached",
    gives: Gives { programs: true, hardware_time: false, process: false, ..XDP.gives },
    needs: "a kernel that allows tracing programs",
    features: &[
        KernelFeature::Xdp,
        KernelFeature::Fentry,
        KernelFeature::Fexit,
        KernelFeature::KernelMemory,
        KernelFeature::Atomics,
        KernelFeature::MmapableArray,
    ],
    ..MOST
};

pub const HOOK: Facts = Facts {
    choice: TapChoice::Tailcall,
    taps: |_, options| Ok(select::with_sent(Box::new(Hook), options)),
    sees: "received packets, and the verdict of an attached XDP program",
    gives: Gives { programs: false, process: true, ..TRACE.gives },
    needs: "a program that ends by a tail call through a map, as programs built for xdpcap do, or that `trawl xdp load --tappable` loaded (the latter for --at entry and both)",
    features: &[KernelFeature::Xdp, KernelFeature::MmapableArray],
    stamps_by_polls: true,
    ..MOST
};

pub const TC: Facts = Facts {
    choice: TapChoice::Tc,
    taps: |_, _| one(Tc::Asked),
    sees: "received and sent packets, between driver and stack",
    gives: Gives { received: true, sent: true, queue: true, hardware_time: true, process: true, ..Gives::NOTHING },
    needs: "tcx, or clsact on kernels before 6.6",
    features: &[KernelFeature::Bpf, KernelFeature::MmapableArray],
    stamps_by_polls: true,
    ..MOST
};

pub const PACKET: Facts = Facts {
    choice: TapChoice::Packet,
    taps: |_, _| one(Packet),
    sees: "received and sent packets, as tcpdump sees them",
    gives: Gives { process: false, ..TC.gives },
    needs: "nothing",
    features: &[KernelFeature::PacketV3],
    reads_by: ReadsBy::Thread,
    ..MOST
};

pub const PCAP: Facts = Facts {
    choice: TapChoice::Pcap,
    taps: |_, _| one(Pcap),
    sees: "packets of a libpcap's devices: interfaces, any, usbmon, netmap, PF_RING (docs/peers.md)",
    gives: Gives { received: true, sent: true, hardware_time: true, ..Gives::NOTHING },
    needs: "a libpcap: the system's, or the one that --libpcap names",
    reads_by: ReadsBy::Thread,
    no_queue: "libpcap does not report it",
    lacks: || {
        let error = Library::load(None).err()?;
        Some(Missing { feature: "libpcap", refused: false, why: error.to_string() })
    },
    ..MOST
};

pub const DPDK: Facts = Facts {
    choice: TapChoice::Dpdk,
    taps: |_, _| one(Dpdk),
    sees: "packets of a DPDK application's ports, copied by its capture framework (pdump)",
    gives: Gives { received: true, sent: true, queue: true, ..Gives::NOTHING },
    needs: "the helper trawl-dpdk (`make build-dpdk`), and an application with the same version of DPDK that calls rte_pdump_init()",
    reads_by: ReadsBy::Thread,
    no_hardware_time: "DPDK's capture framework stamps packets by the processor's counter",
    lacks: || no_helper().map(|why| Missing { feature: DPDK_HELPER, refused: false, why }),
    ..MOST
};

pub const DROP: Facts = Facts {
    choice: TapChoice::Drop,
    taps: |site, options| Ok(select::of_drops(site, options)),
    sees: "packets that the kernel drops, with their reason, function, namespace and socket",
    gives: Gives { received: true, sent: true, drop_reason: true, process: true, ..Gives::NOTHING },
    needs: "Linux 5.17 with BTF",
    features: &[
        KernelFeature::RawTracepoint,
        KernelFeature::KernelMemory,
        KernelFeature::Btf,
        KernelFeature::DropReasons,
        KernelFeature::MmapableArray,
    ],
    no_queue: "freed buffers do not contain it",
    no_hardware_time: "a drop is stamped when the kernel frees the packet",
    ..MOST
};

/// Returns the row of a value of `--tap`, the first one of the two of `xdp`; `auto` has none.
pub fn of(choice: TapChoice) -> Option<&'static Facts> {
    ALL.into_iter().find(|facts| facts.choice == choice)
}

fn one(tap: impl Tap + 'static) -> Result<SiteTaps> {
    Ok(vec![Box::new(tap)])
}

/// All taps, in the order for display.
pub const ALL: [&Facts; 8] = [&XDP, &TRACE, &HOOK, &TC, &PACKET, &PCAP, &DPDK, &DROP];

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
                "only the xdp tap can, at an attached program",
                "leave out --program, or use --tap xdp",
            );
        }
        if options.time == TimeSource::Hardware && !gives.hardware_time {
            return refuse(without("read hardware time stamps"), no_hardware_time, "leave out --time hw");
        }
        if options.recording.stamps == Stamps::Poll && !stamps_by_polls {
            return refuse(
                without("read the clock once a poll"),
                "other mechanisms stamp its packets",
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

/// Returns the reason for which the helper of the dpdk tap does not work, if so.
fn no_helper() -> Option<String> {
    match presence() {
        Presence::Ready { .. } => None,
        Presence::NotThere => Some("the helper was not found next to trawl: make build-dpdk".to_owned()),
        Presence::DoesNotRun { program, said } => {
            Some(format!("{} does not run ({said}): make build-dpdk", program.display()))
        }
        Presence::OtherBuild { program } => {
            Some(format!("{} is of another build of trawl: make build-dpdk", program.display()))
        }
    }
}

fn refuse(what: String, why: &str, fix: &'static str) -> Result<()> {
    Err(Error::usage(what, why).fix(fix))
}

/// Returns the table as Markdown, for the guide.
pub fn markdown() -> String {
    let mut text = String::from(
        "| `--tap` | sees | received | sent | entry | verdict | hardware time | needs |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mark = |has: bool| if has { "yes" } else { "no" };
    for facts in ALL {
        let Gives { received, sent, entry, verdict, hardware_time, .. } = facts.gives;
        text.push_str(&format!(
            "| `{}` | {} | {} | {} | {} | {} | {} | {} |\n",
            facts.name(),
            facts.sees,
            mark(received),
            mark(sent),
            mark(entry),
            mark(verdict),
            mark(hardware_time),
            facts.needs
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_plan::options::Memory;

    #[test]
    fn each_choice_but_auto_has_a_row() {
        for (.., choice) in TapChoice::ALL {
            assert_eq!(of(choice).is_none(), choice == TapChoice::Auto, "{choice}");
        }
    }

    /// The matrix in the docs is made from the table (`trawl taps --markdown`).
    #[test]
    fn guide_contains_the_table() {
        let guide = include_str!("../../../docs/GUIDE.md");
        assert!(guide.contains(&markdown()), "docs/GUIDE.md differs from trawl taps --markdown:\n{}", markdown());
    }

    /// Each tap has a reason of its own.
    #[test]
    fn hardware_time_is_refused_for_the_taps_own_reason() {
        let mut options = CaptureOptions::new(TapChoice::Auto, Memory::default());
        options.time = TimeSource::Hardware;
        for facts in ALL {
            let refusal = facts.check(&options).err().map(|error| error.to_string());
            assert_eq!(refusal.is_some(), !facts.gives.hardware_time);
            if let Some(message) = refusal {
                let named = format!("with the {} tap", facts.name());
                assert!(message.contains(&named), "{message}");
                assert_eq!(message.contains("processor's counter"), facts.name() == "dpdk");
            }
        }
    }

    #[test]
    fn missing_requirements_are_features_of_the_tap() {
        for facts in ALL {
            for missing in facts.missing() {
                assert!(
                    facts.features.iter().any(|feature| feature.name() == missing.feature)
                        || ["libpcap", DPDK_HELPER].contains(&missing.feature)
                );
                assert!(!missing.why.is_empty());
            }
        }
    }
}
