//! Options for the files that packets are written to, of `trawl capture`, `trawl read` and `trawl store query`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use trawl_plan::outputs::{Compression, Format, Rotation};
use trawl_sys::{Error, Result, process, units};

/// Compression formats of files.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Packing {
    None,
    Zstd,
    Lz4,
    Gzip,
}

/// Returns the requested compression, or else the one that the file name's extension implies.
pub fn compression(asked: Option<Packing>, path: &Path) -> Option<Compression> {
    match asked {
        Some(Packing::None) => None,
        Some(Packing::Zstd) => Some(Compression::Zstd),
        Some(Packing::Lz4) => Some(Compression::Lz4),
        Some(Packing::Gzip) => Some(Compression::Gzip),
        None => Compression::of_name(path),
    }
}

/// The smallest size of a file of a series.
const SMALLEST_FILE: u64 = 4096;

/// Parses a size as tcpdump does, in millions of bytes, or with a unit.
fn file_size(text: &str) -> std::result::Result<u64, String> {
    let size = match text.parse::<f64>() {
        Ok(millions) => millions * 1e6,
        Err(_) => units::bytes(text)? as f64,
    };
    match size {
        _ if size < SMALLEST_FILE as f64 => Err("a file holds at least 4 KiB".to_owned()),
        _ if size < i64::MAX as f64 => Ok(size as u64),
        _ => Err("the size is larger than any file".to_owned()),
    }
}

/// Options for compression, and for a series of files.
#[derive(Debug, clap::Args)]
pub struct RotationArgs {
    /// Compress files, in frames that can be read one by one [default: by the extension: .zst, .lz4 or .gz]
    #[arg(long, value_enum, hide_short_help = true)]
    pub compress: Option<Packing>,
    /// Begin a new file at this size
    ///
    /// Millions of bytes, or a size such as 64MiB
    #[arg(short = 'C', value_name = "SIZE", value_parser = file_size)]
    file_size: Option<u64>,
    /// Begin a new file after this many seconds (of the packets' times, if a file is read); -w then expands
    /// strftime(3)'s conversions
    #[arg(short = 'G', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    file_seconds: Option<u64>,
    /// Keep the latest N files
    #[arg(short = 'W', value_name = "FILES", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    files: Option<u64>,
    /// Keep the latest files, this many bytes in total; without -C, a file has at most an eighth of this size
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, hide_short_help = true)]
    max_disk: Option<u64>,
    /// Run this command with the name of each finished file
    #[arg(short = 'z', value_name = "COMMAND", hide_short_help = true)]
    command: Option<String>,
    /// Give a file its name only once it is finished and on the disk
    #[arg(long, hide_short_help = true)]
    sealed: bool,
}

impl RotationArgs {
    /// Returns the rules for ending and keeping files. Refuses sizes that cannot be observed.
    pub fn rotation(&self) -> Result<Rotation> {
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
            let why = format!("files of up to {least} bytes exist at the same time, but the limit is {total} bytes");
            return Err(Error::usage("cannot keep to --max-disk", why).fix(fix));
        }
        Ok(rotation)
    }

    /// Returns an output's compression: its own, or the general one, or by the extension of its name.
    pub fn compression(&self, path: &Path, own: Option<Packing>) -> Option<Compression> {
        compression(own.or(self.compress), path)
    }

    /// Returns the options as they were typed, for another program of trawl's.
    fn typed(&self) -> Vec<OsString> {
        let Self { compress, file_size, file_seconds, files, max_disk, command, sealed } = self;
        let compress = compress.and_then(|packing| Some(packing.to_possible_value()?.get_name().to_owned()));
        let number = |number: &Option<u64>| number.map(|number| number.to_string());
        let with_value = [
            ("--compress", compress),
            ("-C", file_size.map(|bytes| format!("{bytes}B"))),
            ("-G", number(file_seconds)),
            ("-W", number(files)),
            ("--max-disk", number(max_disk)),
            ("-z", command.clone()),
        ];
        let given = with_value.into_iter().filter_map(|(name, value)| Some([name.into(), value?.into()]));
        given.flatten().chain(sealed.then(|| "--sealed".into())).collect()
    }
}

/// Options for packets that were captured before, and are written again: of `trawl read` and `trawl store query`.
#[derive(Debug, clap::Args)]
pub struct SavingArgs {
    /// Write the packets to this file; '-' for a pipe
    ///
    /// Give this option several times for several outputs. It accepts the options and addresses for readers of
    /// `trawl capture -w`
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub write: Vec<PathBuf>,
    /// Format of the files written [default: by the ending .pcap or .pcapng, or else the format of the files read]
    #[arg(long, value_parser = format(), requires = "write", hide_short_help = true)]
    pub format: Option<Format>,
    #[command(flatten)]
    pub rotation: RotationArgs,
    /// Replace addresses by the key in this file, and leave out payload and names: `openssl rand -hex 32 > KEY`
    #[arg(long, value_name = "KEY", value_hint = clap::ValueHint::FilePath)]
    pub anonymize: Option<PathBuf>,
    /// Cut packets after their headers, also inside tunnels
    #[arg(long)]
    pub headers: bool,
    /// Leave out packets that another interface or direction saw within this time, such as 5ms; retransmissions stay
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub dedup: Option<Duration>,
    /// An option of captures that is refused by name.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "", hide = true)]
    once: Option<String>,
    /// Show the packets as well as write them
    #[arg(long, hide_short_help = true)]
    pub print: bool,
}

impl SavingArgs {
    /// Refuses --once, which only captures accept.
    pub fn refuse_once(&self) -> Result<()> {
        match self.once {
            Some(_) => Err(Error::usage("cannot use --once", "packet identifiers are unique only within one capture")
                .fix("use --dedup TIME, which compares their bytes")),
            None => Ok(()),
        }
    }

    /// Returns the first given option that only concerns packets.
    pub fn for_packets(&self) -> Option<&'static str> {
        let given = [
            ("--anonymize", self.anonymize.is_some()),
            ("--headers", self.headers),
            ("--dedup", self.dedup.is_some()),
            ("--print", self.print),
        ];
        given.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }

    /// Returns the options as they were typed, for another program of trawl's.
    pub fn typed(&self) -> Vec<OsString> {
        let Self { write, format, rotation, anonymize, headers, dedup, once: _, print } = self;
        let format = format.map(|format| match format {
            Format::Pcapng => "pcapng",
            Format::Pcap => "pcap",
        });
        let mut typed = rotation.typed();
        let mut add = |name: &str, value: &OsStr| typed.extend([name.into(), value.into()]);
        write.iter().for_each(|file| add("-w", file.as_os_str()));
        format.iter().for_each(|format| add("--format", format.as_ref()));
        anonymize.iter().for_each(|key| add("--anonymize", key.as_os_str()));
        dedup.iter().for_each(|time| add("--dedup", format!("{}s", time.as_secs_f64()).as_ref()));
        typed.extend(headers.then(|| "--headers".into()));
        typed.extend(print.then(|| "--print".into()));
        typed
    }
}

/// Parses a format of files.
pub fn format() -> impl TypedValueParser<Value = Format> {
    let names = PossibleValuesParser::new(["pcapng", "pcap"]);
    names.map(|name| if name == "pcap" { Format::Pcap } else { Format::Pcapng })
}

/// Refuses a command for finished files that is not a program.
fn check_command(command: &str) -> Result<()> {
    if process::is_program(command) {
        Ok(())
    } else {
        let what = format!("cannot run '{command}' for -z");
        let fix = "-z accepts a program without arguments; put the command line into a script";
        Err(Error::usage(what, "no executable program has that name").fix(fix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_millions_or_have_a_unit() {
        for (text, size) in [
            ("5000", Some(5_000_000_000)),
            ("5000.0", Some(5_000_000_000)),
            ("0.5", Some(500_000)),
            ("64KiB", Some(65_536)),
            ("0", None),
            ("-1", None),
            ("1KiB", None),
            ("18446744073709551615", None),
            ("inf", None),
            ("nan", None),
            ("1x", None),
        ] {
            assert_eq!(file_size(text).ok(), size, "{text}");
        }
    }
}
