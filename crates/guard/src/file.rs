//! Rule files in TOML, parsed completely before anything is changed; errors name their position.

use std::collections::HashMap;
use std::fmt::{Display, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Unexpected, Visitor};
use toml::Spanned;
use trawl_sys::{Error, Result, clock, files::text_file};

use crate::rule::{Action, Draft, IcmpType, Match, Ports, Preset, Rule, TcpState};
use crate::set::RuleSet;
use crate::values::{self, MacPrefix, Prefix};

/// Maximum number of rules in a file; each combination of prefixes and ports is a rule.
const MOST_RULES: usize = 1_000_000;

/// A parsed and valid rule file. Interfaces are still names, and times begin when it is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFile {
    pub default: Option<Action>,
    /// Defaults of single interfaces, applied where the guard runs.
    pub interfaces: Vec<(String, Action)>,
    pub rules: Vec<FileRule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRule {
    pub draft: Draft,
    pub on: Option<String>,
    pub lasts: Option<Duration>,
    /// Set if the rule may match every packet.
    pub all: bool,
    /// Its position in the file, for messages.
    pub position: String,
}

impl RuleFile {
    pub fn read(path: &Path) -> Result<Self> {
        let directory = path.parent().unwrap_or(Path::new(""));
        Self::parse_in(&read(path)?, &path.display().to_string(), directory)
    }

    pub fn text_of_stdin() -> Result<String> {
        text_file::read_from(std::io::stdin().lock(), "cannot read the rules from standard input")
    }

    /// Refuses rules that deny every packet and are not marked as intended to.
    pub fn refuse_rules_about_everything(&self) -> Result<()> {
        let is_one = |rule: &&FileRule| rule.draft.denies_everything() && !rule.all;
        match self.rules.iter().find(is_one) {
            Some(rule) => Err(Error::failed(
                format!("the rule at {} would deny every packet", rule.position),
                "it names no address, protocol or port",
            )
            .fix("name an address, protocol or port; or write all = true in the rule, or use --all")),
            None => Ok(()),
        }
    }

    /// Parses rules; files that the text names are relative to this directory.
    pub fn parse_in(text: &str, name: &str, directory: &Path) -> Result<Self> {
        Self::parse(text, name, |file| read(&directory.join(file)))
    }

    /// Parses rules; `read_list` reads the files that the text names.
    pub fn parse(text: &str, name: &str, read_list: impl Fn(&str) -> Result<String>) -> Result<Self> {
        let what = || format!("cannot read the rules in {name}");
        let text = without_byte_order_mark(text);
        let lines = Lines::of(text);
        // An error is one line, with the position.
        let content: Content = toml::from_str(text).map_err(|e: toml::de::Error| {
            let position = e.span().map(|span| lines.position(span.start) + ": ");
            let why = e.message().trim().replace('\n', ", ");
            Error::failed(what(), position.unwrap_or_default() + &why)
        })?;
        let interfaces = content.interface.into_iter();
        let mut file = Self {
            default: content.default,
            interfaces: interfaces.map(|one| (one.name, one.default)).collect(),
            rules: Vec::new(),
        };
        for entry in content.preset {
            let position = lines.position(entry.span().start);
            file.rules.extend(entry.into_inner().rules(&position));
        }
        for entry in content.rule {
            let position = lines.position(entry.span().start);
            let room = MOST_RULES - file.rules.len().min(MOST_RULES);
            let rules = entry.into_inner().rules(&position, &read_list, room);
            file.rules.extend(rules.map_err(|why| Error::failed(what(), format!("{position}: {why}")))?);
        }
        let mut known = HashMap::new();
        for rule in &file.rules {
            let key = (&rule.draft.what, &rule.on, rule.draft.is_limit());
            if let Some(other) = known.insert(key, &rule.position) {
                let why =
                    format!("the rules at {other} and {} match the same packets:{}", rule.position, rule.draft.what);
                return Err(Error::failed(what(), why).fix("remove one of them"));
            }
        }
        Ok(file)
    }
}

fn read(path: &Path) -> Result<String> {
    let what = format!("cannot read {}", path.display());
    let about = std::fs::metadata(path).map_err(|e| Error::os(&what, e))?;
    // Pipes are accepted too: a shell replaces `<(command)` by one.
    if !about.is_file() && !about.file_type().is_fifo() {
        return Err(Error::failed(what, "it is not a file"));
    }
    text_file::read(path)
}

impl PresetEntry {
    fn rules(self, position: &str) -> Vec<FileRule> {
        let drafts = self.name.0.drafts(self.rate.map(|rate| rate.0.0));
        let rule = |draft| FileRule {
            draft,
            on: self.on.as_ref().map(|on| on.0.clone()),
            lasts: None,
            all: false,
            position: position.to_owned(),
        };
        drafts.into_iter().map(rule).collect()
    }
}

impl RuleEntry {
    /// Returns a rule for each combination of prefixes and ports.
    fn rules(
        self,
        position: &str,
        read_list: impl Fn(&str) -> Result<String>,
        room: usize,
    ) -> Result<Vec<FileRule>, String> {
        let tcp = match (self.syn, self.established) {
            (true, true) => return Err("syn and established exclude each other".to_owned()),
            (true, false) => Some(TcpState::Syn),
            (false, true) => Some(TcpState::Established),
            (false, false) => None,
        };
        let mut sources: Vec<Prefix> = self.src.0;
        if let Some(Value(list)) = self.src_file {
            let text = read_list(&list).map_err(|e| e.to_string())?;
            sources.extend(prefix_list(&text, &list)?);
        }
        let choices = Choices {
            destinations: self.dst.0,
            ports: self.port.0,
            source_ports: self.src_port.0,
            source_macs: self.src_mac.0,
            destination_macs: self.dst_mac.0,
            sources,
        };
        let base = Match {
            protocol: self.proto.map(|one| one.0.0),
            icmp: self.icmp.map(|one| one.0),
            tcp,
            ..Match::default()
        };
        if choices.count().is_none_or(|count| count > room) {
            return Err(format!("{choices} make more than the {MOST_RULES} rules that a file may have"));
        }
        choices
            .matches(base)
            .into_iter()
            .map(|what| {
                let draft = Draft {
                    action: self.action,
                    what: what.complete()?,
                    rate: self.rate.as_ref().map(|rate| rate.0.0),
                    expires: None,
                };
                Ok(FileRule {
                    draft,
                    on: self.on.as_ref().map(|on| on.0.clone()),
                    lasts: self.lasts.as_ref().map(|lasts| lasts.0.0),
                    all: self.all,
                    position: position.to_owned(),
                })
            })
            .collect()
    }
}

/// The lists of an entry: each combination of their values is a rule.
struct Choices {
    sources: Vec<Prefix>,
    destinations: Vec<Prefix>,
    ports: Vec<Ports>,
    source_ports: Vec<Ports>,
    source_macs: Vec<MacPrefix>,
    destination_macs: Vec<MacPrefix>,
}

impl Choices {
    fn lengths(&self) -> [(usize, &'static str); 6] {
        [
            (self.sources.len(), "sources"),
            (self.destinations.len(), "destinations"),
            (self.ports.len(), "ports"),
            (self.source_ports.len(), "source ports"),
            (self.source_macs.len(), "source MAC addresses"),
            (self.destination_macs.len(), "destination MAC addresses"),
        ]
    }

    /// Returns the number of combinations; `None` if it overflows.
    fn count(&self) -> Option<usize> {
        let mut lengths = self.lengths().into_iter();
        lengths.try_fold(1usize, |product, (length, _)| product.checked_mul(length.max(1)))
    }

    fn matches(self, base: Match) -> Vec<Match> {
        let all = vec![base];
        let all = each(all, &self.sources, |what, one| what.source = one);
        let all = each(all, &self.destinations, |what, one| what.destination = one);
        let all = each(all, &self.ports, |what, one| what.ports = one);
        let all = each(all, &self.source_ports, |what, one| what.source_ports = one);
        let all = each(all, &self.source_macs, |what, one| what.source_mac = one);
        each(all, &self.destination_macs, |what, one| what.destination_mac = one)
    }
}

impl std::fmt::Display for Choices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = self.lengths().into_iter().filter(|(length, _)| *length > 0);
        let words: Vec<String> = named.map(|(length, what)| format!("{length} {what}")).collect();
        match words.split_last() {
            Some((last, [])) => f.write_str(last),
            Some((last, others)) => write!(f, "{} and {last}", others.join(", ")),
            None => f.write_str("all packets"),
        }
    }
}

/// Combines each match with each value, or leaves it unchanged if no values are given.
fn each<T: Copy>(matches: Vec<Match>, values: &[T], set: impl Fn(&mut Match, Option<T>)) -> Vec<Match> {
    if values.is_empty() {
        return matches;
    }
    let with = |what: &Match, value| {
        let mut what = what.clone();
        set(&mut what, Some(value));
        what
    };
    let of_one = |what: &Match| -> Vec<Match> { values.iter().map(|one| with(what, *one)).collect() };
    matches.iter().flat_map(of_one).collect()
}

/// Removes the byte order mark with which some editors begin a file.
fn without_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Parses one prefix per line; text after `#` or `;` is a comment.
fn prefix_list(text: &str, name: &str) -> Result<Vec<Prefix>, String> {
    let mut all = Vec::new();
    for (number, line) in without_byte_order_mark(text).lines().enumerate() {
        let word = line.split(['#', ';']).next().unwrap_or_default().trim();
        if !word.is_empty() {
            let prefix = word.parse().map_err(|e| format!("{name}, line {}: {e}", number + 1))?;
            all.push(prefix);
        }
    }
    all.sort();
    all.dedup();
    if all.is_empty() { Err(format!("{name} contains no prefix")) } else { Ok(all) }
}

#[cfg(test)]
mod tests;

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "the names default, interface, rule and preset")]
struct Content {
    #[serde(default)]
    default: Option<Action>,
    #[serde(default)]
    interface: Vec<InterfaceEntry>,
    #[serde(default, alias = "rules")]
    rule: Vec<Spanned<RuleEntry>>,
    #[serde(default, alias = "presets")]
    preset: Vec<Spanned<PresetEntry>>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "the names and values of a rule")]
struct RuleEntry {
    action: Action,
    #[serde(default)]
    src: Many<Prefix>,
    /// A file with one prefix per line.
    #[serde(default)]
    src_file: Option<Value<String>>,
    #[serde(default)]
    dst: Many<Prefix>,
    #[serde(default)]
    proto: Option<Value<Protocol>>,
    #[serde(default)]
    port: Many<Ports>,
    #[serde(default)]
    src_port: Many<Ports>,
    #[serde(default)]
    src_mac: Many<MacPrefix>,
    #[serde(default)]
    dst_mac: Many<MacPrefix>,
    #[serde(default)]
    icmp: Option<Value<IcmpType>>,
    #[serde(default)]
    syn: bool,
    #[serde(default)]
    established: bool,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    on: Option<Value<String>>,
    #[serde(default)]
    rate: Option<Value<Rate>>,
    #[serde(default, rename = "for")]
    lasts: Option<Value<Lasts>>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "the preset's name, as in `name = \"syn-flood\"`")]
struct PresetEntry {
    name: Value<Preset>,
    #[serde(default)]
    rate: Option<Value<Rate>>,
    #[serde(default)]
    on: Option<Value<String>>,
}

/// The default of an interface.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "the names name and default")]
struct InterfaceEntry {
    name: String,
    default: Action,
}

#[derive(Debug)]
struct Protocol(u8);
#[derive(Debug)]
struct Rate(u64);
#[derive(Debug)]
struct Lasts(Duration);

macro_rules! parsed_by {
    ($($kind:ident: $parse:path),*) => {
        $(impl FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                $parse(text).map(Self)
            }
        })*
    };
}
parsed_by!(Protocol: values::protocol, Rate: values::rate, Lasts: values::duration);

/// A value, written as a string or as a number.
#[derive(Debug)]
struct Value<T>(T);

/// One value, or a list of them.
#[derive(Debug)]
struct Many<T>(Vec<T>);

impl<T> Default for Many<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

struct Values<T> {
    may_be_list: bool,
    of: PhantomData<T>,
}

impl<'de, T: FromStr<Err: Display>> Visitor<'de> for Values<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.may_be_list { "a value or a list of values" } else { "a text or a number" })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
        text.parse().map(|one| vec![one]).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Vec<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        if !self.may_be_list {
            return Err(de::Error::invalid_type(Unexpected::Seq, &self));
        }
        let mut all = Vec::new();
        while let Some(Value(one)) = list.next_element()? {
            all.push(one);
        }
        // An empty list would match everything, which is surely not intended.
        if all.is_empty() { Err(de::Error::custom("the list is empty")) } else { Ok(all) }
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (may_be_list, of) = (true, PhantomData);
        deserializer.deserialize_any(Values { may_be_list, of }).map(Self)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Value<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (may_be_list, of) = (false, PhantomData);
        let found = deserializer.deserialize_any(Values { may_be_list, of })?;
        let one = found.into_iter().next();
        one.map(Self).ok_or_else(|| de::Error::custom("no value"))
    }
}

/// The starts of a text's lines, found once: a large file asks for the positions of many rules.
struct Lines<'t> {
    text: &'t str,
    begins: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { text, begins: std::iter::once(0).chain(after_breaks).collect() }
    }

    /// Returns a position as line and column, both counted from one.
    fn position(&self, offset: usize) -> String {
        let line = self.begins.partition_point(|begin| *begin <= offset);
        let begin = self.begins[line.saturating_sub(1)];
        let before = self.text.get(begin..offset).unwrap_or_default();
        format!("line {line}, column {}", before.chars().count() + 1)
    }
}

/// Writes the rules as a file. Rules with a time limit get the time that remains.
pub fn text_of(set: &RuleSet) -> String {
    let mut text = "# Rules of trawl guard: trawl guard apply FILE\n".to_owned();
    let mut actions = set.defaults.iter().map(|default| default.action);
    let first = actions.next();
    match first {
        Some(action) if actions.all(|other| other == action) => {
            let _ = writeln!(text, "default = \"{}\"", action.name());
        }
        _ => {
            for default in &set.defaults {
                let _ = writeln!(
                    text,
                    "\n[[interface]]\nname = {}\ndefault = \"{}\"",
                    quoted(&default.on.name),
                    default.action.name()
                );
            }
        }
    }
    for rule in &set.rules {
        write_rule(&mut text, rule);
    }
    text
}

fn write_rule(text: &mut String, rule: &Rule) {
    let what = &rule.what;
    let _ = writeln!(text, "\n[[rule]]\naction = \"{}\"", rule.action.name());
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{name} = {value}");
        }
    };
    for (name, value) in what.conditions() {
        let value = value.map_or_else(|| "true".to_owned(), |value| quoted(&value));
        line(name, Some(value));
    }
    line("rate", rule.rate.map(|rate| rate.to_string()));
    let left = |end: u64| Duration::from_nanos(end.saturating_sub(clock::monotonic()));
    line("for", rule.expires.map(|end| quoted(&format!("{}s", left(end).as_secs().max(1)))));
    line("all", rule.denies_everything().then(|| "true".to_owned()));
}

/// Returns the text as a TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(letter));
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
