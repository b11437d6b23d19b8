//! Settings of the measured programs.

use std::fmt;

use trawl_lab::LineOptions;

/// Settings of a program that its user chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub options: &'static [&'static str],
    /// Receive offload of the interface. Only XDP programs in native mode need it; it costs the stack time.
    pub gro: bool,
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.options {
            [] => f.write_str("defaults")?,
            options => f.write_str(&options.join(" "))?,
        }
        f.write_str(if self.gro { "" } else { ", GRO off" })
    }
}

impl From<Configuration> for LineOptions {
    fn from(Configuration { gro, .. }: Configuration) -> Self {
        Self { gro, ..Self::default() }
    }
}

impl Configuration {
    /// Returns the number of bytes up to which xdpcap leaves packets in its buffer. It loses these packets when it
    /// ends, whatever the rate.
    pub fn held_back(self) -> u64 {
        let mut options = self.options.iter();
        let watermark = options.find(|option| **option == "-watermark");
        let bytes = watermark.and_then(|_| options.next());
        bytes.map_or(0, |bytes| bytes.parse().unwrap_or(0))
    }
}

pub const fn with_gro(options: &'static [&'static str]) -> Configuration {
    Configuration { options, gro: true }
}

pub const fn without_gro(options: &'static [&'static str]) -> Configuration {
    Configuration { options, gro: false }
}

/// Configuration without any option.
pub const DEFAULTS: Configuration = with_gro(&[]);

/// The grid of a program without options that matter.
pub const ONLY_DEFAULTS: [Configuration; 1] = [DEFAULTS];

/// Configurations of programs that handle packets in the network stack.
pub const IN_STACK: [Configuration; 2] = [DEFAULTS, without_gro(&[])];
