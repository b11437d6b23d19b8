//! The outcome of one feature, and its text.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Works, with a detail.
    Works(String),
    /// Refused by trawl, with its message.
    Refused(String),
    /// Neither: frames are missing, counts differ, or a command failed in the middle.
    Failed(String),
}

/// Reason why a feature does not work.
#[derive(Clone, Debug)]
pub enum Problem {
    Refused(String),
    Failed(String),
}

pub type Result<T> = std::result::Result<T, Problem>;

impl Outcome {
    pub fn works(&self) -> bool {
        matches!(self, Self::Works(_))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works(detail) if detail.is_empty() => f.write_str("works"),
            Self::Works(detail) => write!(f, "works\t{}", one_line(detail)),
            Self::Refused(message) => write!(f, "refused: {}", one_line(message)),
            Self::Failed(reason) => write!(f, "failed: {}", one_line(reason)),
        }
    }
}

/// Fails a feature with a formatted reason unless the condition holds.
#[macro_export]
macro_rules! check {
    ($condition:expr, $($reason:tt)*) => {
        if !$condition {
            return Err($crate::outcome::Problem::Failed(format!($($reason)*)));
        }
    };
}

/// Joins the lines of a text, and limits its length.
pub fn one_line(text: &str) -> String {
    const MAX_LEN: usize = 600;
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match joined.char_indices().nth(MAX_LEN) {
        Some((end, _)) => format!("{}…", &joined[..end]),
        None => joined,
    }
}
