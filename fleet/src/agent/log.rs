//! The log of the operators' commands to a host: each command, its operator, and what came of it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A command of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    Start {
        capture: String,
    },
    /// A running capture, with other options.
    Change {
        capture: String,
    },
    Stop {
        capture: String,
    },
    /// The end of another operator's capture.
    End {
        capture: String,
        /// The public key of the other operator.
        of: String,
    },
    Trigger {
        incident: String,
    },
    /// The first question of a session for packets that stay on the host.
    Ask,
    /// A desired state that the host did not read, or a command that only a newer trawl knows.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { capture } => write!(f, "start {capture}"),
            Self::Change { capture } => write!(f, "change {capture}"),
            Self::Stop { capture } => write!(f, "stop {capture}"),
            Self::End { capture, of } => write!(f, "end {capture} of {of}"),
            Self::Trigger { incident } => write!(f, "trigger {incident}"),
            Self::Ask => f.write_str("ask for packets"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The sender of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The public key that signed it; absent without a readable signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Revision of the desired state; absent for a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// A command in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub host: String,
    /// The host's time.
    pub time_ns: u64,
    #[serde(flatten)]
    pub order: Order,
    #[serde(flatten)]
    pub command: Command,
    /// Reason why the host does not follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = self.order.operator.as_deref().unwrap_or("an unknown operator");
        write!(f, "{operator}: {}", self.command)?;
        match &self.refused {
            Some(why) => write!(f, ": refused: {why}"),
            None => Ok(()),
        }
    }
}
