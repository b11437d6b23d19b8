//! What a capture is to do, as one plain value: a front end makes it, and it can be stored, shown and sent to another host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::options::{Options, nanoseconds};
use crate::sources::Sources;

/// Where packets are seen, which of them are recorded, and where they go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapturePlan {
    pub sources: Sources,
    pub options: Options,
    /// The files and pipes that packets are written to. Only the first may be a series of files.
    #[serde(default)]
    pub outputs: Vec<OutputPlan>,
    #[serde(default)]
    pub rotation: Rotation,
    #[serde(default)]
    pub files: FilePlan,
    /// Keeps packets in a store instead.
    #[serde(default)]
    pub store: Option<StorePlan>,
    /// The file that the attached program was loaded from: it gets hooks while the capture goes on.
    #[serde(default)]
    pub tappable: Option<PathBuf>,
    /// The file that the account is written to, `-` for standard output.
    #[serde(default)]
    pub summary: Option<PathBuf>,
    /// The user whose rights the capture has once it is set up.
    #[serde(default)]
    pub user: Option<String>,
    /// The only link type that interfaces may have, by libpcap's name.
    #[serde(default)]
    pub link_type: Option<String>,
    /// The file that the verifier's whole log is written to.
    #[serde(default)]
    pub verifier_log: Option<PathBuf>,
}

impl CapturePlan {
    /// Plans a capture whose packets go to the caller. Interfaces that appear later join where the sources are patterns
    /// and the options allow it.
    pub fn new(sources: Sources, mut options: Options) -> Self {
        options.across_namespaces = sources.span_namespaces(options.tap);
        // Events and notes of drops are tied to the interfaces of the beginning.
        options.joins =
            options.drops.is_none() && options.trigger.is_none() && sources.may_grow(options.tap);
        Self {
            sources,
            options,
            outputs: Vec::new(),
            rotation: Rotation::default(),
            files: FilePlan::default(),
            store: None,
            tappable: None,
            summary: None,
            user: None,
            link_type: None,
            verifier_log: None,
        }
    }

    /// Gives up the rights of this process for a user's. Interfaces that appear later cannot be attached to then.
    pub fn relinquish(&mut self, user: Option<String>) {
        self.options.joins &= user.is_none();
        self.user = user;
    }

    /// The form of packets in the first output, pcapng where there is none.
    pub fn format(&self) -> Format {
        self.outputs
            .first()
            .map_or(Format::Pcapng, |output| output.format)
    }
}

/// One file or pipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputPlan {
    /// `-` for standard output.
    pub path: PathBuf,
    pub format: Format,
    #[serde(default)]
    pub compression: Option<Compression>,
    /// Bytes of each packet, where more are recorded for others.
    #[serde(default)]
    pub snaplen: Option<u32>,
}

impl OutputPlan {
    pub fn is_stdout(&self) -> bool {
        self.path == Path::new("-")
    }

    /// Returns whether a file of this form can be written past the page cache.
    pub fn can_be_direct(&self) -> bool {
        self.format == Format::Pcapng && self.compression.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    Pcapng,
    Pcap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    Zstd,
    Lz4,
    Gzip,
}

/// How files are made and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilePlan {
    /// Permissions, less what the umask takes away.
    pub mode: Option<u32>,
    pub io: Io,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Io {
    /// Directly where the file system supports it.
    #[default]
    Auto,
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// When a file of a series ends, and what is done with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rotation {
    /// A file grows no larger than this.
    pub size: Option<u64>,
    #[serde(rename = "time_ns", with = "nanoseconds::option")]
    pub time: Option<Duration>,
    /// This many files stay, the latest ones.
    pub files: Option<usize>,
    /// All files together stay below this.
    pub total: Option<u64>,
    /// Is run with the name of each finished file.
    pub command: Option<String>,
    /// A file has its name only once it is finished and on the disk.
    pub sealed: bool,
}

impl Rotation {
    /// Returns whether there are to be several files, or something is done with the one.
    pub fn is_asked_for(&self) -> bool {
        *self != Self::default()
    }
}

/// Where chunks of packets are kept, and where they wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorePlan {
    pub url: String,
    /// The capture's name in the store.
    pub name: String,
    /// `None`: the usual directory.
    pub spool: Option<PathBuf>,
    pub spool_bytes: u64,
    pub full: FullSpool,
    pub chunk_bytes: u64,
    #[serde(rename = "chunk_time_ns", with = "nanoseconds")]
    pub chunk_time: Duration,
    /// The capture ends once it recorded this many bytes.
    pub size: Option<u64>,
    /// How long the end of the capture may wait for the store.
    #[serde(rename = "patience_ns", with = "nanoseconds")]
    pub patience: Duration,
    /// Each chunk gets its index when it is stored.
    pub index: bool,
}

impl StorePlan {
    pub const SPOOL_BYTES: u64 = 4 << 30;
    pub const CHUNK_BYTES: u64 = 64 << 20;
    pub const CHUNK_TIME: Duration = Duration::from_secs(10);
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// Stores at an address with the usual sizes and times.
    pub fn new(url: String, name: String) -> Self {
        Self {
            url,
            name,
            spool: None,
            spool_bytes: Self::SPOOL_BYTES,
            full: FullSpool::Stop,
            chunk_bytes: Self::CHUNK_BYTES,
            chunk_time: Self::CHUNK_TIME,
            size: None,
            patience: Self::PATIENCE,
            index: false,
        }
    }
}

/// What happens when the spool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FullSpool {
    /// The capture ends; what it recorded so far is kept.
    Stop,
    /// The oldest chunk is removed; its manifest stays.
    Evict,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Choice;
    use crate::options::Memory;

    #[test]
    fn plans_survive_json() {
        let sources = Sources {
            names: vec!["red:eth*".to_owned()],
            netns: Some("blue".to_owned()),
            pods: vec!["default/web-0".to_owned()],
            cri_socket: Some("/run/cri.sock".into()),
        };
        let plain = CapturePlan::new(
            Sources::default(),
            Options::new(Choice::Auto, Memory::default()),
        );
        let whole = CapturePlan {
            outputs: vec![OutputPlan {
                path: "a.pcap.zst".into(),
                format: Format::Pcap,
                compression: Some(Compression::Zstd),
                snaplen: Some(64),
            }],
            rotation: Rotation {
                time: Some(Duration::from_secs(300)),
                sealed: true,
                ..Rotation::default()
            },
            store: Some(StorePlan::new("file:///s".to_owned(), "edge".to_owned())),
            user: Some("nobody".to_owned()),
            ..CapturePlan::new(sources, Options::new(Choice::Tc, Memory::default()))
        };
        for plan in [plain, whole] {
            let text = serde_json::to_string(&plan).expect("plain data");
            let read: CapturePlan = serde_json::from_str(&text).expect(&text);
            assert_eq!(read, plan, "{text}");
        }
    }

    #[test]
    fn patterns_let_interfaces_join_unless_rights_are_given_up() {
        let plan = |names: &[&str], tap| {
            let sources = Sources {
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                ..Sources::default()
            };
            CapturePlan::new(sources, Options::new(tap, Memory::default()))
        };
        assert!(plan(&["eth0", "veth*"], Choice::Auto).options.joins);
        assert!(plan(&["any"], Choice::Auto).options.joins);
        assert!(!plan(&["eth0"], Choice::Auto).options.joins);
        assert!(!plan(&["dpdk:all"], Choice::Dpdk).options.joins);
        assert!(plan(&["*:eth0"], Choice::Auto).options.across_namespaces);
        let mut plan = plan(&["veth*"], Choice::Auto);
        plan.relinquish(Some("nobody".to_owned()));
        assert!(!plan.options.joins);
    }
}
