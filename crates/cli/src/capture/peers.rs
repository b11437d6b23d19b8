//! Arguments of the taps that use other projects' libraries and mechanisms.

use std::path::PathBuf;

use trawl_plan::TapChoice;
use trawl_plan::options::Peers;
use trawl_sys::{Error, Result};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Other libraries and mechanisms")]
pub struct PeerArgs {
    /// The libpcap that compiles the filter, and that --tap pcap uses; loaded only for these [default: the system's]
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    pub libpcap: Option<PathBuf>,
    /// Prefix of the DPDK application that --tap dpdk captures, as in its --file-prefix option [default: rte]
    #[arg(long, value_name = "PREFIX", hide_short_help = true)]
    pub file_prefix: Option<String>,
    /// Let a tap take packets away from the network stack, as netmap and PF_RING ZC do
    #[arg(long, hide_short_help = true)]
    pub steal: bool,
}

impl PeerArgs {
    pub fn resolve(&self) -> Peers {
        Peers { library: self.libpcap.clone(), file_prefix: self.file_prefix.clone(), steal: self.steal }
    }

    /// Refuses options of other taps than the chosen one, since they would have no effect.
    pub fn check(&self, tap: TapChoice) -> Result<()> {
        if self.file_prefix.is_some() && tap != TapChoice::Dpdk {
            return Err(Error::usage(
                format!("cannot use --file-prefix with the {tap} tap"),
                "only the dpdk tap looks for DPDK applications",
            )
            .fix("leave out --file-prefix, or use --tap dpdk"));
        }
        if let Some(prefix) = &self.file_prefix
            && (prefix.is_empty() || prefix.contains('/') || prefix.starts_with('.'))
        {
            return Err(Error::usage(
                format!("cannot use the file prefix {prefix:?}"),
                "it is the name of a directory under /run/dpdk",
            ));
        }
        if self.steal && tap != TapChoice::Pcap {
            return Err(Error::usage(
                format!("cannot use --steal with the {tap} tap"),
                "only the pcap tap uses a libpcap to capture",
            )
            .fix("leave out --steal, or use --tap pcap"));
        }
        Ok(())
    }
}
