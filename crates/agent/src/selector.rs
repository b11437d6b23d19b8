//! Which hosts are meant: by patterns of their names and by labels.

use trawl_sys::{Error, Result, names};

use crate::desired::Labels;

/// Terms that all hold: `web*`, `role=edge`, `role!=db`. Several are separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Name(String),
    Label {
        key: String,
        value: String,
        equal: bool,
    },
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
                Some((key, value)) => Some(Term::Label {
                    key: key.to_owned(),
                    value: value.to_owned(),
                    equal,
                }),
                None => Some(Term::Name(text.to_owned())),
            }
        };
        let terms: Option<Vec<Term>> = text.split(',').map(term).collect();
        terms.map(Self).ok_or_else(|| {
            let what = format!("cannot understand the selector '{text}'");
            Error::usage(what, "a term is empty")
                .fix("write for example 'web*', role=edge or 'web*,role=edge'")
        })
    }

    /// Whether it is a host's name as it is, and no pattern.
    pub fn is_name(&self) -> bool {
        matches!(&self.0[..], [Term::Name(name)] if !name.contains(['*', '?', '[']))
    }

    pub fn selects(&self, host: &str, labels: &Labels) -> bool {
        self.0.iter().all(|term| match term {
            Term::Name(pattern) => names::matches(pattern, host),
            Term::Label { key, value, equal } => {
                let found = labels.get(key).map_or("", String::as_str);
                names::matches(value, found) == *equal
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
