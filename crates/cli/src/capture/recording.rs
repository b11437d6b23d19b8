//! Arguments about records: their memory, and the data written for each packet.

use std::path::Path;
use std::time::Duration;

use trawl_capture::MAX_CAPTURED;
use trawl_plan::options::{MemorySize, Meta};
use trawl_plan::outputs::{Compression, Io, Rotation};
use trawl_sink::check_command;
use trawl_sys::{Error, Result};

use crate::args::{Packing, SMALLEST_FILE, compression, file_size};
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
    #[command(flatten)]
    pub(super) rotation: RotationArgs,
}

/// Options for compression, and for a series of files.
#[derive(Debug, clap::Args)]
pub(crate) struct RotationArgs {
    /// Compress files, in frames that can be read one by one [default: by the extension: .zst, .lz4 or .gz]
    #[arg(long, value_enum, hide_short_help = true)]
    pub(crate) compress: Option<Packing>,
    /// Begin a new file at this size
    ///
    /// Millions of bytes, or a size such as 64MiB
    #[arg(short = 'C', value_name = "SIZE", value_parser = file_size)]
    file_size: Option<u64>,
    /// Begin a new file after this many seconds, by the packets' times in a file that is read; -w then expands
    /// strftime(3)'s conversions
    #[arg(short = 'G', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    file_seconds: Option<u64>,
    /// Keep the latest N files
    #[arg(short = 'W', value_name = "FILES", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    files: Option<u64>,
    /// Keep the latest files, this many bytes in total; without -C a file has at most an eighth of it
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, hide_short_help = true)]
    max_disk: Option<u64>,
    /// Run this with the name of each finished file
    #[arg(short = 'z', value_name = "COMMAND", hide_short_help = true)]
    command: Option<String>,
    /// Give a file its name only once it is finished and on the disk
    #[arg(long, hide_short_help = true)]
    sealed: bool,
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
    pub(super) fn memory(&self, buffer: Option<u64>) -> MemorySize {
        match (self.memory, self.ring_size.or(buffer)) {
            (Some(bytes), _) => MemorySize::Total(bytes),
            (None, Some(bytes)) => MemorySize::ForEachCpu(bytes),
            (None, None) => MemorySize::Usual,
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

impl RotationArgs {
    /// Returns the rules for ending and keeping files. Refuses sizes that cannot be observed.
    pub(crate) fn rotation(&self) -> Result<Rotation> {
        self.command.as_deref().map_or(Ok(()), check_command)?;
        let rotation = Rotation {
            size: self.file_size,
            time: self.file_seconds.map(Duration::from_secs),
            files: self.files.map(|files| files as usize),
            total: self.max_disk,
            command: self.command.clone(),
            sealed: self.sealed,
        };
        let Some(total) = self.max_disk else {
            return Ok(rotation);
        };
        let (least, fix) = match self.file_size {
            Some(size) => (size.saturating_mul(2), "use a smaller -C, or a larger --max-disk"),
            None => (8 * SMALLEST_FILE, "use a larger --max-disk"),
        };
        if total < least {
            let why = format!("it is {total} bytes, and files of {least} bytes exist at a time");
            return Err(Error::usage("cannot keep to --max-disk", why).fix(fix));
        }
        Ok(rotation)
    }

    /// Returns an output's compression: its own, or the general one, or by the extension of its name.
    pub(crate) fn compression(&self, path: &Path, own: Option<Packing>) -> Option<Compression> {
        compression(own.or(self.compress), path)
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
