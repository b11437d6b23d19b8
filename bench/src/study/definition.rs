//! An experiment's declarative half: its question, its parameters, and the study's published results.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trawl_sys::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    pub name: String,
    /// Letter of the study in docs/STUDIES.md.
    pub study: String,
    pub reference: String,
    pub title: String,
    pub question: String,
    /// Stations of a packet's path, drawn from left to right.
    pub setup: Vec<String>,
    /// Work of each CPU, by its number; empty if several share one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<String>,
    /// The study's result, in a sentence.
    pub found: String,
    pub x: Axis,
    pub metrics: Vec<Axis>,
    #[serde(default)]
    pub quick: BTreeMap<String, Value>,
    #[serde(default)]
    pub full: BTreeMap<String, Value>,
    #[serde(default)]
    pub published: Vec<Published>,
    /// Reason for a peer's lead over trawl, for the closing note.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why_behind: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    pub name: String,
    pub label: String,
    #[serde(default)]
    pub unit: String,
    #[serde(default)]
    pub log: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lower_is_better: bool,
}

impl Axis {
    /// Returns the label with its unit.
    pub fn titled(&self) -> String {
        match self.unit.as_str() {
            "" => self.label.clone(),
            unit => format!("{} ({unit})", self.label),
        }
    }
}

/// Values of the study, plotted with marks of their own. They are never a pass mark.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    pub series: String,
    pub metric: String,
    pub points: Vec<[f64; 2]>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Number(f64),
    Numbers(Vec<f64>),
    Names(Vec<String>),
}

impl Value {
    fn all_names(&self) -> impl Iterator<Item = &str> {
        let names = match self {
            Self::Names(all) => all.as_slice(),
            _ => &[],
        };
        names.iter().map(String::as_str)
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(one) => write!(f, "{one}"),
            Self::Numbers(all) => {
                let all: Vec<String> = all.iter().map(f64::to_string).collect();
                f.write_str(&all.join(","))
            }
            Self::Names(all) if all.iter().any(|name| name.contains(',')) => f.write_str(&all.join("; ")),
            Self::Names(all) => f.write_str(&all.join(",")),
        }
    }
}

/// The parameters of one experiment in one run.
#[derive(Clone, Debug)]
pub struct Space {
    experiment: String,
    values: BTreeMap<String, Value>,
}

impl Definition {
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    /// Returns the parameters of a profile, with the values of `--set`. A KEY of the form EXPERIMENT.KEY is for that
    /// experiment alone, and overrides the value for all.
    pub fn space(&self, profile: Profile, set: &BTreeMap<String, String>) -> Result<Space> {
        let mut values = self.quick.clone();
        if profile == Profile::Full {
            values.extend(self.full.clone());
        }
        let mut set: Vec<(&String, &String)> = set.iter().collect();
        set.sort_by_key(|(key, _)| key.contains('.'));
        for (key, text) in set {
            let key = match key.split_once('.') {
                Some((experiment, key)) if experiment == self.name => key,
                Some(_) => continue,
                None => key,
            };
            let Some(old) = values.get(key) else {
                continue;
            };
            let known = [&self.quick, &self.full].map(|profile| profile.get(key));
            let known: Vec<&str> = known.into_iter().flatten().flat_map(Value::all_names).collect();
            let new = read(old, text, &known).ok_or_else(|| {
                Error::usage(format!("--set {key}={text}"), format!("{} requires a value like {old}", self.name))
            })?;
            values.insert(key.to_owned(), new);
        }
        Ok(Space { experiment: self.name.clone(), values })
    }

    pub fn has(&self, key: &str) -> bool {
        self.quick.contains_key(key) || self.full.contains_key(key)
    }
}

/// Splits a text at commas, or at semicolons if items have commas. Known items may have commas in any case.
fn names(text: &str, known: &[&str]) -> Vec<String> {
    let clean = |parts: &mut dyn Iterator<Item = &str>| -> Vec<String> {
        let parts = parts.map(str::trim).filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    };
    if text.contains(';') {
        return clean(&mut text.split(';'));
    }
    let parts = clean(&mut text.split(','));
    let mut found = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        let joined = |to: usize| parts[at..to].join(", ");
        let longest = (at + 1..=parts.len()).rev().find(|&to| known.contains(&joined(to).as_str()));
        let to = longest.unwrap_or(at + 1);
        found.push(joined(to));
        at = to;
    }
    found
}

/// Parses the text as a value of the same kind.
fn read(old: &Value, text: &str, known: &[&str]) -> Option<Value> {
    let number = |text: &str| text.trim().parse().ok().filter(|n: &f64| n.is_finite());
    let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let value = match old {
        Value::Number(_) => Value::Number(number(text)?),
        Value::Numbers(_) => Value::Numbers(parts().map(number).collect::<Option<_>>()?),
        Value::Names(_) => Value::Names(names(text, known)),
    };
    let is_empty = match &value {
        Value::Numbers(all) => all.is_empty(),
        Value::Names(all) => all.is_empty(),
        _ => false,
    };
    (!is_empty).then_some(value)
}

impl Space {
    pub fn number(&self, key: &str) -> Result<f64> {
        match self.values.get(key) {
            Some(Value::Number(one)) => Ok(*one),
            _ => Err(self.lacks(key)),
        }
    }

    pub fn numbers(&self, key: &str) -> Result<Vec<f64>> {
        match self.values.get(key) {
            Some(Value::Numbers(all)) => Ok(all.clone()),
            Some(Value::Number(one)) => Ok(vec![*one]),
            _ => Err(self.lacks(key)),
        }
    }

    pub fn names(&self, key: &str) -> Result<Vec<String>> {
        match self.values.get(key) {
            Some(Value::Names(all)) => Ok(all.clone()),
            _ => Err(self.lacks(key)),
        }
    }

    pub fn as_text(&self) -> BTreeMap<String, String> {
        let text = |(key, value): (&String, &Value)| (key.clone(), value.to_string());
        self.values.iter().map(text).collect()
    }

    fn lacks(&self, key: &str) -> Error {
        Error::failed(
            format!("experiment {}", self.experiment),
            format!("its definition has no parameter {key} of this kind"),
        )
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// A few points, each a fraction of a second.
    #[default]
    Quick,
    /// The study's own parameter space.
    Full,
}

impl Profile {
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Definition {
        let mut one = Definition { name: "one".to_owned(), ..Definition::default() };
        let quick = [
            ("rates", Value::Numbers(vec![1.0, 2.0])),
            ("seconds", Value::Number(0.5)),
            ("series", Value::Names(vec!["a".to_owned()])),
        ];
        one.quick = quick.map(|(key, value)| (key.to_owned(), value)).into();
        one.full = [("seconds".to_owned(), Value::Number(40.0))].into();
        one
    }

    #[test]
    fn series_have_commas_in_their_names() {
        let known = ["trawl hook, drop", "xdpcap, drop", "tcpdump"];
        let found = |text| names(text, &known);
        assert_eq!(found("trawl hook, drop"), ["trawl hook, drop"]);
        assert_eq!(found("tcpdump,trawl hook, drop,xdpcap,drop"), ["tcpdump", "trawl hook, drop", "xdpcap, drop"]);
        assert_eq!(found("trawl tc; one, two"), ["trawl tc", "one, two"]);
        assert_eq!(found("64KiB,1MiB"), ["64KiB", "1MiB"]);
        assert!(found(" , ").is_empty());
    }

    #[test]
    fn full_replaces_the_keys_it_names_and_set_replaces_both() {
        let set = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        let both = ["one.seconds", "seconds"].map(|key| (key.to_owned(), key.len().to_string()));
        let none = BTreeMap::new();
        let seconds = |profile, set: &BTreeMap<_, _>| {
            definition().space(profile, set).expect("valid").number("seconds").expect("a number")
        };
        assert_eq!(seconds(Profile::Quick, &none), 0.5);
        assert_eq!(seconds(Profile::Full, &none), 40.0);
        assert_eq!(seconds(Profile::Full, &set("seconds", "2")), 2.0);
        assert_eq!(seconds(Profile::Full, &set("one.seconds", "3")), 3.0);
        assert_eq!(seconds(Profile::Full, &set("other.seconds", "3")), 40.0);
        assert_eq!(seconds(Profile::Full, &both.into()), 11.0);
        let rates = definition().space(Profile::Quick, &set("rates", "5, 6")).expect("valid");
        assert_eq!(rates.numbers("rates").expect("numbers"), [5.0, 6.0]);
        for (key, value) in [("seconds", "soon"), ("rates", "1,x"), ("rates", ""), ("seconds", "nan")] {
            assert!(definition().space(Profile::Quick, &set(key, value)).is_err(), "{key}={value}");
        }
    }
}
