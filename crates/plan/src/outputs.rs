//! The outputs of a capture as plain data.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One file or pipe, or a socket for readers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputPlan {
    /// The path of a file or pipe, `-` for standard output, or the name of an output for readers.
    pub path: PathBuf,
    pub format: Format,
    #[serde(default)]
    pub compression: Option<Compression>,
    /// Snap length of this output, if shorter than the capture's.
    #[serde(default)]
    pub snaplen: Option<u32>,
    /// Set if the output waits for readers instead of writing to a file.
    #[serde(default)]
    pub listen: Option<ListenPlan>,
}

/// Start of the name of an output that waits for readers.
pub const LISTEN: &str = "tcp-listen:";

/// Address at which an output waits for readers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenPlan {
    pub address: SocketAddr,
    /// With `None`, packets are sent unencrypted, to every reader that connects.
    #[serde(default)]
    pub tls: Option<TlsPlan>,
}

/// PEM files for TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsPlan {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Authorities that sign the certificates of readers.
    pub client_ca: PathBuf,
}

impl OutputPlan {
    pub fn is_stdout(&self) -> bool {
        self.path == Path::new("-")
    }

    /// Returns true if a file of this form can be written past the page cache.
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

impl Format {
    /// Returns the format that a file's name implies, whether the name is of a compressed file or not.
    pub fn of_name(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "gz" | "zst" | "lz4" => Self::of_name(Path::new(path.file_stem()?)),
            "pcapng" | "ntar" => Some(Self::Pcapng),
            "pcap" | "cap" | "dmp" => Some(Self::Pcap),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    Zstd,
    Lz4,
    Gzip,
}

impl Compression {
    /// Returns the compression that the extension of a file's name implies.
    pub fn of_name(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "zst" => Some(Self::Zstd),
            "lz4" => Some(Self::Lz4),
            "gz" => Some(Self::Gzip),
            _ => None,
        }
    }
}

/// Options for creating and writing files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilePlan {
    /// Permissions, before the umask.
    pub mode: Option<u32>,
    pub io: Io,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Io {
    /// Past the page cache if the file system supports it.
    #[default]
    Auto,
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// Conditions that end a file of a series, and the treatment of finished files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rotation {
    /// Maximum size of a file.
    pub size: Option<u64>,
    #[serde(rename = "time_ns", with = "nanoseconds::option")]
    pub time: Option<Duration>,
    /// Maximum number of files; the oldest are removed.
    pub files: Option<usize>,
    /// Maximum total size of all files.
    pub total: Option<u64>,
    /// Program to run with the name of each finished file.
    pub command: Option<String>,
    /// True if a file gets its name only once finished and on the disk.
    pub sealed: bool,
}

impl Rotation {
    /// Returns true if there are several files, or something happens to a finished one.
    pub fn is_asked_for(&self) -> bool {
        *self != Self::default()
    }
}

/// Store and spool for chunks of packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorePlan {
    pub url: String,
    /// The capture's name in the store.
    pub name: String,
    /// The host's name in the store; `None` for the machine's host name.
    #[serde(default)]
    pub host: Option<String>,
    /// Directory of the spool; `None` for the default one.
    pub spool: Option<PathBuf>,
    pub spool_bytes: u64,
    pub full: FullSpool,
    pub chunk_bytes: u64,
    #[serde(rename = "chunk_time_ns", with = "nanoseconds")]
    pub chunk_time: Duration,
    /// Number of recorded bytes after which the capture ends, before compression.
    pub size: Option<u64>,
    /// Time that the end of the capture may wait for the store.
    #[serde(rename = "patience_ns", with = "nanoseconds")]
    pub patience: Duration,
    /// True if each chunk is indexed when it is stored.
    pub index: bool,
    #[serde(default)]
    pub packets: PacketsAt,
    /// Set by an agent, which keeps the capture running.
    #[serde(default)]
    pub kept: Option<Kept>,
}

/// The place that keeps the packets; their index and manifests are always in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketsAt {
    #[default]
    Store,
    /// In the spool, whose oldest chunks are removed when it is full.
    Host,
}

/// Place of a run among the runs of a capture that an agent keeps running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    First,
    /// An earlier run ended although the capture should have gone on.
    Again,
}

impl StorePlan {
    pub const SPOOL_BYTES: u64 = 4 << 30;
    pub const CHUNK_BYTES: u64 = 64 << 20;
    /// Maximum bytes of a chunk: readers hold a whole chunk in memory.
    pub const MAX_CHUNK: u64 = 256 << 20;
    pub const CHUNK_TIME: Duration = Duration::from_secs(60);
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// Creates a plan for a store with default sizes and times.
    pub fn new(url: String, name: String) -> Self {
        Self {
            url,
            name,
            host: None,
            spool: None,
            spool_bytes: Self::SPOOL_BYTES,
            full: FullSpool::Stop,
            chunk_bytes: Self::CHUNK_BYTES,
            chunk_time: Self::CHUNK_TIME,
            size: None,
            patience: Self::PATIENCE,
            index: false,
            packets: PacketsAt::Store,
            kept: None,
        }
    }
}

/// Action when the spool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FullSpool {
    /// The capture ends; what it recorded so far is kept.
    Stop,
    /// The oldest chunk is removed; its manifest stays.
    Evict,
}

/// Serialization of a duration as a number of nanoseconds.
pub mod nanoseconds {
    use super::Duration;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    fn number(time: Duration) -> u64 {
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        number(*time).serialize(to)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }

    pub mod option {
        use super::*;

        pub fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
            time.map(number).serialize(to)
        }

        pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Duration>, D::Error> {
            Ok(Option::deserialize(from)?.map(Duration::from_nanos))
        }
    }
}
