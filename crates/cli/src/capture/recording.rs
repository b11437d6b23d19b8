//! Arguments about records: their memory, and the data written for each packet.

use trawl_capture::MAX_CAPTURED;
use trawl_front::saving::RotationArgs;
use trawl_plan::options::{Memory, Meta};
use trawl_plan::outputs::Io;
use trawl_sys::{Error, Result};

use crate::{completion, units};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum IoName {
    /// Directly if the file system supports it
    Auto,
    /// Directly, past the page cache
    Direct,
    /// Through the page cache
    Buffered,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Recording")]
pub(super) struct RecordingArgs {
    /// Memory for packets that are not written yet, for all CPUs together, rounded down [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, hide_short_help = true)]
    memory: Option<u64>,
    /// The same, for each CPU
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, conflicts_with = "memory", hide_short_help = true)]
    ring_size: Option<u64>,
    /// Metadata to write for each packet: full, none, or a list of flags, queue, id, verdict
    #[arg(long, value_name = "full|none|LIST", default_value = "full", add = completion::metadata(), hide_short_help = true)]
    meta: String,
    /// Mode of writing a pcapng file: directly from the ring to the disk, or through the page cache
    #[arg(long, value_enum, default_value_t = IoName::Auto, hide_short_help = true)]
    io: IoName,
    /// Show packets as lines, in addition to writing them
    #[arg(long, hide_short_help = true)]
    pub(super) print: bool,
    /// Record for trawl xdp test: whole packets, at entry and exit of the attached XDP program, each with its time
    ///
    /// The files take at most 1 GiB, unless -C, -G, -W or --max-disk is given; if -w names a directory, they are in it.
    /// Options that spoil such a recording are refused.
    #[arg(long, hide_short_help = true)]
    pub(super) for_test: bool,
    #[command(flatten)]
    pub(super) rotation: RotationArgs,
}

impl RecordingArgs {
    pub(super) fn io(&self) -> Io {
        match self.io {
            IoName::Auto => Io::Auto,
            IoName::Direct => Io::Direct,
            IoName::Buffered => Io::Buffered,
        }
    }

    /// Returns the memory option, or tcpdump's option for a CPU's share.
    pub(super) fn memory(&self, buffer: Option<u64>) -> Memory {
        match (self.memory, self.ring_size.or(buffer)) {
            (Some(bytes), _) => Memory::Total(bytes),
            (None, Some(bytes)) => Memory::ForEachCpu(bytes),
            (None, None) => Memory::Usual,
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
                "full" | "none" => {
                    return Err(Error::usage(
                        "cannot understand --meta",
                        format!("'{word}' cannot be combined with others"),
                    ));
                }
                _ => {
                    return Err(Error::usage(
                        "cannot understand --meta",
                        format!("'{word}' is not one of full, none, flags, queue, id, verdict"),
                    ));
                }
            }
        }
        Ok(meta)
    }
}

/// Returns the bytes to keep of a packet. Zero means all, as for tcpdump.
pub(crate) fn snaplen(asked: u64) -> Result<u32> {
    match u32::try_from(asked) {
        Ok(0) => Ok(MAX_CAPTURED),
        Ok(bytes) if bytes <= MAX_CAPTURED => Ok(bytes),
        _ => Err(Error::usage(
            format!("cannot keep {asked} bytes of each packet"),
            format!("{MAX_CAPTURED} is the limit"),
        )
        .fix("leave out -s to keep all of it")),
    }
}
