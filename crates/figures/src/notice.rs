//! Messages about what could not be counted.

use std::fmt;

use serde::Serialize;

use crate::counters::label;
use crate::verdicts::UncountedProgram;

/// Receives notices.
pub type OnNotice = fn(&Notice);

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// The kernel's drops are not counted.
    DropsNotCounted { error: String },
    /// Some packets may count as dropped although they are not.
    DropsMisjudged { reason: String },
    /// The verdicts of no program are counted.
    VerdictsNotCounted { reason: String },
    /// The verdicts of a program are not counted.
    #[serde(rename = "verdicts_not_counted")]
    ProgramNotCounted(UncountedProgram),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DropsNotCounted { error: text } | Self::DropsMisjudged { reason: text } => f.write_str(text),
            Self::VerdictsNotCounted { reason } => {
                write!(f, "verdicts of XDP programs are not counted: {reason}")
            }
            Self::ProgramNotCounted(UncountedProgram { interface, netns, program, id, reason }) => {
                let on = label(netns, interface);
                write!(f, "the verdicts of {program} (id {id}) on {on} are not counted: {reason}")
            }
        }
    }
}
