//! Errors of filters, with actionable messages.

use std::ops::Range;

/// Reason why a filter could not be compiled, read or lowered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// libpcap refused the expression.
    #[error("{message}")]
    Expression {
        /// libpcap's own message.
        message: String,
        /// Bytes of the expression that the message is about, if found.
        at: Option<Range<usize>>,
    },
    /// libpcap would need too long for an expression that cannot be compiled in pieces.
    #[error(
        "the filter has {comparisons} comparisons, and libpcap would need cubic time for them: more than {most} are \
         possible only in operands joined by `and` and `or` after the last `vlan`, `mpls`, `pppoes` or `geneve`: write \
         `vlan 5 and (A or B or C)`, or use several captures"
    )]
    Unsplit {
        /// Number of comparisons.
        comparisons: usize,
        /// The limit.
        most: usize,
    },
    /// No compiler for expressions is available.
    #[error("{}: {}{}", .0.what, .0.why, .0.fix.as_ref().map_or(String::new(), |fix| format!("; {fix}")))]
    NoCompiler(Unavailable),
    /// The text of a raw classic program could not be read.
    #[error("raw filter program: {reason} at `{text}`; expected `COUNT,CODE JT JF K,…` as printed by `tcpdump -ddd`")]
    Text {
        /// The defect.
        reason: &'static str,
        /// The malformed piece of text.
        text: String,
    },
    /// The kernel's classic checker would refuse this program.
    #[error("filter instruction {index} ({text}): {reason}")]
    Instruction {
        /// Number of the instruction, from 0, as in `tcpdump -d`.
        index: usize,
        /// The instruction in the format of `tcpdump -d`.
        text: String,
        /// The defect.
        reason: String,
    },
    /// The filter has no instructions, or more than the limit.
    #[error("a filter program of {len} instructions: it must have 1 to {max}")]
    Length {
        /// Number of instructions given.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The lowered program is longer than the range of jumps.
    #[error(
        "the filter is too long: it compiles to {len} eBPF instructions, but jumps at this hook span at most {max}"
    )]
    TooLong {
        /// Number of eBPF instructions needed.
        len: usize,
        /// The target's limit.
        max: usize,
    },
    /// The filter needs a fact that is unknown at the hook.
    #[error("the filter asks for {part}, which is not known at {hook}")]
    NotAtHook {
        /// The fact.
        part: &'static str,
        /// Name of the hook.
        hook: &'static str,
        /// The alternative.
        instead: Instead,
    },
}

/// An alternative to a hook that lacks a fact.
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

/// Reason why no compiler is available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    pub what: String,
    pub why: String,
    pub fix: Option<String>,
}

impl FilterError {
    /// Returns the expression with a caret under the error's position, if known.
    pub fn caret(&self, expression: &str) -> Option<String> {
        let FilterError::Expression { at: Some(at), .. } = self else {
            return None;
        };
        let start = expression.get(..at.start)?.chars().count();
        let width = expression.get(at.clone())?.chars().count().max(1);
        // A tab or newline would misplace the caret.
        let shown: String = expression.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Some(format!("{shown}\n{}{}", " ".repeat(start), "^".repeat(width)))
    }
}
