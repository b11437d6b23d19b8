//! The `packet` tap: AF_PACKET sockets with TPACKET_V3 rings, one for each CPU by fanout; for everything else.

use trawl_kernel::{Error, Result};

use crate::assembly::Assembly;
use crate::site::Site;
use crate::{Attached, Gives, Tap};

#[derive(Debug)]
pub struct Packet;

impl Tap for Packet {
    fn name(&self) -> &'static str {
        "packet"
    }

    fn gives(&self) -> Gives {
        Gives {
            received: true,
            sent: true,
            verdict: false,
            hardware_time: true,
            takes_packets_away: false,
        }
    }

    fn attach(
        &self,
        _index: usize,
        _site: &Site,
        _assembly: &mut Assembly<'_>,
    ) -> Result<Box<dyn Attached>> {
        Err(Error::failed(
            "cannot use the packet tap",
            "it is being built",
        ))
    }
}
