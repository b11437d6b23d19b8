//! The two forms of a rule file, TOML and YAML: which one it is, and what stands in it, each entry with its place.

use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use super::notation::{ActionName, Entry, PresetEntry, given};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Toml,
    Yaml,
}

impl Form {
    /// By the file's name; if that tells nothing, by the first line that says something.
    pub fn of(name: &str, text: &str) -> Self {
        let extension = Path::new(name).extension().and_then(|one| one.to_str());
        match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("toml") => return Self::Toml,
            Some("yaml" | "yml") => return Self::Yaml,
            _ => {}
        }
        let said = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let Some(line) = text.lines().map(str::trim).find(said) else {
            return Self::Toml;
        };
        // A table's name, or a key with its value.
        match line.starts_with('[') || line.split(':').next().unwrap_or("").contains('=') {
            true => Self::Toml,
            false => Self::Yaml,
        }
    }
}

/// What a file says, each entry with the place where it stands.
#[derive(Debug, Default)]
pub struct Content {
    pub default: Option<ActionName>,
    pub rules: Vec<(String, Entry)>,
    pub presets: Vec<(String, PresetEntry)>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "the names default, rules and presets",
    bound = "R: Deserialize<'de>, P: Deserialize<'de>"
)]
struct Whole<R, P> {
    #[serde(default, deserialize_with = "given")]
    default: Option<ActionName>,
    #[serde(default, alias = "rules")]
    rule: Vec<R>,
    #[serde(default, alias = "presets")]
    preset: Vec<P>,
}

impl Content {
    /// Errors are one line, with the place.
    pub fn read(text: &str, form: Form) -> Result<Self, String> {
        match form {
            Form::Toml => of_toml(text),
            Form::Yaml => of_yaml(text),
        }
    }
}

fn of_toml(text: &str) -> Result<Content, String> {
    let lines = Lines::of(text);
    let at = |offset| place(lines.position(offset));
    let whole: Whole<Spanned<Entry>, Spanned<PresetEntry>> =
        toml::from_str(text).map_err(|e: toml::de::Error| {
            let place = e.span().map(|span| format!("{}: ", at(span.start)));
            format!("{}{}", place.unwrap_or_default(), in_one_line(e.message()))
        })?;
    fn placed<T>(all: Vec<Spanned<T>>, at: impl Fn(usize) -> String) -> Vec<(String, T)> {
        all.into_iter()
            .map(|one| (at(one.span().start), one.into_inner()))
            .collect()
    }
    Ok(Content {
        default: whole.default,
        rules: placed(whole.rule, at),
        presets: placed(whole.preset, at),
    })
}

/// Places of entries are their numbers: the reader has lines for errors of its own alone.
fn of_yaml(text: &str) -> Result<Content, String> {
    // It knows a file without any values only as nothing.
    let whole: Option<Whole<Entry, PresetEntry>> = serde_yaml_ng::from_str(text).map_err(|e| {
        let words = in_one_line(&e.to_string());
        let Some(found) = e.location() else {
            return words;
        };
        let suffix = format!(" at line {} column {}", found.line(), found.column());
        let words = words.replace(&suffix, "");
        format!("{}: {words}", place((found.line(), found.column())))
    })?;
    fn placed<T>(all: Vec<T>, what: &str) -> Vec<(String, T)> {
        (1..)
            .map(|number: usize| format!("{what} {number}"))
            .zip(all)
            .collect()
    }
    Ok(whole.map_or_else(Content::default, |whole| Content {
        default: whole.default,
        rules: placed(whole.rule, "rule"),
        presets: placed(whole.preset, "preset"),
    }))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_known_by_name_or_by_what_is_written() {
        for (name, text, form) in [
            ("a.toml", "rules:", Form::Toml),
            ("a.yaml", "[[rule]]", Form::Yaml),
            ("a.YML", "", Form::Yaml),
            ("rules", "\n# all\n[[rule]]\n", Form::Toml),
            ("rules", "default = \"deny\"\n", Form::Toml),
            ("rules", "---\nrules: []\n", Form::Yaml),
            (
                "rules.conf",
                "# x = 1\nrules:\n- action: deny\n",
                Form::Yaml,
            ),
            ("standard input", "{default: deny, rules: []}", Form::Yaml),
            ("standard input", "", Form::Toml),
        ] {
            assert_eq!(Form::of(name, text), form, "{name}: {text}");
        }
    }
}
