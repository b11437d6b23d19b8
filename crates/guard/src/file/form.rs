//! What stands in a rule file in TOML, each entry with its place.

use serde::Deserialize;
use toml::Spanned;

use super::notation::{ActionName, Entry, InterfaceEntry, PresetEntry};
use crate::rule::Action;

/// What a file says, each entry with the place where it stands.
#[derive(Debug, Default)]
pub struct Content {
    pub default: Option<ActionName>,
    pub interfaces: Vec<(String, Action)>,
    pub rules: Vec<(String, Entry)>,
    pub presets: Vec<(String, PresetEntry)>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "the names default, interface, rule and preset"
)]
struct Whole {
    #[serde(default)]
    default: Option<ActionName>,
    #[serde(default)]
    interface: Vec<InterfaceEntry>,
    #[serde(default, alias = "rules")]
    rule: Vec<Spanned<Entry>>,
    #[serde(default, alias = "presets")]
    preset: Vec<Spanned<PresetEntry>>,
}

impl Content {
    /// Errors are one line, with the place.
    pub fn read(text: &str) -> Result<Self, String> {
        let lines = Lines::of(text);
        let at = |offset| place(lines.position(offset));
        let whole: Whole = toml::from_str(text).map_err(|e: toml::de::Error| {
            let place = e.span().map(|span| format!("{}: ", at(span.start)));
            format!("{}{}", place.unwrap_or_default(), in_one_line(e.message()))
        })?;
        fn placed<T>(all: Vec<Spanned<T>>, at: impl Fn(usize) -> String) -> Vec<(String, T)> {
            all.into_iter()
                .map(|one| (at(one.span().start), one.into_inner()))
                .collect()
        }
        let interfaces = whole.interface.into_iter();
        Ok(Self {
            default: whole.default,
            interfaces: interfaces
                .map(|one| (one.name, one.default.into()))
                .collect(),
            rules: placed(whole.rule, at),
            presets: placed(whole.preset, at),
        })
    }
}

fn in_one_line(words: &str) -> String {
    words.trim().replace('\n', ", ")
}

fn place((line, column): (usize, usize)) -> String {
    format!("line {line}, column {column}")
}

/// A text with the beginnings of its lines: files may have as many rules as lines, each with its place.
struct Lines<'t> {
    text: &'t str,
    begins: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let behind = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            text,
            begins: std::iter::once(0).chain(behind).collect(),
        }
    }

    /// Line and column, from one.
    fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.begins.partition_point(|begin| *begin <= offset);
        let begin = self.begins[line.saturating_sub(1)];
        let before = self.text.get(begin..offset).unwrap_or_default();
        (line, before.chars().count() + 1)
    }
}
