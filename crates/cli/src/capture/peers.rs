//! Arguments of the taps that other people's libraries and mechanisms serve.

use std::path::PathBuf;

use clap::ValueEnum;
use trawl_capture::Choice;
use trawl_capture::options::Peers;
use trawl_io::packet_socket::{Fanout, Reading};
use trawl_sys::{Error, Result};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Other libraries and mechanisms")]
pub struct PeerArgs {
    /// The libpcap that compiles the filter, and that --tap pcap uses; loaded only for these [default: the system's]
    #[arg(long, value_name = "PATH")]
    pub libpcap: Option<PathBuf>,
    /// Which DPDK application --tap dpdk captures: the --file-prefix that it was started with [default: rte]
    #[arg(long, value_name = "PREFIX")]
    pub file_prefix: Option<String>,
    /// Let a tap take the packets away from the network stack, as netmap and PF_RING ZC do
    #[arg(long)]
    pub steal: bool,
    /// How to read packets from the packet tap's sockets [default: v3]
    #[arg(long, value_enum, value_name = "WAY")]
    pub packet_ring: Option<Ring>,
    /// How to distribute packets over the packet tap's sockets [default: cpu]
    #[arg(long, value_enum, value_name = "WAY")]
    pub fanout: Option<Share>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Ring {
    /// A call for each packet
    Recvmsg,
    /// A call for up to 32 packets
    Recvmmsg,
    /// TPACKET_V2: shared memory with a slot for each packet
    V2,
    /// TPACKET_V3: shared memory with blocks of packets
    V3,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Share {
    /// By flow
    Hash,
    /// By the CPU that handles the packet
    Cpu,
    /// By a BPF program, which answers with the CPU
    Ebpf,
}

impl PeerArgs {
    pub fn resolve(&self) -> Peers {
        Peers {
            library: self.libpcap.clone(),
            file_prefix: self.file_prefix.clone(),
            steal: self.steal,
            reading: match self.packet_ring {
                Some(Ring::Recvmsg) => Reading::Recvmsg,
                Some(Ring::Recvmmsg) => Reading::Recvmmsg,
                Some(Ring::V2) => Reading::V2,
                Some(Ring::V3) | None => Reading::V3,
            },
            fanout: match self.fanout {
                Some(Share::Hash) => Fanout::Hash,
                Some(Share::Ebpf) => Fanout::Ebpf,
                Some(Share::Cpu) | None => Fanout::Cpu,
            },
        }
    }

    /// What is asked of another tap than the one chosen would have no effect.
    pub fn check(&self, tap: Choice) -> Result<()> {
        if self.file_prefix.is_some() && tap != Choice::Dpdk {
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
        let of_packet = [
            (self.packet_ring.is_some(), "--packet-ring"),
            (self.fanout.is_some(), "--fanout"),
        ];
        if let Some((_, option)) = of_packet
            .iter()
            .find(|(given, _)| *given && tap != Choice::Packet)
        {
            return Err(Error::usage(
                format!("cannot use {option} with the {tap} tap"),
                "only the packet tap reads packet sockets",
            )
            .fix(format!("leave out {option}, or use --tap packet")));
        }
        if self.steal && tap != Choice::Pcap {
            return Err(Error::usage(
                format!("cannot use --steal with the {tap} tap"),
                "only the pcap tap uses a libpcap to capture",
            )
            .fix("leave out --steal, or use --tap pcap"));
        }
        Ok(())
    }
}
