//! A change of this operator's desired state of a host. It ends other operators' captures only if it names these
//! operators, and the host's policy permits it.

use std::collections::{BTreeMap, BTreeSet};

use trawl_sys::{Error, Result};

use crate::agent::{Capture, CaptureEnd, Incident, Request, State};

/// The desired states of a host, by their operators' public keys.
pub type States = BTreeMap<String, State>;

/// Returns the captures of a host that no operator has ended, with their operators.
pub fn alive(states: &States) -> impl Iterator<Item = (&str, &Request)> {
    states.iter().flat_map(move |(operator, state)| {
        let sender = Some(operator.clone());
        let ends =
            move |request: &Request| states.values().flat_map(|one| &one.ends).any(|end| end.is_of(&sender, request));
        let alive = state.captures.iter().filter(move |request| !ends(request));
        alive.map(move |request| (operator.as_str(), request))
    })
}

/// Returns the operators whose captures may be replaced: each of these keys, or starts of keys, belongs to one of the
/// known operators at most.
pub fn replaceable<'a>(wanted: &[String], known: impl Iterator<Item = &'a str>) -> Result<BTreeSet<String>> {
    let known: BTreeSet<&str> = known.collect();
    let mut found = BTreeSet::new();
    for start in wanted {
        let meant: Vec<&str> = known.iter().copied().filter(|key| key.starts_with(start.as_str())).collect();
        if meant.len() > 1 {
            let what = format!("cannot replace the captures of the operator {start}");
            let why = format!("the keys of several operators begin so: {}", meant.join(", "));
            return Err(Error::usage(what, why).fix("write more of the key"));
        }
        found.extend(meant.into_iter().map(str::to_owned));
    }
    Ok(found)
}

/// This operator's next state of a host.
pub struct Draft<'a> {
    /// This operator's public key.
    pub own: &'a str,
    /// The present states of all operators whom the host follows.
    pub states: &'a States,
    /// Operators whose captures may be replaced.
    pub replaced: &'a BTreeSet<String>,
    /// Returns true if the host's policy lets this operator end a capture of this name.
    pub may_end: &'a dyn Fn(&str) -> bool,
    pub revision: u64,
    pub state: State,
}

impl Draft<'_> {
    /// Requests a capture instead of one of the same name.
    pub fn start(&mut self, capture: &Capture) -> std::result::Result<(), String> {
        self.end_others(&|name| name == capture.name)?;
        let is_same = |one: &Request| one.capture == *capture;
        if !self.state.captures.iter().any(is_same) {
            self.state.captures.retain(|one| one.capture.name != capture.name);
            self.state.captures.push(Request { requested: self.revision, capture: capture.clone() });
        }
        Ok(())
    }

    /// Ends the capture of this name, or all.
    pub fn stop(&mut self, name: Option<&str>) -> std::result::Result<(), String> {
        let is_meant = |one: &str| name.is_none_or(|name| name == one);
        self.end_others(&is_meant)?;
        self.state.captures.retain(|one| !is_meant(&one.capture.name));
        Ok(())
    }

    /// Requests an incident.
    pub fn trigger(&mut self, incident: Incident) -> std::result::Result<(), String> {
        let mut known = self.states.values().flat_map(|state| &state.incidents);
        if known.any(|one| one.id == incident.id) {
            return Err(format!("it has an incident '{}' already: name another by --id", incident.id));
        }
        let incidents = &mut self.state.incidents;
        incidents.push(incident);
        let surplus = incidents.len().saturating_sub(State::INCIDENTS);
        incidents.drain(..surplus);
        Ok(())
    }

    /// Ends other operators' captures whose names are meant, or names the ones that stay.
    fn end_others(&mut self, is_meant: &dyn Fn(&str) -> bool) -> std::result::Result<(), String> {
        let mut kept: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (operator, request) in alive(self.states) {
            let name = &request.capture.name;
            if operator == self.own || !is_meant(name) {
                continue;
            }
            if !self.replaced.contains(operator) {
                kept.entry(operator).or_default().push(format!("'{name}'"));
            } else if (self.may_end)(name) {
                let (operator, capture) = (operator.to_owned(), name.clone());
                self.state.ends.push(CaptureEnd { operator, capture, requested: request.requested });
            } else {
                return Err(format!("its policy does not let this operator end the capture '{name}'"));
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        let named = kept.iter().map(|(operator, names)| {
            let (captures, belong) = if names.len() == 1 { ("capture", "belongs") } else { ("captures", "belong") };
            format!("the {captures} {} {belong} to the operator {operator}", names.join(", "))
        });
        let named: Vec<String> = named.collect();
        let options: Vec<String> = kept.keys().map(|operator| format!("--replace {operator}")).collect();
        Err(format!("{}; end them by {}", named.join(", and "), options.join(" ")))
    }
}

/// Returns this operator's present state without what is over: captures that other operators have ended, and ends of
/// captures that nobody requests any more.
pub fn current(own: &str, states: &States) -> State {
    let mut state = states.get(own).cloned().unwrap_or_default();
    let mine: Vec<Request> =
        alive(states).filter(|(operator, _)| *operator == own).map(|(_, request)| request.clone()).collect();
    state.captures.retain(|request| mine.contains(request));
    state.ends.retain(|end| {
        let sender = Some(end.operator.clone());
        let of_operator = states.get(&end.operator);
        of_operator.is_some_and(|other| other.captures.iter().any(|request| end.is_of(&sender, request)))
    });
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(name: &str) -> Capture {
        Capture { name: name.to_owned(), ..Capture::default() }
    }

    fn states(captures: &[(&str, &str, u64)]) -> States {
        let mut states = States::new();
        for (operator, name, requested) in captures {
            let state = states.entry((*operator).to_owned()).or_default();
            state.captures.push(Request { requested: *requested, capture: capture(name) });
        }
        states
    }

    /// Changes U1's state at revision 9.
    fn changed(
        states: &States,
        replaced: &[&str],
        may_end: bool,
        change: impl FnOnce(&mut Draft) -> std::result::Result<(), String>,
    ) -> std::result::Result<State, String> {
        let replaced = replaced.iter().map(|one| (*one).to_owned()).collect();
        let state = current("U1", states);
        let may_end = |_: &str| may_end;
        let mut draft = Draft { own: "U1", states, replaced: &replaced, may_end: &may_end, revision: 9, state };
        change(&mut draft)?;
        Ok(draft.state)
    }

    fn names(states: &States) -> Vec<(&str, &str)> {
        alive(states).map(|(operator, request)| (operator, request.capture.name.as_str())).collect()
    }

    #[test]
    fn captures_of_others_end_only_if_they_are_named() {
        let mut all = states(&[("U1", "dns", 3), ("U2", "web", 4), ("U3", "web", 5)]);
        let refused = changed(&all, &["U2"], true, |draft| draft.start(&capture("web"))).expect_err("U3's");
        assert_eq!(refused, "the capture 'web' belongs to the operator U3; end them by --replace U3");
        let refused = changed(&all, &["U2", "U3"], false, |draft| draft.stop(None)).expect_err("no right");
        assert_eq!(refused, "its policy does not let this operator end the capture 'web'");
        let state = changed(&all, &["U2", "U3"], true, |draft| draft.start(&capture("web"))).expect("a state");
        assert_eq!(state.ends.len(), 2);
        all.insert("U1".to_owned(), state);
        assert_eq!(names(&all), [("U1", "dns"), ("U1", "web")]);
        // U2 asks once more; U3 has got the news and lets go of the capture.
        all.get_mut("U2").expect("U2").captures[0].requested = 8;
        all.get_mut("U3").expect("U3").captures.clear();
        assert_eq!(names(&all), [("U1", "dns"), ("U1", "web"), ("U2", "web")]);
        let state = changed(&all, &[], true, |draft| draft.start(&capture("dns"))).expect("a state");
        assert!(state.ends.is_empty(), "no longer needed: {state:?}");
        assert_eq!(state.captures[0].requested, 3, "the same capture goes on");
    }

    #[test]
    fn captures_that_others_ended_are_forgotten() {
        let mut all = states(&[("U1", "dns", 3), ("U1", "web", 4)]);
        let end = CaptureEnd { operator: "U1".to_owned(), capture: "dns".to_owned(), requested: 3 };
        all.insert("U2".to_owned(), State { ends: vec![end], ..State::default() });
        let state = changed(&all, &[], true, |draft| draft.stop(Some("none"))).expect("a state");
        assert_eq!(state.captures.iter().map(|one| one.capture.name.as_str()).collect::<Vec<_>>(), ["web"]);
        let state = changed(&all, &[], true, |draft| draft.start(&capture("dns"))).expect("a state");
        assert_eq!(state.captures.iter().map(|one| one.requested).collect::<Vec<_>>(), [4, 9]);
    }

    #[test]
    fn incidents_have_names_of_their_own() {
        let incident = |id: &str| Incident { id: id.to_owned(), ..Incident::default() };
        let mut all =
            States::from([("U2".to_owned(), State { incidents: vec![incident("slow")], ..State::default() })]);
        assert!(changed(&all, &[], true, |draft| draft.trigger(incident("slow"))).is_err());
        for number in 0..6 {
            let state =
                changed(&all, &[], true, |draft| draft.trigger(incident(&number.to_string()))).expect("a state");
            all.insert("U1".to_owned(), state);
        }
        let ids: Vec<&str> = all["U1"].incidents.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, ["2", "3", "4", "5"]);
    }

    #[test]
    fn start_of_a_key_means_one_operator() {
        let known = ["UA1", "UA2", "UB"];
        let found = |wanted: &str| replaceable(&[wanted.to_owned()], known.into_iter());
        assert_eq!(found("UB").expect("one").len(), 1);
        assert_eq!(found("UC").expect("none").len(), 0);
        assert!(found("UA").is_err());
    }
}
