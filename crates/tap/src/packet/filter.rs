//! The filter as a packet socket wants it: for the program that counts what it rejects and, should the kernel not take
//! that, as the classic program it is made from.

use trawl_filter::classic::Classic;
use trawl_filter::lower::Target;
use trawl_io::packet_socket::{Filter, Instruction, Queue};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_sys::{Error, Result};

use crate::capture_site::CaptureSite;
use crate::filter::Block;
use crate::options::Options;

#[derive(Debug)]
pub struct Prepared {
    queue: Option<Queue>,
    cpu: Option<u32>,
    /// Nothing where it asks what a socket's program cannot answer.
    block: Option<Block>,
    /// Nothing where it has loops, which the kernel's classic programs cannot have.
    classic: Option<Vec<Instruction>>,
    /// Why there is no block.
    pub refusal: Option<Error>,
}

impl Prepared {
    /// Nothing if every packet is wanted.
    pub fn new(options: &Options, site: &CaptureSite, snaplen: u32) -> Result<Option<Self>> {
        let queue = options.queue.filter(|_| !site.has_one_queue());
        let queue = queue.map(|number| Queue {
            number,
            received_offset: site.interface.received_queue_offset(),
        });
        let mut prepared = Self {
            queue,
            cpu: options.cpu,
            block: Some(Block::default()),
            // Wants every packet; 0 would reject them.
            classic: Some(vec![Instruction {
                code: 0x06,
                jt: 0,
                jf: 0,
                k: snaplen.max(1),
            }]),
            refusal: None,
        };
        let Some(filter) = &options.filter else {
            return Ok((queue.is_some() || options.cpu.is_some()).then_some(prepared));
        };
        let classic = filter.at_site(site, snaplen.max(1))?;
        prepared.classic = classic.fits_socket().then(|| instructions(&classic));
        let target = Target {
            // Only Ethernet frames have a place for a tag that stands beside them.
            vlan_out_of_band: site.interface.link_type == LINKTYPE_ETHERNET,
            ..Target::socket()
        };
        match filter.block(site, snaplen.max(1), &target) {
            Ok(block) => prepared.block = Some(block),
            Err(error) if prepared.classic.is_none() => return Err(error),
            Err(error) => {
                prepared.block = None;
                prepared.refusal = Some(error);
            }
        }
        Ok(Some(prepared))
    }

    pub fn for_socket(&self) -> Filter<'_> {
        Filter {
            queue: self.queue,
            cpu: self.cpu,
            block: self.block.as_deref(),
            classic: self.classic.as_deref(),
        }
    }
}

pub(crate) fn instructions(classic: &Classic) -> Vec<Instruction> {
    let of_kernel = |one: &trawl_filter::Instruction| Instruction {
        code: one.code,
        jt: one.jt,
        jf: one.jf,
        k: one.k,
    };
    classic.instructions().iter().map(of_kernel).collect()
}
