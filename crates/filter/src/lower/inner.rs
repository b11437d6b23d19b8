//! Filters on the packet inside a tunnel: VXLAN, GENEVE, GRE, IP in IP.
//!
//! The way to the inner packet is itself a classic program (see `locator`), lowered like any
//! other; what it returns is the inner packet's offset and kind. The expression, compiled once for
//! Ethernet frames and once for bare IP packets, then runs on a packet that begins there. The
//! outermost tunnel is the one that counts.

mod locator;

use super::assembler::Label;
use super::emit::{Emitter, Mode, Returns, View};
use super::layout::{reg, slot};
use super::{Hook, Lowered, Target};
use crate::classic::Classic;
use crate::error::FilterError;
use crate::expression::{LinkType, Options, compile};
use trawl_ebpf::op;

/// Greatest offset at which an inner packet is looked for; headers and options end before.
const GREATEST_BASE: u32 = 1023;

/// An expression for inner packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inner {
    /// For inner packets that are Ethernet frames.
    pub ethernet: Classic,
    /// For inner packets that are bare IP.
    pub raw: Classic,
}

/// An inner packet's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    base: usize,
    is_raw: bool,
}

impl Inner {
    /// Compiles an expression for inner packets of both kinds. What libpcap cannot ask of a bare IP
    /// packet (`ether host`, `arp`) matches none.
    pub fn compile(expression: &str, options: &Options) -> Result<Self, FilterError> {
        let with = |link| Options { link, ..*options };
        let ethernet = compile(expression, &with(LinkType::ETHERNET))?;
        let raw = compile(expression, &with(LinkType::RAW_IP))
            .or_else(|_| Classic::parse("1,6 0 0 0"))?;
        Ok(Inner { ethernet, raw })
    }

    fn find(bytes: &[u8], length: u32) -> Option<Found> {
        let found = locator::program().ok()?.run(bytes, length);
        let base = found & locator::OFFSET;
        (found != 0 && base <= GREATEST_BASE && base <= length).then_some(Found {
            base: base as usize,
            is_raw: found & locator::RAW != 0,
        })
    }

    /// Runs the filter on a frame of which `bytes` is the beginning and `length` the true length.
    pub fn run(&self, bytes: &[u8], length: u32) -> u32 {
        let Some(Found { base, is_raw }) = Self::find(bytes, length) else {
            return 0;
        };
        let program = if is_raw { &self.raw } else { &self.ethernet };
        program.run(bytes.get(base..).unwrap_or_default(), length - base as u32)
    }
}

/// Lowers a filter for inner packets to a block that keeps the splice contract.
///
/// At [`Hook::Copy`] an inner packet is found in the first half of the buffer only, because the
/// verifier must be shown that all of the rest is still inside.
pub fn lower_inner(inner: &Inner, target: &Target) -> Result<Lowered, FilterError> {
    let greatest = match target.hook {
        Hook::Copy { buffer } => GREATEST_BASE.min(u32::from(buffer) / 2),
        _ => GREATEST_BASE,
    };
    let locator = locator::program()?;
    let mut emitter = Emitter::new(target);
    emitter.keeps_length = !emitter.is_slow_only();
    let way = emitter.graph(&locator)?;
    let mut ways = Vec::new();
    let views = if target.puts_tag_back() {
        &[View::Plain, View::Tagged][..]
    } else {
        &[View::Plain][..]
    };
    for &view in views {
        let (fast, slow) = (emitter.asm.label(), emitter.asm.label());
        let version = emitter.version(&way, view, None, Returns::To { fast, slow })?;
        ways.push((view, version, fast, slow));
    }
    let ethernet = emitter.graph(&inner.ethernet)?;
    let ethernet = emitter.version(&ethernet, View::Plain, Some(greatest), Returns::Result)?;
    let raw = emitter.graph(&inner.raw)?;
    let raw = emitter.version(&raw, View::Plain, Some(greatest), Returns::Result)?;
    let (to_ethernet, to_raw) = (emitter.asm.label(), emitter.asm.label());

    let to_tagged = target.puts_tag_back().then(|| emitter.go_if_tagged());
    for &(view, version, fast, _) in &ways {
        if let (View::Tagged, Some(to_tagged)) = (view, to_tagged) {
            emitter.asm.place(to_tagged);
            emitter.store_tag();
        }
        emitter.begin(version);
        if !emitter.is_slow_only() {
            emitter.asm.place(fast);
            emitter.enter(Mode::Fast, view, greatest, to_ethernet, to_raw);
        }
    }
    if !emitter.is_slow_only() {
        emitter.asm.place(to_ethernet);
        emitter.fast(ethernet);
        emitter.asm.place(to_raw);
        emitter.fast(raw);
    }

    let fast = emitter.finish_fast();
    for &(view, version, _, slow) in &ways {
        emitter.slow(version);
        if emitter.asm.is_used(slow) {
            emitter.asm.place(slow);
            let to_ethernet = emitter.slow_start(ethernet);
            let to_raw = emitter.slow_start(raw);
            emitter.enter(Mode::Slow, view, greatest, to_ethernet, to_raw);
        }
    }
    emitter.slow(ethernet);
    emitter.slow(raw);
    let classic = [&locator, &inner.ethernet, &inner.raw];
    emitter.finish(fast, classic.iter().map(|c| c.instructions().len()).sum())
}

impl Emitter<'_> {
    /// Makes the inner packet, which r0 tells of, the packet that is looked at.
    fn enter(&mut self, mode: Mode, view: View, greatest: u32, to_ethernet: Label, to_raw: Label) {
        let base = match mode {
            Mode::Fast => reg::POINTER,
            Mode::Slow => 3,
        };
        let no_match = self.no_match;
        self.emit(op::mov32(base, reg::TMP));
        self.emit(op::alu_imm(op::AND, base, locator::OFFSET as i32));
        self.asm.jump_if(op::JGT, base, greatest, no_match);
        if mode == Mode::Slow {
            self.emit(op::load(op::DW, reg::LENGTH, mode.scratch(), slot::LENGTH));
        }
        self.asm.jump_if_reg(op::JLT, reg::LENGTH, base, no_match);
        self.emit(op::alu(op::SUB, reg::LENGTH, base));
        if mode == Mode::Slow {
            self.emit(op::store(op::DW, mode.scratch(), slot::LENGTH, reg::LENGTH));
        }
        if view == View::Tagged {
            // The locator counts the tag's bytes, which are not in the packet.
            self.asm.jump_if(op::JLT, base, 4, no_match);
            self.emit(op::alu_imm(op::ADD, base, -4));
        }
        self.emit(op::store(op::DW, mode.scratch(), slot::BASE, base));
        if mode == Mode::Fast {
            if self.is_copy() {
                self.asm.jump_if_reg(op::JLT, reg::DATA_END, base, no_match);
                self.emit(op::alu(op::SUB, reg::DATA_END, base));
            }
            self.emit(op::alu(op::ADD, reg::DATA, base));
        }
        self.asm.jump_if32(op::JSET, reg::TMP, locator::RAW, to_raw);
        self.asm.goto(to_ethernet);
    }
}
