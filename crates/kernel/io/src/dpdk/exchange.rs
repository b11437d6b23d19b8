//! The memory that is shared with the helper: its first page says what to do and what is done, and a ring of finished
//! blocks follows. The protocol is told in dpdk/exchange.h.

use std::mem::offset_of;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::dpdk::{
    COMMAND_GO, COMMAND_STOP, EXCHANGE_ALIGN, EXCHANGE_ALL_QUEUES, EXCHANGE_FILTER_MAX,
    EXCHANGE_HEADER, EXCHANGE_PORTS, Exchange, ExchangeInstruction, ExchangePort,
};
use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result};

use super::Request;

const BLOCK_ENHANCED_PACKET: u32 = 6;
/// A header and the length once more.
const BLOCK_LEAST: u64 = 32;
/// The ring is given back to the helper in this many pieces.
const GIVEN_BACK_IN: u64 = 64;

/// A port's counts, by DPDK and by the helper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub accepted: u64,
    pub filtered: u64,
    pub no_buffer: u64,
    pub ring_full: u64,
    pub handed_over: u64,
}

/// The reading side of the ring.
#[derive(Debug)]
pub struct Blocks {
    pub(super) exchange: Arc<Mapping>,
    pub(super) ring_bytes: u64,
    pub(super) tail: u64,
}

/// The ring's contents are not what they should be.
#[derive(Clone, Copy, Debug)]
pub struct Broken;

impl Blocks {
    /// From this time on more may come, in nanoseconds since 1970. To be asked before `take`, which then shows all that
    /// is earlier.
    pub fn horizon(&self) -> u64 {
        word(&self.exchange, offset_of!(Exchange, horizon)).load(Ordering::Acquire)
    }

    /// The helper has said all: what `take` shows from now on is the rest.
    pub fn is_done(&self) -> bool {
        word(&self.exchange, offset_of!(Exchange, done)).load(Ordering::Acquire) != 0
    }

    pub fn counts(&self, port: usize) -> Counts {
        let base =
            offset_of!(Exchange, ports) + size_of::<ExchangePort>() * (port % EXCHANGE_PORTS);
        let of = |offset| word(&self.exchange, base + offset).load(Ordering::Acquire);
        Counts {
            accepted: of(offset_of!(ExchangePort, accepted)),
            filtered: of(offset_of!(ExchangePort, filtered)),
            no_buffer: of(offset_of!(ExchangePort, no_buffer)),
            ring_full: of(offset_of!(ExchangePort, ring_full)),
            handed_over: of(offset_of!(ExchangePort, handed_over)),
        }
    }

    pub fn tell_to_stop(&self) {
        stop(&self.exchange);
    }

    /// Shows the blocks that are there, each whole; says how many.
    pub fn take(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<u64, Broken> {
        let head = word(&self.exchange, offset_of!(Exchange, head)).load(Ordering::Acquire);
        if head.wrapping_sub(self.tail) > self.ring_bytes {
            return Err(Broken);
        }
        // The helper reads that word: it is not written for each block.
        let piece = self.ring_bytes / GIVEN_BACK_IN;
        let (mut shown, mut given_back) = (0, self.tail);
        while self.tail != head {
            let at = self.tail % self.ring_bytes;
            let finished = (head - self.tail).min(self.ring_bytes - at);
            self.tail += match self.length(at, finished)? {
                0 => self.ring_bytes - at,
                length => {
                    show(self.bytes(at, length));
                    shown += 1;
                    length.next_multiple_of(EXCHANGE_ALIGN as u64)
                }
            };
            if self.tail > head {
                return Err(Broken);
            }
            if self.tail - given_back >= piece {
                given_back = self.tail;
                self.give_back();
            }
        }
        self.give_back();
        Ok(shown)
    }

    /// The helper may write again up to where has been read.
    fn give_back(&self) {
        word(&self.exchange, offset_of!(Exchange, tail)).store(self.tail, Ordering::Release);
    }

    /// How long the block at this place is, of which this many bytes are finished; 0 where the rest is left empty.
    fn length(&self, at: u64, finished: u64) -> Result<u64, Broken> {
        let place = EXCHANGE_HEADER + at as usize;
        if finished < EXCHANGE_ALIGN as u64 {
            return Err(Broken);
        }
        match self.exchange.short(place).load(Ordering::Relaxed) {
            0 => Ok(0),
            BLOCK_ENHANCED_PACKET => {
                let length = u64::from(self.exchange.short(place + 4).load(Ordering::Relaxed));
                (length >= BLOCK_LEAST && length.is_multiple_of(4) && length <= finished)
                    .then_some(length)
                    .ok_or(Broken)
            }
            _ => Err(Broken),
        }
    }

    fn bytes(&self, at: u64, length: u64) -> &[u8] {
        let start = self.exchange.at(EXCHANGE_HEADER + at as usize);
        let _ = self.exchange.at(EXCHANGE_HEADER + (at + length) as usize);
        // SAFETY: the range lies within the mapping (just checked), was finished before the head was read with acquire
        // ordering, and the helper does not write there again before the tail has passed it, which needs `&mut self`.
        unsafe { slice::from_raw_parts(start, length as usize) }
    }
}

/// How long the memory is for a ring of this length.
pub(super) fn length(ring_bytes: u64) -> u64 {
    EXCHANGE_HEADER as u64 + ring_bytes
}

fn word(exchange: &Mapping, offset: usize) -> &AtomicU64 {
    exchange.word(offset)
}

pub(super) fn go(exchange: &Mapping) {
    word(exchange, offset_of!(Exchange, command)).store(COMMAND_GO as u64, Ordering::Release);
}

pub(super) fn stop(exchange: &Mapping) {
    word(exchange, offset_of!(Exchange, command)).store(COMMAND_STOP as u64, Ordering::Release);
}

/// Puts in what the helper is to do.
pub(super) fn fill(exchange: &mut Mapping, request: &Request<'_>, ring_bytes: u64) -> Result<()> {
    if request.filter.len() > EXCHANGE_FILTER_MAX {
        let why = format!(
            "it has {} instructions, and DPDK takes {EXCHANGE_FILTER_MAX}",
            request.filter.len()
        );
        return Err(Error::failed(
            "cannot use this filter with the dpdk tap",
            why,
        ));
    }
    exchange.write(offset_of!(Exchange, ring_bytes), &ring_bytes.to_ne_bytes());
    let mut number = |offset, value: u32| exchange.write(offset, &value.to_ne_bytes());
    number(offset_of!(Exchange, snaplen), request.snaplen);
    number(
        offset_of!(Exchange, queue),
        request.queue.unwrap_or(EXCHANGE_ALL_QUEUES as u32),
    );
    number(offset_of!(Exchange, directions), request.directions);
    number(
        offset_of!(Exchange, filter_length),
        request.filter.len() as u32,
    );
    for (place, one) in request.filter.iter().enumerate() {
        let instruction = ExchangeInstruction {
            operation: u32::from(one.code) | u32::from(one.jt) << 16 | u32::from(one.jf) << 24,
            k: one.k,
        };
        let at = offset_of!(Exchange, filter) + size_of::<ExchangeInstruction>() * place;
        exchange.write(at, &instruction.to_bytes());
    }
    Ok(())
}
