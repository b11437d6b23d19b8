//! What this machine, and an interface of it, can do for a capture, what it cannot, and what fixes it.

mod attached;
mod interface;
mod machine;
mod offload;
mod veth;

pub use interface::examine as interface;
pub use machine::examine as machine;

use serde::Serialize;

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// Worth knowing, neither good nor bad.
    Info,
    /// Something will not work, or will be seen differently from what one may expect.
    Warn,
    /// Stands in the way of capturing.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it belongs to: `system`, `privileges`, `kernel`, `bpffs`, `helpers`, or the interface.
    pub area: String,
    pub subject: String,
    pub state: State,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The command, or else the advice, that fixes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn new(area: &str, subject: &str, state: State, text: impl Into<String>) -> Self {
        Self {
            area: area.to_owned(),
            subject: subject.to_owned(),
            state,
            text: text.into(),
            why: None,
            fix: None,
        }
    }

    fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Whether any of them stands in the way of capturing.
pub fn has_problem(findings: &[Finding]) -> bool {
    findings
        .iter()
        .any(|finding| finding.state == State::Problem)
}
