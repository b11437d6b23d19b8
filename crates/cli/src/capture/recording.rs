//! The arguments about records: how much memory they have on their way, and what is written of each packet.

use trawl_kernel::ring::Geometry;
use trawl_kernel::{Error, Result, events, host};
use trawl_tap::site::Meta;

use crate::units;

/// How files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Io {
    /// Directly where the file system can
    Auto,
    /// Past the page cache
    Direct,
    /// Through the page cache
    Buffered,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Recording")]
pub(super) struct RecordingArgs {
    /// Memory for packets on their way, of all CPUs together, rounded down [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
    /// The same by a CPU's share
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, conflicts_with = "memory")]
    ring_size: Option<u64>,
    /// What is written of each packet beside its bytes: full, none, or a list of flags, queue, id, verdict
    #[arg(long, value_name = "full|none|LIST", default_value = "full")]
    meta: String,
    /// How a pcapng file is written: straight out of the ring to the disk, or through the page cache
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    pub(super) io: Io,
}

impl RecordingArgs {
    /// As asked for here, or by tcpdump's word for a CPU's share.
    pub(super) fn geometry(&self, buffer: Option<u64>) -> Result<Geometry> {
        let cpus = events::cpu_count();
        match (self.memory, self.ring_size.or(buffer)) {
            (Some(bytes), _) => Geometry::for_total(bytes, cpus),
            (None, Some(bytes)) => Geometry::for_share(bytes, cpus),
            (None, None) => Geometry::by_default(cpus, host::available_memory()),
        }
    }

    pub(super) fn meta(&self) -> Result<Meta> {
        match self.meta.as_str() {
            "full" => return Ok(Meta::FULL),
            "none" => return Ok(Meta::NONE),
            _ => {}
        }
        let mut meta = Meta::NONE;
        for word in self.meta.split(',') {
            match word {
                "flags" => meta.flags = true,
                "queue" => meta.queue = true,
                "id" => meta.id = true,
                "verdict" => meta.verdict = true,
                _ => {
                    return Err(Error::usage(
                        "cannot understand --meta",
                        format!("'{word}' is not among full, none, flags, queue, id, verdict"),
                    ));
                }
            }
        }
        Ok(meta)
    }
}
