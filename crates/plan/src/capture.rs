//! The plan of a capture, as one plain value.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::options::CaptureOptions;
use crate::outputs::{FilePlan, Format, OutputPlan, Rotation, StorePlan};
use crate::sources::Sources;

/// Sources of packets, the choice of those to record, and outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapturePlan {
    pub sources: Sources,
    pub options: CaptureOptions,
    /// Files and pipes for packets. Only the first may be a series of files.
    #[serde(default)]
    pub outputs: Vec<OutputPlan>,
    #[serde(default)]
    pub rotation: Rotation,
    #[serde(default)]
    pub files: FilePlan,
    /// Store that keeps the packets instead of the outputs.
    #[serde(default)]
    pub store: Option<StorePlan>,
    /// File with the key under which addresses are replaced in all outputs; payload and names are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anonymize: Option<PathBuf>,
    /// File that the attached program was loaded from, which gets hooks for the time of the capture.
    #[serde(default)]
    pub tappable: Option<PathBuf>,
    /// File for the summary, `-` for standard output.
    #[serde(default)]
    pub summary: Option<PathBuf>,
    /// Command whose packets alone are captured, until it ends.
    #[serde(default)]
    pub command: Vec<String>,
    /// User whose rights the capture has once it is set up.
    #[serde(default)]
    pub user: Option<String>,
    /// The only permitted link type of interfaces, by libpcap's name.
    #[serde(default)]
    pub link_type: Option<String>,
    /// File for the verifier's whole log.
    #[serde(default)]
    pub verifier_log: Option<PathBuf>,
}

impl CapturePlan {
    /// Plans a capture whose packets go to the caller. Later interfaces join if the sources are patterns and the
    /// options allow it.
    pub fn new(sources: Sources, mut options: CaptureOptions) -> Self {
        options.across_namespaces = sources.span_namespaces(options.tap);
        // Around events, and for notes of drops, only the initial interfaces are captured.
        options.joins = options.drops.is_none() && options.trigger.is_none() && sources.may_grow(options.tap);
        Self {
            sources,
            options,
            outputs: Vec::new(),
            rotation: Rotation::default(),
            files: FilePlan::default(),
            store: None,
            anonymize: None,
            tappable: None,
            summary: None,
            command: Vec::new(),
            user: None,
            link_type: None,
            verifier_log: None,
        }
    }

    /// Sets the user whose rights the process adopts. The process then has no right to attach to later interfaces.
    pub fn relinquish(&mut self, user: Option<String>) {
        self.options.joins &= user.is_none();
        self.user = user;
    }

    /// Parses a plan as JSON. The conversion is generic, and would otherwise be compiled again in each crate that calls
    /// it.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Returns the format of the first output, or pcapng without one.
    pub fn format(&self) -> Format {
        self.outputs.first().map_or(Format::Pcapng, |output| output.format)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::TapChoice;
    use crate::options::Memory;
    use crate::outputs::{Compression, ListenPlan, TlsPlan};

    #[test]
    fn plans_survive_json() {
        let sources = Sources {
            names: vec!["red:eth*".to_owned()],
            netns: Some("blue".to_owned()),
            pods: vec!["default/web-0".to_owned()],
            awaits_pods: true,
            cri_socket: Some("/run/cri.sock".into()),
        };
        let plain = CapturePlan::new(Sources::default(), CaptureOptions::new(TapChoice::Auto, Memory::default()));
        let whole = CapturePlan {
            outputs: vec![OutputPlan {
                path: "a.pcap.zst".into(),
                format: Format::Pcap,
                compression: Some(Compression::Zstd),
                snaplen: Some(64),
                listen: Some(ListenPlan {
                    address: ([127, 0, 0, 1], 57012).into(),
                    tls: Some(TlsPlan { cert: "a.pem".into(), key: "a.key".into(), client_ca: "ca.pem".into() }),
                }),
            }],
            rotation: Rotation { time: Some(Duration::from_secs(300)), sealed: true, ..Rotation::default() },
            store: Some(StorePlan::new("file:///s".to_owned(), "edge".to_owned())),
            user: Some("nobody".to_owned()),
            ..CapturePlan::new(sources, CaptureOptions::new(TapChoice::Tc, Memory::default()))
        };
        for plan in [plain, whole] {
            let text = plan.to_json().to_string();
            let read = CapturePlan::from_json(&text).expect(&text);
            assert_eq!(read, plan, "{text}");
        }
    }

    #[test]
    fn patterns_let_interfaces_join_unless_rights_are_given_up() {
        let plan = |names: &[&str], tap| {
            let sources =
                Sources { names: names.iter().map(|name| (*name).to_owned()).collect(), ..Sources::default() };
            CapturePlan::new(sources, CaptureOptions::new(tap, Memory::default()))
        };
        assert!(plan(&["eth0", "veth*"], TapChoice::Auto).options.joins);
        assert!(plan(&["any"], TapChoice::Auto).options.joins);
        assert!(!plan(&["eth0"], TapChoice::Auto).options.joins);
        assert!(!plan(&["dpdk:all"], TapChoice::Dpdk).options.joins);
        assert!(plan(&["*:eth0"], TapChoice::Auto).options.across_namespaces);
        let mut plan = plan(&["veth*"], TapChoice::Auto);
        plan.relinquish(Some("nobody".to_owned()));
        assert!(!plan.options.joins);
    }
}
