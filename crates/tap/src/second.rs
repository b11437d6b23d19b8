//! A second look in user space. Where the kernel does not take a filter (the verifier refuses the program, or it is too
//! long), the tap is attached without it, and the packets that do not match are left out here and counted.

use std::cell::RefCell;
use std::rc::Rc;

use trawl_kernel::layout::RECORD_MAX_CAPTURED;
use trawl_kernel::ring::Lease;
use trawl_kernel::{Error, Result};
use trawl_packet::pcapng::block::{ByteOrder, blocks};
use trawl_view::select::{Question, Selector};

use crate::account::Account;
use crate::assembly::Point;
use crate::filter::{Filter, compiler_options};
use crate::options::{At, Options};
use crate::sink::Sink;
use crate::site::Site;
use crate::stream::Stream;

/// What became of packets, by interface block.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    pub passed: Vec<u64>,
    pub filtered_out: Vec<u64>,
    /// They came after -c's number had been reached, and do not count at all.
    pub beyond: Vec<u64>,
}

impl Fates {
    pub fn passed_total(&self) -> u64 {
        self.passed.iter().sum()
    }

    /// Moves what the kernel counted as recorded to where it belongs.
    pub fn correct(&self, account: &mut Account, interfaces: &[u32]) {
        let sum = |list: &[u64]| -> u64 {
            let of = interfaces.iter().filter_map(|id| list.get(*id as usize));
            of.sum()
        };
        let (filtered_out, beyond) = (sum(&self.filtered_out), sum(&self.beyond));
        account.recorded = account.recorded.saturating_sub(filtered_out + beyond);
        account.filtered_out += filtered_out;
        account.seen = account.seen.saturating_sub(beyond);
    }
}

/// One more packet of an interface block.
pub(crate) fn count_in(list: &mut Vec<u64>, interface: u32) {
    let interface = interface as usize;
    if list.len() <= interface {
        list.resize(interface + 1, 0);
    }
    list[interface] += 1;
}

#[derive(Debug)]
pub(crate) struct SecondLook {
    /// By site, with the link type of its packets.
    selectors: Vec<(Selector, u16)>,
    /// The site of each interface block.
    sites: Vec<usize>,
    most: Option<u64>,
    pub fates: Rc<RefCell<Fates>>,
}

/// Whether the kernel's refusal to take a filter can be made good for by a look at what was recorded.
fn can_serve(options: &Options) -> bool {
    // What is chosen among the packets that match cannot be chosen before it is known which do; both ends of a program
    // are decided on at once; and a packet that was cut is not judged as a whole one is.
    options.drops.is_none()
        && options.sample.is_none()
        && options.rate_limit.is_none()
        && options.at != Some(At::Both)
        && options.filter_at != Some(At::Entry)
        && options.snaplen as usize >= RECORD_MAX_CAPTURED
}

impl SecondLook {
    /// `None` where this error has another cause, or the look cannot give the same answer.
    pub fn instead_of(error: &Error, sites: &[Site], options: &Options) -> Result<Option<Self>> {
        let Some(filter) = &options.filter else {
            return Ok(None);
        };
        let by_kernel = error.what().starts_with("cannot load the program")
            && error.why().starts_with("the verifier says");
        let too_long = error.what() == "cannot use this filter";
        if !(by_kernel || too_long) || !can_serve(options) {
            return Ok(None);
        }
        let question = match filter {
            Filter::Expression(text) => Question::Expression(text.clone()),
            Filter::Inner(text) => Question::Inner(text.clone()),
            Filter::Classic(text) => Question::Classic(text.clone()),
        };
        let mut selectors = Vec::new();
        for site in sites {
            let compiler = compiler_options(site, options.snaplen)?;
            let mut selector = Selector::new(question.clone(), compiler);
            let link_type = site.interface.link_type;
            // What is wrong with the filter itself was said by the error.
            if selector.prepare((link_type, ByteOrder::Little)).is_err() {
                return Ok(None);
            }
            selectors.push((selector, link_type));
        }
        Ok(Some(Self {
            selectors,
            sites: Vec::new(),
            most: options.count,
            fates: Rc::default(),
        }))
    }

    /// Once it is known which interface blocks there are.
    pub fn begin(&mut self, points: &[Point], interfaces: usize) {
        self.sites = vec![0; interfaces];
        for point in points {
            for interface in &point.interfaces {
                self.sites[*interface as usize] = point.site.unwrap_or_default();
            }
        }
    }

    pub fn over<'s>(&'s mut self, sink: &'s mut dyn Sink) -> Chosen<'s> {
        Chosen { look: self, sink }
    }

    fn wants(&mut self, interface: u32, captured: &[u8], length: u32) -> Result<bool> {
        let site = self
            .sites
            .get(interface as usize)
            .copied()
            .unwrap_or_default();
        let fates = &mut *self.fates.borrow_mut();
        if self.most.is_some_and(|most| fates.passed_total() >= most) {
            count_in(&mut fates.beyond, interface);
            return Ok(false);
        }
        let matches = match self.selectors.get_mut(site) {
            Some((selector, link_type)) => selector
                .matches((*link_type, ByteOrder::Little), captured, length)
                .map_err(|e| Error::failed("cannot use this filter", e))?,
            None => true,
        };
        let list = match matches {
            true => &mut fates.passed,
            false => &mut fates.filtered_out,
        };
        count_in(list, interface);
        Ok(matches)
    }
}

/// Hands on the blocks of the packets that match.
pub(crate) struct Chosen<'s> {
    look: &'s mut SecondLook,
    sink: &'s mut dyn Sink,
}

impl Sink for Chosen<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        // Neighbours go on together.
        let (mut from, mut to) = (0, 0);
        for block in blocks(bytes) {
            let end = to + block.bytes.len();
            let wanted = match block.enhanced_packet() {
                Some(packet) => {
                    let (interface, length) = (packet.interface_id, packet.original_len);
                    self.look.wants(interface, packet.captured, length)?
                }
                None => true,
            };
            if !wanted {
                if from < to {
                    self.sink.write(&bytes[from..to])?;
                }
                from = end;
            }
            to = end;
        }
        match from < to {
            true => self.sink.write(&bytes[from..to]),
            false => Ok(()),
        }
    }

    fn rest(&mut self) -> Result<()> {
        self.sink.rest()
    }

    fn take(&mut self, segment: Lease) -> Result<()> {
        self.write(segment.bytes())
    }

    fn lost(&self) -> Vec<(u32, &'static str, u64)> {
        self.sink.lost()
    }

    fn found(&self) -> Option<Vec<u64>> {
        self.sink.found()
    }

    fn settle(&mut self) -> Result<()> {
        self.sink.settle()
    }

    fn added_interfaces(&self) -> Vec<(u32, u64)> {
        self.sink.added_interfaces()
    }

    fn take_unwritten(&mut self) -> Vec<u8> {
        self.sink.take_unwritten()
    }

    fn stream(&mut self) -> Option<&mut Stream> {
        self.sink.stream()
    }
}
