//! Shell-style glob matching (fnmatch(3)), and the choice of things by name and label.

use std::collections::BTreeMap;
use std::ffi::CString;

use crate::{Error, Result};

pub type Labels = BTreeMap<String, String>;

/// Matches a pattern: `*` any text, `?` any letter, `[a-c]` one of these, `[!a-c]` none of these.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (Ok(pattern), Ok(name)) = (CString::new(pattern), CString::new(name)) else {
        return false;
    };
    // SAFETY: both are strings that end with a zero byte and live until the call is over.
    let found = unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), libc::FNM_NOESCAPE) };
    found == 0
}

/// Returns true if `pattern`, in which `*` stands for any text, matches all names that the pattern `asked` matches.
pub fn covers(pattern: &str, asked: &str) -> bool {
    let Some((head, mut rest)) = pattern.split_once('*') else {
        return pattern == asked;
    };
    let Some(mut asked) = asked.strip_prefix(head) else {
        return false;
    };
    while let Some((part, after)) = rest.split_once('*') {
        let Some(at) = asked.find(part) else {
            return false;
        };
        asked = &asked[at + part.len()..];
        rest = after;
    }
    asked.ends_with(rest)
}

pub fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// A comma-separated list of terms that must all hold: `web*`, `role=edge`, `role!=db`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Name(String),
    Label { key: String, value: String, equal: bool },
}

impl Term {
    /// Returns true if this term holds wherever the other one does.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(pattern), Self::Name(asked)) => covers(pattern, asked),
            (Self::Label { key, value, equal: true }, Self::Label { key: asked_key, value: asked, equal: true }) => {
                key == asked_key && covers(value, asked)
            }
            _ => self == other,
        }
    }
}

impl Selector {
    pub fn parse(text: &str) -> Result<Self> {
        let term = |text: &str| {
            let text = text.trim();
            let (pair, equal) = match text.split_once("!=") {
                Some(pair) => (Some(pair), false),
                None => (text.split_once('='), true),
            };
            match pair {
                _ if text.is_empty() => None,
                Some(("", _)) => None,
                Some((key, value)) => Some(Term::Label { key: key.to_owned(), value: value.to_owned(), equal }),
                None => Some(Term::Name(text.to_owned())),
            }
        };
        let terms: Option<Vec<Term>> = text.split(',').map(term).collect();
        terms.map(Self).ok_or_else(|| {
            let what = format!("cannot understand the selector '{text}'");
            Error::usage(what, "a term is empty").fix("write for example 'web*', role=edge or 'web*,role=edge'")
        })
    }

    /// Returns true if this is an exact name rather than a pattern or labels.
    pub fn is_name(&self) -> bool {
        matches!(&self.0[..], [Term::Name(name)] if !is_pattern(name))
    }

    pub fn selects(&self, name: &str, labels: &Labels) -> bool {
        self.0.iter().all(|term| match term {
            Term::Name(pattern) => matches(pattern, name),
            Term::Label { key, value, equal } => {
                let found = labels.get(key).map_or("", String::as_str);
                matches(value, found) == *equal
            }
        })
    }

    /// Returns true only if this selector selects everything that the other one selects. May return false although it
    /// does.
    pub fn covers(&self, other: &Self) -> bool {
        let all = Term::Name("*".to_owned());
        self.0.iter().all(|term| *term == all || other.0.iter().any(|one| term.covers(one)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_the_shell() {
        for (pattern, name, expected) in [
            ("veth*", "veth0", true),
            ("veth*", "veth", true),
            ("veth*", "eth0", false),
            ("*", "lo", true),
            ("*th*1", "veth0.1", true),
            ("*th*1", "veth0.2", false),
            ("eth?", "eth0", true),
            ("eth?", "eth10", false),
            ("eth[0-2]", "eth1", true),
            ("eth[0-2]", "eth3", false),
            ("eth[!0-2]", "eth3", true),
            ("eth[!0-2]*", "eth1", false),
            ("eth[", "eth[", true),
            ("e[]t]h", "e]h", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn all_terms_hold() {
        let labels = Labels::from([("role".to_owned(), "edge".to_owned())]);
        for (text, expected) in [
            ("*", true),
            ("web*", true),
            ("db*", false),
            ("role=edge", true),
            ("role=e*,web1", true),
            ("role=db", false),
            ("role!=db", true),
            ("zone!=a", true),
            ("zone=", true),
            ("web1,role!=edge", false),
        ] {
            let selector = Selector::parse(text).unwrap();
            assert_eq!(selector.selects("web1", &labels), expected, "{text}");
        }
        for text in ["", "a,,b", "=b"] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn selectors_cover_narrower_ones() {
        for (allowed, asked, expected) in [
            ("*", "role=edge", true),
            ("web*", "web1", true),
            ("web*", "web*,role=edge", true),
            ("web*", "w*", false),
            ("web1", "role=edge", false),
            ("role=edge", "role=edge,web1", true),
            ("role=*", "role=edge", true),
            ("role=edge", "role=*", false),
            ("role=edge", "role!=db", false),
            ("role=edge", "web1", false),
            ("role!=db", "role!=db", true),
            ("role!=db", "role=edge", false),
            ("role=edge,zone=a", "role=edge", false),
        ] {
            let [all, some] = [allowed, asked].map(|text| Selector::parse(text).unwrap());
            assert_eq!(all.covers(&some), expected, "{allowed} {asked}");
        }
    }
}
