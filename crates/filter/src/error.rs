//! What can be wrong with a filter, in words that a person can act on.

use std::ops::Range;

use crate::expression::Unavailable;

/// Why a filter could not be compiled, read or lowered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// libpcap refused the expression.
    #[error("{message}")]
    Expression {
        /// libpcap's own words.
        message: String,
        /// The bytes of the expression that the message is about, where they could be found.
        at: Option<Range<usize>>,
    },
    /// Nothing compiles expressions here.
    #[error("{}: {}{}", .0.what, .0.why, .0.fix.as_ref().map_or(String::new(), |fix| format!("; {fix}")))]
    NoCompiler(Unavailable),
    /// The text of a raw classic program could not be read.
    #[error(
        "raw filter program: {reason} at `{text}`; expected `COUNT,CODE JT JF K,…` as `tcpdump -ddd` prints it"
    )]
    Text {
        /// What was wrong.
        reason: &'static str,
        /// The piece of text that was wrong.
        text: String,
    },
    /// The kernel's classic checker would refuse this program.
    #[error("filter instruction {index} ({text}): {reason}")]
    Instruction {
        /// The instruction's number, from 0, as `tcpdump -d` counts.
        index: usize,
        /// The instruction as `tcpdump -d` shows it.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The filter has no instruction, or more than the limit.
    #[error("a filter program of {len} instructions: it must have 1 to {max}")]
    Length {
        /// Number of instructions given.
        len: usize,
        /// Most that are taken.
        max: usize,
    },
    /// The lowered program is longer than jumps can reach.
    #[error(
        "the filter becomes {len} eBPF instructions, more than the {max} that jumps can reach here"
    )]
    TooLong {
        /// Number of eBPF instructions needed.
        len: usize,
        /// Most that the target takes.
        max: usize,
    },
    /// The filter asks for something that the hook does not know.
    #[error("the filter asks for {part}, which is not known at {hook}")]
    NotAtHook {
        /// What the filter asks for.
        part: &'static str,
        /// The hook, in words.
        hook: &'static str,
        /// What could answer.
        instead: Instead,
    },
}

/// What answers where a hook does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    /// Name the interface, or use the tap packet or tc.
    NameInterface,
    /// Choose packets by queue without a filter, or use the tap packet or tc.
    QueueOption,
    /// Use the tap tc or packet.
    TcOrPacket,
    /// Use the tap packet.
    Packet,
    /// Use a netlink socket.
    NetlinkSocket,
    /// `inbound` and `outbound` work; for the others use the tap tc or packet.
    InboundOrTap,
}

impl FilterError {
    /// The expression with a caret under the failing place, where it is known.
    pub fn caret(&self, expression: &str) -> Option<String> {
        let FilterError::Expression { at: Some(at), .. } = self else {
            return None;
        };
        let start = expression.get(..at.start)?.chars().count();
        let width = expression.get(at.clone())?.chars().count().max(1);
        // A tab or newline would put the caret elsewhere than under its token.
        let shown: String = expression
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        Some(format!(
            "{shown}\n{}{}",
            " ".repeat(start),
            "^".repeat(width)
        ))
    }
}
