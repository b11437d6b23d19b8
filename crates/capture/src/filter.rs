//! The filter as typed, compiled for each tap's hook.

pub mod check;

use std::os::fd::{AsFd, AsRawFd};

use trawl_bpf::layout::TRACE_COPY;
use trawl_bpf::object::TapProgram;
use trawl_bpf::probe;
use trawl_bpf::table::Table;
use trawl_ebpf::{Insn, op};
use trawl_filter::classic::Classic;
use trawl_filter::expression::{self, LinkType};
use trawl_filter::lower::{Lowered, Target, lower};
use trawl_filter::{Hook, Inner, lower_either, lower_inner, lower_quick};
pub use trawl_io::libpcap::{choose_for_filters, compile_filters};
use trawl_plan::filter::Filter;
use trawl_sys::{Error, Result};

/// A filter's instructions for an XDP program.
#[derive(Debug)]
pub struct XdpBlocks {
    whole: Block,
    /// Short version that decides most packets, if the filter has one.
    quick: Option<Vec<Insn>>,
}

/// Instructions to splice into a program, and the maps whose descriptors they contain: the maps must live until the
/// program is loaded.
#[derive(Debug, Default)]
pub struct Block {
    insns: Vec<Insn>,
    _tables: Vec<Table>,
}

impl Block {
    /// Creates the maps that hold long lists.
    pub fn new(lowered: &Lowered) -> Result<Self> {
        let tables = (lowered.tables.iter())
            .map(|table| Table::holding("trawl_list", &table.bytes()))
            .collect::<std::io::Result<Vec<_>>>()
            .map_err(|e| Error::os("cannot put the filter's lists into the kernel", e))?;
        let mut insns = lowered.insns.clone();
        let addresses = insns.iter_mut().filter(|insn| insn.code == op::LOAD_IMMEDIATE && insn.src() == op::MAP_VALUE);
        for insn in addresses {
            let table = usize::try_from(insn.imm).ok().and_then(|at| tables.get(at));
            insn.imm = table.map_or(-1, |table| table.as_fd().as_raw_fd());
        }
        Ok(Self { insns, _tables: tables })
    }
}

impl std::ops::Deref for Block {
    type Target = [Insn];

    fn deref(&self) -> &[Insn] {
        &self.insns
    }
}

impl XdpBlocks {
    /// Returns the suffix of the names of programs with a slot for these instructions.
    pub fn suffix(&self, quickly: bool) -> &'static str {
        match self.quick_block(quickly) {
            Some(_) => "q",
            None => "f",
        }
    }

    /// Splices the instructions into a program of that name.
    pub fn put_into(&self, program: &mut TapProgram, quickly: bool) -> Result<()> {
        program.filter(&self.whole)?;
        self.quick_block(quickly).map_or(Ok(()), |quick| program.quick_filter(quick))
    }

    fn quick_block(&self, quickly: bool) -> Option<&[Insn]> {
        self.quick.as_deref().filter(|_| quickly)
    }
}

/// Compilation of a filter for the taps of this kernel.
pub trait Compile {
    /// Compiles the filter to a classic program for packets of this link type.
    fn classic(&self, options: &expression::CompilerOptions) -> Result<Classic>;

    /// Returns the instructions to splice into a program.
    fn block(&self, options: &expression::CompilerOptions, target: &Target) -> Result<Block>;

    /// Returns the instructions for a tc program that has a copy of a frame's first bytes.
    fn frame_block(&self, options: &expression::CompilerOptions) -> Result<Block>;

    /// Returns the instructions for a program that has a copy of a frame's first bytes, of any device.
    fn copy_block(&self, snaplen: u32, buffer: u16) -> Result<Vec<Insn>>;

    /// Returns the instructions for a program that reads a copy of what an XDP program sees. `inside_too`: the packet
    /// inside a tunnel may match as well.
    fn xdp_copy_block(&self, options: &expression::CompilerOptions, buffer: u16, inside_too: bool) -> Result<Block>;

    /// Returns the instructions for XDP, with a short version that decides most packets. `inside_too`: the packet
    /// inside a tunnel may match as well.
    fn xdp_blocks(&self, options: &expression::CompilerOptions, inside_too: bool) -> Result<XdpBlocks>;

    /// Returns the instructions for packets of this link type.
    fn lower(&self, options: &expression::CompilerOptions, target: &Target) -> Result<Lowered>;

    /// Returns the programs for inner packets, if the filter is about them.
    fn inner(&self, options: &expression::CompilerOptions) -> Result<Option<Inner>>;
}

impl Compile for Filter {
    fn classic(&self, options: &expression::CompilerOptions) -> Result<Classic> {
        compile_filters();
        match self {
            Self::Expression(text) | Self::Inner(text) => expression::compile(text, options),
            Self::Classic(text) => Classic::parse(text),
        }
        .map_err(|error| self.explain(&error))
    }

    fn block(&self, options: &expression::CompilerOptions, target: &Target) -> Result<Block> {
        let lowered = self.lower(options, &for_this_kernel(target))?;
        Block::new(&lowered)
    }

    fn frame_block(&self, options: &expression::CompilerOptions) -> Result<Block> {
        self.block(options, &Target::tc_copy(TRACE_COPY as u16))
    }

    fn copy_block(&self, snaplen: u32, buffer: u16) -> Result<Vec<Insn>> {
        let options = ethernet(snaplen);
        let lowered = self.lower(&options, &for_this_kernel(&Target::copy(buffer)))?;
        Ok(lowered.insns)
    }

    fn xdp_copy_block(&self, options: &expression::CompilerOptions, buffer: u16, inside_too: bool) -> Result<Block> {
        let target = for_this_kernel(&Target::copy(buffer));
        let either = either(self, options, &target, inside_too)?;
        Block::new(&either.map_or_else(|| self.lower(options, &target), Ok)?)
    }

    fn xdp_blocks(&self, options: &expression::CompilerOptions, inside_too: bool) -> Result<XdpBlocks> {
        let target = for_this_kernel(&Target::xdp());
        if let Some(either) = either(self, options, &target, inside_too)? {
            return Ok(XdpBlocks { whole: Block::new(&either)?, quick: None });
        }
        let (lowered, quick) = match self.inner(options)? {
            Some(inner) => (lower_inner(&inner, &target), None),
            None => {
                let classic = self.classic(options)?;
                (lower(&classic, &target), lower_quick(&classic, &target))
            }
        };
        let lowered = lowered.map_err(|error| self.explain(&error))?;
        Ok(XdpBlocks { whole: Block::new(&lowered)?, quick: quick.filter(|_| !probe::is_unwanted("quick-filter")) })
    }

    fn lower(&self, options: &expression::CompilerOptions, target: &Target) -> Result<Lowered> {
        match self.inner(options)? {
            Some(inner) => lower_inner(&inner, target),
            None => lower(&self.classic(options)?, target),
        }
        .map_err(|error| self.explain(&error))
    }

    fn inner(&self, options: &expression::CompilerOptions) -> Result<Option<Inner>> {
        let Self::Inner(text) = self else {
            return Ok(None);
        };
        if options.link != LinkType::ETHERNET {
            let why = "only Ethernet frames are supported";
            return Err(Error::failed("cannot look inside tunnels", why));
        }
        compile_filters();
        Inner::compile(text, options).map(Some).map_err(|error| self.explain(&error))
    }
}

/// Returns the instructions that match a packet or the one in its tunnel; `None` if the filter applies to one of them.
fn either(
    filter: &Filter,
    options: &expression::CompilerOptions,
    target: &Target,
    inside_too: bool,
) -> Result<Option<Lowered>> {
    let Filter::Expression(text) = filter else {
        return Ok(None);
    };
    if !inside_too || options.link != LinkType::ETHERNET {
        return Ok(None);
    }
    let outer = filter.classic(options)?;
    let inner = Inner::compile(text, options);
    let lowered = inner.and_then(|inner| lower_either(&outer, &inner, target));
    lowered.map(Some).map_err(|error| filter.explain(&error))
}

fn for_this_kernel(target: &Target) -> Target {
    Target {
        load_helper: target.load_helper && (target.hook != Hook::Xdp || probe::has_xdp_buffers()),
        gotol: probe::has_far_jumps(),
        accepts_unfinished: true,
        ..*target
    }
}

/// Returns compiler options for Ethernet frames of any device.
pub(crate) fn ethernet(snaplen: u32) -> expression::CompilerOptions {
    expression::CompilerOptions { link: LinkType::ETHERNET, snaplen, netmask: None, optimise: true, file: None }
}
