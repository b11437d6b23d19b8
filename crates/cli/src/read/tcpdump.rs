//! tcpdump's options that mean nothing for a file, have another name here, or that trawl does not have.

use clap::ArgAction;
use trawl_filter::Options;
use trawl_filter::select::options_for;
use trawl_packet::pcapng::Direction;
use trawl_sys::{Error, Result};
use trawl_tap::filter::Filter;
use trawl_view::print::Datagrams;

use super::input::Input;
use crate::capture::args::DirectionName;
use crate::terminal::write_out;

/// tcpdump's options that mean nothing for a file, or that trawl does anyway.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Accepted from tcpdump")]
pub(super) struct TcpdumpArgs {
    /// Show the filter's classic program for the first file and end: -dd as C, -ddd as numbers
    #[arg(short = 'd', action = ArgAction::Count)]
    dump: u8,
    /// Do not optimise the program that -d shows
    #[arg(short = 'O', long)]
    no_optimize: bool,
    /// Show all UDP datagrams as this protocol, whatever their ports
    #[arg(short = 'T', value_name = "TYPE")]
    packet_type: Option<String>,
    /// Only packets of this direction, and those whose direction is not known
    #[arg(short = 'Q', long, value_enum, value_name = "WAY")]
    direction: Option<DirectionName>,
    /// No promiscuous mode: nothing is captured
    #[arg(short = 'p', long)]
    no_promiscuous_mode: bool,
    /// No monitor mode: nothing is captured
    #[arg(short = 'I', long)]
    monitor_mode: bool,
    /// Deliver packets at once: nothing is captured
    #[arg(long)]
    immediate_mode: bool,
    /// The most bytes to capture of a packet: a file's packets are as they were captured
    #[arg(
        short = 's',
        long = "snapshot-length",
        visible_alias = "snaplen",
        value_name = "BYTES"
    )]
    snapshot_length: Option<u32>,
    /// Memory for packets on their way: nothing is captured
    #[arg(short = 'B', long, value_name = "KIB")]
    buffer_size: Option<u64>,
    /// Whose clock stamps packets: a file's packets have their times
    #[arg(short = 'j', long = "time-stamp-type", value_name = "TYPE")]
    time_stamp_type: Option<String>,
    /// List the types for -j: a file has none, its packets are shown
    #[arg(short = 'J', long)]
    list_time_stamp_types: bool,
    /// Link type: a file says its own
    #[arg(short = 'y', long = "linktype", value_name = "TYPE")]
    link_type: Option<String>,
    /// List the types for -y: a file has one for each interface, its packets are shown
    #[arg(short = 'L', long)]
    list_data_link_types: bool,
    /// AS numbers in ASDOT, NFS handles as they are, and 802.11s: trawl shows none of them
    #[arg(short = 'b', short_aliases = ['u', 'H'], action = ArgAction::Count)]
    not_shown: u8,
    /// What trawl does not have of tcpdump is refused by name.
    #[arg(short = 'E', value_name = "KEY", hide = true)]
    decrypt: Option<String>,
    #[arg(short = 'M', value_name = "SECRET", hide = true)]
    secret: Option<String>,
    #[arg(short = 'm', value_name = "MODULE", hide = true)]
    module: Option<String>,
}

/// The types of -T that are decoded, by tcpdump's names.
const DATAGRAMS: [(&str, Datagrams); 6] = [
    ("domain", Datagrams::Domain),
    ("quic", Datagrams::Quic),
    ("radius", Datagrams::Radius),
    ("snmp", Datagrams::Snmp),
    ("tftp", Datagrams::Tftp),
    ("vxlan", Datagrams::Vxlan),
];

impl TcpdumpArgs {
    /// Refuses what trawl does not have.
    pub fn refuse(&self) -> Result<()> {
        let missing = [
            (
                self.decrypt.is_some(),
                "-E",
                "trawl does not decrypt ESP",
                "leave out -E, or decrypt with tcpdump -E or tshark",
            ),
            (
                self.secret.is_some(),
                "-M",
                "trawl does not check TCP-MD5 digests",
                "leave out -M, or check them with tcpdump -M",
            ),
            (
                self.module.is_some(),
                "-m",
                "trawl shows SNMP's object identifiers as numbers",
                "leave out -m, or show their names with tshark",
            ),
        ];
        match missing.into_iter().find(|(is_given, ..)| *is_given) {
            Some((_, option, why, instead)) => Err(Error::usage(
                format!("cannot do what tcpdump does for {option}"),
                why,
            )
            .fix(instead)),
            None => Ok(()),
        }
    }

    /// The direction that packets must not have.
    pub fn unwanted_direction(&self) -> Option<Direction> {
        match self.direction? {
            DirectionName::In => Some(Direction::Out),
            DirectionName::Out => Some(Direction::In),
            DirectionName::Inout => None,
        }
    }

    /// As what all datagrams are shown.
    pub fn datagrams(&self) -> Result<Option<Datagrams>> {
        let Some(name) = &self.packet_type else {
            return Ok(None);
        };
        match DATAGRAMS.iter().find(|(known, _)| known == name) {
            Some((_, datagrams)) => Ok(Some(*datagrams)),
            None => {
                let known = DATAGRAMS.map(|(name, _)| name).join(", ");
                Err(Error::usage(
                    format!("cannot show datagrams as {name}"),
                    format!("trawl decodes these under -T: {known}"),
                )
                .fix("leave out -T, or decode with tcpdump -T or tshark -d"))
            }
        }
    }

    /// Whether the filter's program is asked for in place of packets.
    pub fn dump(&self) -> Option<ProgramDump> {
        (self.dump > 0).then_some(ProgramDump {
            form: self.dump,
            optimise: !self.no_optimize,
        })
    }
}

/// How the filter's classic program is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramDump {
    form: u8,
    optimise: bool,
}

impl ProgramDump {
    /// Shows the program as the packets of this file are asked.
    pub fn show(self, filter: Option<&Filter>, input: &Input) -> Result<()> {
        let first = input.reader.interfaces().first();
        let unlimited = super::filter_options();
        let options = Options {
            snaplen: match first.map(|interface| interface.snaplen) {
                None | Some(0) => unlimited.snaplen,
                Some(snaplen) => snaplen,
            },
            optimise: self.optimise,
            ..unlimited
        };
        let everything = Filter::Expression(String::new());
        let classic = filter
            .unwrap_or(&everything)
            .classic(&options_for(options, input.first_kind()))?;
        write_out(&crate::filter::dump(&classic, self.form)?)
    }
}
