//! tcpdump's options that trawl does not need, names differently, or uses to show something instead of capturing.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, ValueEnum};
use trawl_capture::MAX_CAPTURED;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::filter::Compile;
use trawl_packet::pcapng::block::{LINKTYPE_ETHERNET, LINKTYPE_RAW};
use trawl_plan::filter::Filter;
use trawl_sys::{Error, Result};

use crate::terminal::write_out;
use trawl_sys::words::path_word;

/// tcpdump's options that trawl does not need or names differently.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Accepted from tcpdump")]
pub(super) struct TcpdumpArgs {
    /// Show each packet as it arrives; trawl always does
    #[arg(short = 'l', hide_short_help = true)]
    line_buffered: bool,
    /// Write each packet as it arrives, to a file too; otherwise packets for a file may wait half a second
    #[arg(short = 'U', long, hide_short_help = true)]
    packet_buffered: bool,
    /// Deliver packets as they arrive, to a file too: as -U
    #[arg(long, hide_short_help = true)]
    immediate_mode: bool,
    /// Do not optimise the filter; ignored
    #[arg(short = 'O', long, hide_short_help = true)]
    no_optimize: bool,
    /// Show numbers for foreign addresses; trawl always does
    #[arg(short = 'f', hide_short_help = true)]
    foreign_numeric: bool,
    /// Show AS numbers in ASDOT, raw NFS handles, and 802.11s; no effect: trawl shows none of them
    #[arg(short = 'b', short_aliases = ['u', 'H'], action = ArgAction::Count, hide_short_help = true)]
    not_shown: u8,
    /// Memory for packets that are not written yet, in KiB, for each CPU: as --ring-size
    #[arg(short = 'B', long, value_name = "KIB", conflicts_with = "ring_size", hide_short_help = true)]
    buffer_size: Option<u64>,
    /// Clock that stamps the packets: host is --time system, adapter and adapter_unsynced are --time hw
    #[arg(
        short = 'j',
        long = "time-stamp-type",
        value_enum,
        value_name = "TYPE",
        conflicts_with = "clock",
        hide_short_help = true
    )]
    pub(super) time_stamp_type: Option<StampType>,
    /// List the types for -j
    #[arg(short = 'J', long, hide_short_help = true)]
    list_time_stamp_types: bool,
    /// Link type, EN10MB or RAW; a capture on an interface of another type is refused
    #[arg(short = 'y', long = "linktype", value_name = "TYPE", hide_short_help = true)]
    pub(super) link_type: Option<String>,
    /// List the types for -y
    #[arg(short = 'L', long, hide_short_help = true)]
    list_data_link_types: bool,
    /// Show the filter's classic program and end: -dd as C, -ddd as numbers
    #[arg(short = 'd', action = ArgAction::Count, hide_short_help = true)]
    dump: u8,
    /// Read packets from a file: trawl read FILE
    #[arg(short = 'r', value_name = "FILE", hide_short_help = true)]
    read: Option<PathBuf>,
    /// Files to read, by their list: trawl read FILE…
    #[arg(short = 'V', value_name = "FILE", hide = true)]
    read_list: Option<PathBuf>,
    /// Options of tcpdump that trawl lacks are refused by name.
    #[arg(short = 'E', value_name = "KEY", hide = true)]
    decrypt: Option<String>,
    #[arg(short = 'M', value_name = "SECRET", hide = true)]
    secret: Option<String>,
    #[arg(short = 'm', value_name = "MODULE", hide = true)]
    module: Option<String>,
    #[arg(short = 'T', value_name = "TYPE", hide = true)]
    packet_type: Option<String>,
    #[arg(short = 'I', long, hide = true)]
    monitor_mode: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum StampType {
    #[value(name = "host", alias = "host_lowprec", alias = "host_hiprec")]
    Host,
    #[value(name = "adapter", alias = "adapter_unsynced")]
    Adapter,
}

impl TcpdumpArgs {
    /// Returns true if packets must not wait on their way to a file.
    pub(super) fn is_prompt(&self) -> bool {
        self.packet_buffered || self.immediate_mode
    }

    pub(super) fn buffer(&self) -> Option<u64> {
        self.buffer_size.map(|kib| kib.saturating_mul(1024))
    }

    /// Refuses options for other commands, and options that trawl lacks.
    pub(super) fn refuse(&self) -> Result<()> {
        if let Some(file) = self.read.as_ref().or(self.read_list.as_ref()) {
            let what = format!("cannot read {} with trawl capture", file.display());
            return Err(
                Error::usage(what, "it captures from interfaces").fix(format!("trawl read {}", path_word(file)))
            );
        }
        let missing = [
            (self.decrypt.is_some(), "-E", "trawl does not decrypt"),
            (self.secret.is_some(), "-M", "trawl does not check TCP-MD5 digests"),
            (self.module.is_some(), "-m", "trawl shows SNMP's object identifiers as numbers"),
            (self.packet_type.is_some(), "-T", "trawl recognizes protocols by their ports and contents"),
            (self.monitor_mode, "-I", "trawl has no monitor mode for wireless interfaces"),
        ];
        match missing.into_iter().find(|(is_given, ..)| *is_given) {
            Some((_, option, why)) => {
                let what = format!("cannot use tcpdump's option {option}");
                Err(Error::usage(what, why).fix(format!("leave out {option}")))
            }
            None => Ok(()),
        }
    }

    /// Returns true if an option shows something instead of capturing.
    pub(super) fn only_shows(&self) -> bool {
        self.list_time_stamp_types || self.list_data_link_types || self.dump > 0
    }

    /// Shows the requested information.
    pub(super) fn show(&self, sites: &[CaptureSite], filter: Option<&Filter>) -> Result<ExitCode> {
        let mut text = String::new();
        for site in sites {
            let label = crate::terminal::printable(&site.label);
            if self.list_time_stamp_types {
                let _ = writeln!(
                    text,
                    "Time stamp types for {label} (use option -j to set):\n  host\n  adapter (if the card stamps packets)"
                );
            }
            if self.list_data_link_types {
                let name = name_of(site.interface.link_type);
                let _ = writeln!(text, "Data link types for {label} (use option -y to set):\n  {name}");
            }
        }
        if let (1.., Some(site)) = (self.dump, sites.first()) {
            let everything = Filter::Expression(String::new());
            let options = site.compiler_options(MAX_CAPTURED)?;
            let classic = filter.unwrap_or(&everything).classic(&options)?;
            text.push_str(&crate::filter::dump(&classic, self.dump)?);
        }
        write_out(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Refuses interfaces whose link type differs from the one that -y requests.
pub(super) fn check_link_type(wanted: &str, sites: &[CaptureSite]) -> Result<()> {
    let differs = |site: &&CaptureSite| !name_of(site.interface.link_type).eq_ignore_ascii_case(wanted);
    match sites.iter().find(differs) {
        Some(site) => Err(Error::usage(
            format!("cannot capture on {} with link type {wanted}", site.label),
            format!("its packets are {}", name_of(site.interface.link_type)),
        )
        .fix("leave out -y; -L lists an interface's types")),
        None => Ok(()),
    }
}

/// Returns libpcap's name of a link type.
fn name_of(link_type: u16) -> &'static str {
    match link_type {
        LINKTYPE_ETHERNET => "EN10MB",
        LINKTYPE_RAW => "RAW",
        _ => "unknown",
    }
}
