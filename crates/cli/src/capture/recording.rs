//! The arguments about records: how much memory they have on their way, and what is written of each packet.

use std::path::Path;
use std::time::Duration;

use trawl_kernel::ring::Geometry;
use trawl_kernel::{Error, Result, events, host};
use trawl_sink::{Compression, SeriesPlan, check_command};
use trawl_tap::options::Meta;

use crate::packing::{self, Packing, SMALLEST_FILE, file_size};
use crate::units;

/// How files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Io {
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
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
    /// The same, for each CPU
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, conflicts_with = "memory")]
    ring_size: Option<u64>,
    /// Metadata to write for each packet: full, none, or a list of flags, queue, id, verdict
    #[arg(long, value_name = "full|none|LIST", default_value = "full")]
    meta: String,
    /// How to write a pcapng file: directly from the ring to the disk, or through the page cache
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    pub(super) io: Io,
    /// Show packets as lines, in addition to writing them
    #[arg(long)]
    pub(super) print: bool,
    /// Compress files, in frames that can be read one by one [default: by the extension: .zst, .lz4 or .gz]
    #[arg(long, value_enum)]
    compress: Option<Packing>,
    /// Maximum size of a file of the series: millions of bytes, or a size such as 64MiB
    #[arg(short = 'C', value_name = "SIZE", value_parser = file_size)]
    file_size: Option<u64>,
    /// Begin a new file after this many seconds; -w then takes strftime(3)'s conversions
    #[arg(short = 'G', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    file_seconds: Option<u64>,
    /// Keep the latest N files
    #[arg(short = 'W', value_name = "FILES", value_parser = clap::value_parser!(u64).range(1..))]
    files: Option<u64>,
    /// Keep the latest files, this many bytes in total; without -C a file has an eighth of it at most
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    max_disk: Option<u64>,
    /// Run this with the name of each finished file
    #[arg(short = 'z', value_name = "COMMAND")]
    command: Option<String>,
    /// Give a file its name only once it is finished and on the disk
    #[arg(long)]
    sealed: bool,
}

impl RecordingArgs {
    /// Refuses what cannot be held, and what would mean nothing without a file.
    pub(super) fn check(&self, is_to_file: bool) -> Result<()> {
        let own = [
            ("-C", self.file_size.is_some()),
            ("-G", self.file_seconds.is_some()),
            ("-W", self.files.is_some()),
            ("-z", self.command.is_some()),
            ("--sealed", self.sealed),
            ("--max-disk", self.max_disk.is_some()),
        ];
        if let Some((option, _)) = own.iter().find(|(_, is_given)| *is_given && !is_to_file) {
            let why = "packets are not written to a file";
            return Err(Error::usage(format!("cannot use {option}"), why).fix("name one: -w FILE"));
        }
        self.command.as_deref().map_or(Ok(()), check_command)?;
        let Some(total) = self.max_disk else {
            return Ok(());
        };
        let (least, fix) = match self.file_size {
            Some(size) => (
                size.saturating_mul(2),
                "use a smaller -C, or a larger --max-disk",
            ),
            None => (8 * SMALLEST_FILE, "use a larger --max-disk"),
        };
        if total < least {
            let why = format!("it is {total} bytes, and files of {least} bytes exist at a time");
            return Err(Error::usage("cannot keep to --max-disk", why).fix(fix));
        }
        Ok(())
    }

    /// When files end, and what becomes of them.
    pub(super) fn series(&self, path: &Path, by_event: bool) -> SeriesPlan {
        SeriesPlan {
            path: path.to_string_lossy().into_owned(),
            size: self.file_size,
            time: self.file_seconds.map(Duration::from_secs),
            files: self.files.map(|files| files as usize),
            total: self.max_disk,
            command: self.command.clone(),
            sealed: self.sealed,
            by_event,
        }
    }

    /// As was said of this output, or of all, or as its name ends.
    pub(super) fn compression(&self, path: &Path, own: Option<Packing>) -> Option<Compression> {
        packing::compression(own.or(self.compress), path)
    }

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
                "full" | "none" => {
                    return Err(Error::usage(
                        "cannot understand --meta",
                        format!("'{word}' stands alone, without other words"),
                    ));
                }
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
