//! The filter of a capture as typed.

use serde::{Deserialize, Serialize};
use trawl_filter::error::{FilterError, Instead};
use trawl_sys::Error;
use trawl_sys::error::Refusal;

/// The wanted packets, by content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// An expression in tcpdump's syntax.
    Expression(String),
    /// An expression about the packet inside a tunnel: VXLAN, GENEVE, GRE or IP-in-IP.
    Inner(String),
    /// A classic program as `tcpdump -ddd` prints it.
    Classic(String),
}

impl Filter {
    /// Returns the text of the filter for the capture file.
    pub fn text(&self) -> String {
        match self {
            Self::Expression(text) => text.clone(),
            Self::Inner(text) => format!("inner {text}"),
            Self::Classic(text) => format!("cbpf {text}"),
        }
    }

    /// Explains an error, with a mark below its position in the expression.
    pub fn explain(&self, error: &FilterError) -> Error {
        if let FilterError::NoCompiler(cause) = error {
            let error = Error::failed(&cause.what, &cause.why);
            return match &cause.fix {
                Some(fix) => error.fix(fix.clone()),
                None => error,
            };
        }
        let caret = match self {
            Self::Expression(text) | Self::Inner(text) => error.caret(text),
            Self::Classic(_) => None,
        };
        let marked = caret.map_or(String::new(), |lines| format!("\n  {}", lines.replace('\n', "\n  ")));
        let refusal = Error::usage("cannot use this filter", format!("{error}{marked}"));
        match error {
            FilterError::TooLong { .. } => {
                refusal.refused(Refusal::TooLong).fix("use a shorter expression, or --tap packet")
            }
            FilterError::NotAtHook { instead, .. } => refusal.fix(match instead {
                Instead::NameInterface => "name the interface with -i, or use --tap packet or --tap tc",
                Instead::QueueOption => "use --queue, or --tap packet or --tap tc",
                Instead::TcOrPacket => "use --tap tc or --tap packet",
                Instead::Packet => "use --tap packet",
                Instead::NetlinkSocket => "such a filter is for netlink sockets",
                Instead::InboundOrTap => "inbound and outbound work here; for the others use --tap tc or --tap packet",
            }),
            _ => refusal,
        }
    }
}
