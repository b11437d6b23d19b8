//! Selects a file's packets by content: runs a filter in user space, as the classic program from which the filter of a
//! capture would be made.

use std::collections::HashMap;

use crate::classic::{Instruction, ancillary, op};
use crate::error::FilterError;
use crate::{Classic, CompilerOptions, Inner, LinkType, compile};
use trawl_packet::pcapng::block::{ByteOrder, LINKTYPE_ETHERNET};

/// A filter as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// An expression in tcpdump's syntax.
    Expression(String),
    /// An expression about the packet inside a tunnel.
    Inner(String),
    /// A classic program in the format of `tcpdump -ddd`.
    Classic(String),
}

/// Reason why a filter cannot be applied to the packets of a file.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The filter needs the packet's direction, interface, mark or a similar fact, which the kernel knows but a file
    /// does not contain.
    #[error("the filter asks for a fact that files do not contain, such as the packet's direction or interface")]
    NotInFiles,
    #[error("only Ethernet frames are supported")]
    NotEthernet,
}

/// Link type of a file's packets, and the byte order of their writer.
pub type PacketKind = (u16, ByteOrder);

/// The programs of one filter, one for each kind of packet encountered.
#[derive(Debug)]
pub struct Selector {
    question: Question,
    options: CompilerOptions,
    programs: HashMap<PacketKind, Matcher>,
    /// Kind and program of the previous packet; most files have only one kind.
    last: Option<(PacketKind, Matcher)>,
}

impl Selector {
    pub fn new(question: Question, options: CompilerOptions) -> Self {
        Self { question, options, programs: HashMap::new(), last: None }
    }

    /// Returns true if the packet matches. Only the captured bytes and the true length count, as in tcpdump.
    pub fn matches(&mut self, kind: PacketKind, captured: &[u8], length: u32) -> Result<bool, SelectError> {
        let program = self.program(kind)?;
        Ok(program.is_none_or(|program| program.run(captured, length) != 0))
    }

    /// Returns true if the packet has more headers than a program in the kernel follows.
    pub fn exceeds_kernel(&mut self, kind: PacketKind, captured: &[u8], length: u32) -> Result<bool, SelectError> {
        let program = self.program(kind)?;
        Ok(program.is_some_and(|program| program.exceeds_kernel(captured, length)))
    }

    /// Returns the program for packets of a kind, which is looked up only if the kind changes.
    fn program(&mut self, kind: PacketKind) -> Result<Option<&Matcher>, SelectError> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != kind) {
            self.prepare(kind)?;
        }
        Ok(self.last.as_ref().map(|(_, program)| program))
    }

    /// Compiles the program for packets of a kind: an error in the filter is reported even without packets.
    pub fn prepare(&mut self, kind: PacketKind) -> Result<(), SelectError> {
        let program = match self.programs.remove(&kind) {
            Some(program) => program,
            None => program(&self.question, &self.options, kind)?,
        };
        if let Some((kind, program)) = self.last.replace((kind, program)) {
            self.programs.insert(kind, program);
        }
        Ok(())
    }
}

/// The program for each packet.
#[derive(Debug)]
enum Matcher {
    Whole(Classic),
    Inside(Box<Inner>),
}

impl Matcher {
    fn run(&self, bytes: &[u8], length: u32) -> u32 {
        match self {
            Self::Whole(classic) => classic.run(bytes, length),
            Self::Inside(inner) => inner.run(bytes, length),
        }
    }

    fn exceeds_kernel(&self, bytes: &[u8], length: u32) -> bool {
        match self {
            Self::Whole(classic) => classic.exceeds_kernel(bytes, length),
            // User space always locates inner packets again.
            Self::Inside(_) => true,
        }
    }
}

fn program(
    question: &Question,
    options: &CompilerOptions,
    (link_type, order): PacketKind,
) -> Result<Matcher, SelectError> {
    if matches!(question, Question::Inner(_)) && link_type != LINKTYPE_ETHERNET {
        return Err(SelectError::NotEthernet);
    }
    let options = options_for(*options, (link_type, order));
    let program = match question {
        Question::Expression(text) => Matcher::Whole(compile(text, &options)?),
        Question::Inner(text) => Matcher::Inside(Box::new(Inner::compile(text, &options)?)),
        Question::Classic(text) => Matcher::Whole(Classic::parse(text)?),
    };
    let asks_for_fact = |i: &Instruction| i.class() == op::LD && i.code & 0xe0 == op::ABS && i.k >= ancillary::AD_OFF;
    // In an expression such an offset is negative, as in `ether[-31:2]`: libpcap finds no byte there.
    if let (Question::Classic(_), Matcher::Whole(classic)) = (question, &program)
        && classic.instructions().iter().any(asks_for_fact)
    {
        return Err(SelectError::NotInFiles);
    }
    Ok(program)
}

/// Returns the compiler's options for packets of a kind.
pub fn options_for(options: CompilerOptions, (link_type, order): PacketKind) -> CompilerOptions {
    CompilerOptions {
        link: dlt(link_type),
        file: Some(match order {
            ByteOrder::Little => crate::expression::ByteOrder::Little,
            ByteOrder::Big => crate::expression::ByteOrder::Big,
        }),
        ..options
    }
}

/// Returns libpcap's number for a file's link type. They are the same except for the oldest, which differ between
/// systems; these are Linux's.
fn dlt(link_type: u16) -> LinkType {
    LinkType(match link_type {
        100 => 11,
        101 => LinkType::RAW_IP.0,
        106 => 19,
        other => other.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_about_packets_are_refused() {
        let kind = (LINKTYPE_ETHERNET, ByteOrder::Little);
        let mark = "2,32 0 0 4294963220,6 0 0 65535".to_owned();
        let mut selector = Selector::new(Question::Classic(mark), CompilerOptions::default());
        let refused = selector.prepare(kind);
        assert!(matches!(refused, Err(SelectError::NotInFiles)));
    }
}
