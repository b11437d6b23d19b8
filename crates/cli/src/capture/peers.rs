//! Arguments of the taps that other people's libraries and mechanisms serve.

use std::path::PathBuf;

use trawl_kernel::{Error, Result};
use trawl_tap::Choice;
use trawl_tap::site::Peers;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Other libraries and mechanisms")]
pub struct PeerArgs {
    /// The libpcap that --tap pcap uses [default: the system's]
    #[arg(long, value_name = "PATH")]
    pub libpcap: Option<PathBuf>,
    /// Let a tap take the packets away from the network stack, as netmap and PF_RING ZC do
    #[arg(long)]
    pub steal: bool,
}

impl PeerArgs {
    pub fn resolve(&self) -> Peers {
        Peers {
            library: self.libpcap.clone(),
            steal: self.steal,
        }
    }

    /// What is asked of another tap than the one chosen would have no effect.
    pub fn check(&self, tap: Choice) -> Result<()> {
        let of_pcap = [
            (self.libpcap.is_some(), "--libpcap"),
            (self.steal, "--steal"),
        ];
        match of_pcap
            .iter()
            .find(|(given, _)| *given && tap != Choice::Pcap)
        {
            Some((_, option)) => Err(Error::usage(
                format!("cannot use {option} with the {tap} tap"),
                "only the pcap tap uses a libpcap to capture",
            )
            .mend(format!("leave out {option}, or use --tap pcap"))),
            None => Ok(()),
        }
    }
}
