//! Options of the commands that print packets: `trawl capture`, `trawl read` and `trawl store query`.

use clap::{ArgAction, ValueEnum};
use trawl_sys::clock;
use trawl_view::print::{Dump, DumpForm, Precision, PrintOptions, Timestamp};

/// Options for packets that are printed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Printing")]
pub struct LineArgs {
    /// Show the link layer's header
    #[arg(short = 'e', hide_short_help = true)]
    link_header: bool,
    /// Show numbers instead of names; trawl always does
    #[arg(short = 'n', action = ArgAction::Count, hide_short_help = true)]
    numeric: u8,
    /// Show names without their domain; trawl shows numbers
    #[arg(short = 'N', hide_short_help = true)]
    without_domain: bool,
    /// -t no time, -tt seconds since 1970, -ttt since the last packet, -tttt with the date, -ttttt since the first
    #[arg(short = 't', action = ArgAction::Count, hide_short_help = true)]
    time: u8,
    /// Show the packet's bytes in hex; -xx with the link layer's header
    #[arg(short = 'x', action = ArgAction::Count, hide_short_help = true)]
    hex: u8,
    /// Show the packet's bytes in hex and ASCII; -XX with the link layer's header
    #[arg(short = 'X', action = ArgAction::Count, hide_short_help = true)]
    hex_ascii: u8,
    /// Show the packet's bytes in ASCII
    #[arg(short = 'A', action = ArgAction::Count, hide_short_help = true)]
    ascii: u8,
    /// Show more of each header; more with -vv
    #[arg(short = 'v', action = ArgAction::Count)]
    verbosity: u8,
    /// Show TCP sequence numbers as they are, not from the start of the conversation
    #[arg(short = 'S', long = "absolute-tcp-sequence-numbers", hide_short_help = true)]
    absolute_sequence: bool,
    /// Do not verify checksums: for packets whose checksums the sending card computes
    #[arg(short = 'K', long = "dont-verify-checksums", hide_short_help = true)]
    trust_checksums: bool,
    /// Show a number in front of each packet
    #[arg(short = '#', long, hide_short_help = true)]
    number: bool,
    /// Show times with six digits after the second
    #[arg(long, conflicts_with = "nano", hide_short_help = true)]
    micro: bool,
    /// Show times with nine digits after the second
    #[arg(long, hide_short_help = true)]
    nano: bool,
    /// tcpdump's name for --micro and --nano
    #[arg(long, value_enum, value_name = "PRECISION", conflicts_with_all = ["micro", "nano"], hide_short_help = true)]
    time_stamp_precision: Option<PrecisionName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PrecisionName {
    Micro,
    Nano,
}

impl LineArgs {
    /// Returns true for -v.
    pub fn is_verbose(&self) -> bool {
        self.verbosity > 0
    }

    /// Returns the number of digits of times, if it was given.
    pub fn precision(&self) -> Option<Precision> {
        match (self.micro, self.nano, self.time_stamp_precision) {
            (true, ..) | (_, _, Some(PrecisionName::Micro)) => Some(Precision::Micro),
            (_, true, _) | (_, _, Some(PrecisionName::Nano)) => Some(Precision::Nano),
            _ => None,
        }
    }

    pub fn options(&self, quick: bool) -> PrintOptions {
        let dump = |count: u8, form| (count > 0).then_some(Dump { form, link_header: count > 1 });
        PrintOptions {
            link_header: self.link_header,
            timestamp: match self.time {
                0 => Timestamp::Default,
                1 => Timestamp::None,
                2 => Timestamp::Epoch,
                3 => Timestamp::DeltaPrevious,
                4 => Timestamp::Date,
                _ => Timestamp::DeltaFirst,
            },
            utc_offset: Some(clock::local_offset()),
            verbosity: self.verbosity,
            dump: dump(self.hex_ascii, DumpForm::HexAscii)
                .or_else(|| dump(self.hex, DumpForm::Hex))
                .or_else(|| dump(self.ascii, DumpForm::Ascii)),
            number: self.number,
            quick,
            absolute_sequence: self.absolute_sequence,
            trust_checksums: self.trust_checksums,
            id: false,
            colour: false,
            datagrams: None,
            interface_names: None,
            precision: self.precision().unwrap_or(Precision::Nano),
        }
    }

    /// Returns the options as they were typed, for another program of trawl's.
    pub fn typed(&self) -> Vec<String> {
        let Self {
            link_header,
            numeric,
            without_domain,
            time,
            hex,
            hex_ascii,
            ascii,
            verbosity,
            absolute_sequence,
            trust_checksums,
            number,
            micro: _,
            nano: _,
            time_stamp_precision: _,
        } = *self;
        let letters = [
            ("e", u8::from(link_header)),
            ("n", numeric),
            ("N", u8::from(without_domain)),
            ("t", time),
            ("x", hex),
            ("X", hex_ascii),
            ("A", ascii),
            ("v", verbosity),
            ("S", u8::from(absolute_sequence)),
            ("K", u8::from(trust_checksums)),
            ("#", u8::from(number)),
        ];
        let given = letters.into_iter().filter(|(_, count)| *count > 0);
        let mut typed: Vec<String> = given.map(|(letter, count)| format!("-{}", letter.repeat(count.into()))).collect();
        typed.extend(self.precision().map(|precision| {
            match precision {
                Precision::Micro => "--micro",
                Precision::Nano => "--nano",
            }
            .to_owned()
        }));
        typed
    }
}
