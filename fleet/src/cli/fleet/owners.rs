//! Captures of other operators: a change neither replaces nor ends them, unless it names their operators.

use std::collections::{BTreeMap, BTreeSet};

use trawl_sys::{Error, Result};

use crate::agent::Desired;
use crate::bus::fleet::Entry;

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

/// Refuses a change of a desired state that would replace or end captures of operators other than `own` and the ones
/// that may be replaced.
pub fn refuse_losses(
    entry: &Entry,
    before: &Desired,
    after: &Desired,
    own: &str,
    replaced: &BTreeSet<String>,
) -> std::result::Result<(), String> {
    let mut lost: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for capture in before.captures.iter().filter(|one| !after.captures.contains(one)) {
        let operator = entry.operator_of(&capture.name);
        if operator != own && !replaced.contains(operator) {
            lost.entry(operator).or_default().push(format!("'{}'", capture.name));
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    let named = lost.iter().map(|(operator, names)| {
        let (captures, belong) = if names.len() == 1 { ("capture", "belongs") } else { ("captures", "belong") };
        format!("the {captures} {} {belong} to the operator {operator}", names.join(", "))
    });
    let named: Vec<String> = named.collect();
    let options = |option: &str, operators: &mut dyn Iterator<Item = &str>| {
        let all: Vec<String> = operators.map(|operator| format!("{option} {operator}")).collect();
        all.join(" ")
    };
    let end = options("--replace", &mut lost.keys().copied());
    let keep = match entry.refused {
        Some(_) => format!("keep them by {}, ", options("--operator", &mut std::iter::once(entry.signer.as_str()))),
        None => String::new(),
    };
    Err(format!("{}; {keep}end them by {end}", named.join(", and ")))
}

/// Returns the operators of the captures of a changed state that are not `own`, by name. Captures of an unknown operator
/// are none of them.
pub fn others(entry: &Entry, before: &Desired, after: &Desired, own: &str) -> BTreeMap<String, String> {
    if entry.refused.is_some() {
        return BTreeMap::new();
    }
    let kept = after.captures.iter().filter(|one| before.captures.contains(one));
    let operators = kept.map(|one| (one.name.clone(), entry.operator_of(&one.name).to_owned()));
    operators.filter(|(_, operator)| operator != own).collect()
}
