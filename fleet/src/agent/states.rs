//! The desired states of a host: one for each operator, whom alone it obeys, or one from a file.

use serde::{Deserialize, Serialize};
use trawl_sys::{Error, Result};

use super::desired::{Capture, Desired, Incident, Labels, TEXT_MOST};

/// The sender of a desired state: an operator, by the public key, or nobody for a file.
pub type Sender = Option<String>;

/// A desired state as one sender has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Labels of the host, which only a file gives.
    #[serde(skip)]
    pub labels: Labels,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captures: Vec<Request>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<Incident>,
    /// Other operators' captures that this one has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ends: Vec<End>,
}

/// A capture, and the revision of its operator's state that requested it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub requested: u64,
    pub capture: Capture,
}

/// The end of another operator's capture, which comes back only if that operator requests it once more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    pub operator: String,
    pub capture: String,
    pub requested: u64,
}

impl End {
    pub fn is_of(&self, sender: &Sender, request: &Request) -> bool {
        sender.as_ref() == Some(&self.operator)
            && self.capture == request.capture.name
            && self.requested == request.requested
    }
}

impl From<Desired> for State {
    /// Returns the state of a file.
    fn from(desired: Desired) -> Self {
        let request = |capture| Request { requested: 0, capture };
        Self {
            labels: desired.labels,
            captures: desired.captures.into_iter().map(request).collect(),
            incidents: desired.incidents,
            ends: Vec::new(),
        }
    }
}

impl State {
    /// Maximum number of incidents: new ones replace the oldest.
    pub const INCIDENTS: usize = 4;

    /// Reads an operator's state, in JSON.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::usage("cannot read the desired state", why);
        if text.len() > TEXT_MOST {
            return Err(wrong(format!("it has more than {TEXT_MOST} bytes")));
        }
        let state: Self = serde_json::from_str(text).map_err(|e| {
            let hint = if e.is_data() { "; a newer trawl may have written it" } else { "" };
            wrong(format!("{e}{hint}"))
        })?;
        Desired::from(state.clone()).check().map_err(wrong)?;
        Ok(state)
    }

    /// Checks a state as its agent will.
    pub fn check_form(&self) -> Result<()> {
        let text = serde_json::to_string(self).map_err(|e| Error::failed("cannot write JSON", e))?;
        Self::parse(&text).map(drop)
    }
}

impl From<State> for Desired {
    fn from(state: State) -> Self {
        let captures = state.captures.into_iter().map(|request| request.capture);
        Self { labels: state.labels, captures: captures.collect(), incidents: state.incidents }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_written_and_newer_ones_are_named() {
        let capture = Capture {
            name: "dns".to_owned(),
            interfaces: vec!["eth0".to_owned()],
            store: "s".to_owned(),
            ..Capture::default()
        };
        let end = End { operator: "U1".to_owned(), capture: "ntp".to_owned(), requested: 3 };
        let state = State {
            captures: vec![Request { requested: 7, capture }],
            incidents: vec![Incident { id: "slow".to_owned(), ..Incident::default() }],
            ends: vec![end],
            ..State::default()
        };
        let text = serde_json::to_string(&state).expect("JSON");
        assert_eq!(State::parse(&text).expect("a state"), state);
        assert_eq!(State::parse("{}").expect("a state"), State::default());
        let twice = State { captures: [state.captures.clone(), state.captures.clone()].concat(), ..State::default() };
        for (text, words) in [
            (r#"{"captures": [], "colour": 1}"#.to_owned(), "newer trawl"),
            (r#"{"captures": ["#.to_owned(), "EOF"),
            (serde_json::to_string(&twice).expect("JSON"), "two captures"),
            (text.replace("slow", "../slow"), "not the name of an incident"),
            (" ".repeat(TEXT_MOST + 1), "more than"),
        ] {
            let error = State::parse(&text).expect_err("an error").to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn end_is_of_one_request() {
        let end = End { operator: "U1".to_owned(), capture: "dns".to_owned(), requested: 3 };
        let request = |name: &str, requested| Request {
            requested,
            capture: Capture { name: name.to_owned(), ..Capture::default() },
        };
        assert!(end.is_of(&Some("U1".to_owned()), &request("dns", 3)));
        for (sender, name, requested) in
            [(Some("U2"), "dns", 3), (None, "dns", 3), (Some("U1"), "ntp", 3), (Some("U1"), "dns", 4)]
        {
            assert!(!end.is_of(&sender.map(str::to_owned), &request(name, requested)));
        }
    }
}
