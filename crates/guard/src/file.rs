//! Rule files in TOML, read as a whole before anything is changed; what is wrong is told with its place.

mod notation;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use notation::{ActionName, Entry, InterfaceEntry, Many, PresetEntry, Text};
use serde::Deserialize;
use toml::Spanned;
use trawl_sys::{Error, Result, clock};

use crate::rule::{Action, Match, Ports, Rule, TcpState};
use crate::set::{Draft, RuleSet};
use crate::values::{self, MacPrefix, Prefix};

/// Lists of prefixes are longer than anything else that is read.
const LARGEST: u64 = 64 << 20;
/// Each combination of prefixes and ports is a rule.
const MOST_RULES: usize = 1_000_000;

/// A rule file, read and found sound. Interfaces are still names, and times begin when it is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFile {
    pub default: Option<Action>,
    /// Defaults of single interfaces, where they are guarded.
    pub interfaces: Vec<(String, Action)>,
    pub rules: Vec<FileRule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRule {
    pub draft: Draft,
    pub on: Option<String>,
    pub lasts: Option<Duration>,
    /// It is meant to be about every packet.
    pub all: bool,
    /// Where it stands in the file, for messages.
    pub place: String,
}

impl RuleFile {
    pub fn read(path: &Path) -> Result<Self> {
        let directory = path.parent().unwrap_or(Path::new(""));
        Self::parse_in(&read(path)?, &path.display().to_string(), directory)
    }

    pub fn text_of_stdin() -> Result<String> {
        read_bounded(
            std::io::stdin().lock(),
            "cannot read the rules from standard input",
        )
    }

    /// Refuses rules that deny every packet and do not say that they are meant to.
    pub fn refuse_rules_about_everything(&self) -> Result<()> {
        let is_one = |rule: &&FileRule| {
            rule.draft.action == Action::Deny
                && rule.draft.rate.is_none()
                && rule.draft.what.is_about_everything()
                && !rule.all
        };
        match self.rules.iter().find(is_one) {
            Some(rule) => Err(Error::failed(
                format!("the rule at {} would deny every packet", rule.place),
                "it names no address, protocol or port",
            )
            .fix("name what to deny, write all = true in it, or --all")),
            None => Ok(()),
        }
    }

    /// Files that are named in the text are looked for in this directory.
    pub fn parse_in(text: &str, name: &str, directory: &Path) -> Result<Self> {
        Self::parse(text, name, |file| read(&directory.join(file)))
    }

    /// `read_list` reads files that are named in the text.
    pub fn parse(
        text: &str,
        name: &str,
        read_list: impl Fn(&str) -> Result<String>,
    ) -> Result<Self> {
        let what = || format!("cannot read the rules in {name}");
        let text = without_mark(text);
        let content = Content::read(text).map_err(|why| Error::failed(what(), why))?;
        let mut file = Self {
            default: content.default.map(Action::from),
            interfaces: content.interfaces,
            rules: Vec::new(),
        };
        for (place, entry) in content.presets {
            file.rules.extend(entry.rules(&place));
        }
        for (place, entry) in content.rules {
            let room = MOST_RULES - file.rules.len().min(MOST_RULES);
            let rules = entry.rules(&place, &read_list, room);
            file.rules
                .extend(rules.map_err(|why| Error::failed(what(), format!("{place}: {why}")))?);
        }
        let mut known = HashMap::new();
        for rule in &file.rules {
            let key = (&rule.draft.what, &rule.on, rule.draft.is_limit());
            if let Some(other) = known.insert(key, &rule.place) {
                let why = format!(
                    "the rules at {other} and {} are about the same packets:{}",
                    rule.place, rule.draft.what
                );
                return Err(Error::failed(what(), why).fix("leave one of them out"));
            }
        }
        Ok(file)
    }
}

fn read(path: &Path) -> Result<String> {
    let what = format!("cannot read {}", path.display());
    let about = std::fs::metadata(path).map_err(|e| Error::os(&what, e))?;
    // A pipe is as good as a file: a shell makes one of `<(command)`.
    if !about.is_file() && !about.file_type().is_fifo() {
        return Err(Error::failed(what, "it is not a file"));
    }
    let file = File::open(path).map_err(|e| Error::os(&what, e))?;
    read_bounded(file, &what)
}

fn read_bounded(source: impl Read, what: &str) -> Result<String> {
    let mut text = String::new();
    let mut source = source.take(LARGEST + 1);
    source
        .read_to_string(&mut text)
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => Error::failed(what, "it is not text"),
            _ => Error::os(what, e),
        })?;
    if text.len() as u64 > LARGEST {
        let most = format!("it is larger than {} MiB", LARGEST >> 20);
        return Err(Error::failed(what, most));
    }
    Ok(text)
}

impl PresetEntry {
    fn rules(self, place: &str) -> Vec<FileRule> {
        let drafts = self.name.0.drafts(self.rate.map(|rate| rate.0));
        let rule = |draft| FileRule {
            draft,
            on: self.on.as_ref().map(|on| on.0.clone()),
            lasts: None,
            all: false,
            place: place.to_owned(),
        };
        drafts.into_iter().map(rule).collect()
    }
}

impl Entry {
    /// One for each combination of prefixes and ports.
    fn rules(
        self,
        place: &str,
        read_list: impl Fn(&str) -> Result<String>,
        room: usize,
    ) -> Result<Vec<FileRule>, String> {
        let tcp = match (self.syn, self.established) {
            (true, true) => return Err("a packet is not both syn and established".to_owned()),
            (true, false) => Some(TcpState::Syn),
            (false, true) => Some(TcpState::Established),
            (false, false) => None,
        };
        fn values<T>(many: Many<Text<T>>) -> Vec<T> {
            many.0.into_iter().map(|one| one.0).collect()
        }
        let mut sources: Vec<Prefix> = values(self.src);
        if let Some(Text(list)) = self.src_file {
            let text = read_list(&list).map_err(|e| e.to_string())?;
            sources.extend(prefix_list(&text, &list)?);
        }
        let choices = Choices {
            destinations: values(self.dst),
            ports: values(self.port),
            source_ports: values(self.src_port),
            source_macs: values(self.src_mac),
            destination_macs: values(self.dst_mac),
            sources,
        };
        let base = Match {
            protocol: self.proto.map(|one| one.0),
            icmp: self.icmp.map(|one| one.0),
            tcp,
            ..Match::default()
        };
        if choices.count().is_none_or(|count| count > room) {
            return Err(format!(
                "{choices} make more than the {MOST_RULES} rules that a file may have"
            ));
        }
        choices
            .matches(base)
            .into_iter()
            .map(|what| {
                let draft = Draft {
                    action: self.action.into(),
                    what: what.complete()?,
                    rate: self.rate.as_ref().map(|rate| rate.0),
                    expires: None,
                };
                Ok(FileRule {
                    draft,
                    on: self.on.as_ref().map(|on| on.0.clone()),
                    lasts: self.lasts.as_ref().map(|lasts| lasts.0),
                    all: self.all,
                    place: place.to_owned(),
                })
            })
            .collect()
    }
}

/// What an entry names several of: each combination is a rule.
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

    /// `None` where no number is large enough.
    fn count(&self) -> Option<usize> {
        let mut lengths = self.lengths().into_iter();
        lengths.try_fold(1usize, |product, (length, _)| {
            product.checked_mul(length.max(1))
        })
    }

    fn matches(self, base: Match) -> Vec<Match> {
        let all = vec![base];
        let all = each(all, &self.sources, |what, one| what.source = one);
        let all = each(all, &self.destinations, |what, one| what.destination = one);
        let all = each(all, &self.ports, |what, one| what.ports = one);
        let all = each(all, &self.source_ports, |what, one| what.source_ports = one);
        let all = each(all, &self.source_macs, |what, one| what.source_mac = one);
        each(all, &self.destination_macs, |what, one| {
            what.destination_mac = one
        })
    }
}

impl std::fmt::Display for Choices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = self.lengths().into_iter().filter(|(length, _)| *length > 0);
        let words: Vec<String> = named
            .map(|(length, what)| format!("{length} {what}"))
            .collect();
        match words.split_last() {
            Some((last, [])) => f.write_str(last),
            Some((last, others)) => write!(f, "{} and {last}", others.join(", ")),
            None => f.write_str("all packets"),
        }
    }
}

/// Each of the matches with each of the values, or as it is where there is none.
fn each<T: Copy>(
    matches: Vec<Match>,
    values: &[T],
    set: impl Fn(&mut Match, Option<T>),
) -> Vec<Match> {
    if values.is_empty() {
        return matches;
    }
    let with = |what: &Match, value| {
        let mut what = what.clone();
        set(&mut what, Some(value));
        what
    };
    let of_one =
        |what: &Match| -> Vec<Match> { values.iter().map(|one| with(what, *one)).collect() };
    matches.iter().flat_map(of_one).collect()
}

/// Some editors begin a file with a mark that it is UTF-8.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// One prefix on each line; what comes after `#` or `;` is a remark.
fn prefix_list(text: &str, name: &str) -> Result<Vec<Prefix>, String> {
    let mut all = Vec::new();
    for (number, line) in without_mark(text).lines().enumerate() {
        let word = line.split(['#', ';']).next().unwrap_or_default().trim();
        if !word.is_empty() {
            let prefix = word
                .parse()
                .map_err(|e| format!("{name}, line {}: {e}", number + 1))?;
            all.push(prefix);
        }
    }
    all.sort();
    all.dedup();
    match all.is_empty() {
        true => Err(format!("there is no prefix in {name}")),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests;

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

/// The file. Rules with a time get what is left of it.
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
    line("src", what.source.map(|one| quoted(&one.to_string())));
    line("dst", what.destination.map(|one| quoted(&one.to_string())));
    line(
        "proto",
        what.protocol.map(|one| quoted(&values::protocol_name(one))),
    );
    line("port", what.ports.map(|one| quoted(&one.to_string())));
    line(
        "src-port",
        what.source_ports.map(|one| quoted(&one.to_string())),
    );
    line(
        "src-mac",
        what.source_mac.map(|one| quoted(&one.to_string())),
    );
    line(
        "dst-mac",
        what.destination_mac.map(|one| quoted(&one.to_string())),
    );
    line(
        "icmp",
        what.icmp
            .map(|one| quoted(&values::icmp_type_name(one.v4, one.v6))),
    );
    let is = |state| (what.tcp == Some(state)).then(|| "true".to_owned());
    line("syn", is(TcpState::Syn));
    line("established", is(TcpState::Established));
    line("on", what.on.as_ref().map(|on| quoted(&on.name)));
    line("rate", rule.rate.map(|rate| rate.to_string()));
    let left = |end: u64| Duration::from_nanos(end.saturating_sub(clock::monotonic()));
    line(
        "for",
        rule.expires
            .map(|end| quoted(&format!("{}s", left(end).as_secs().max(1)))),
    );
    let is_all = rule.action == Action::Deny && rule.rate.is_none() && what.is_about_everything();
    line("all", is_all.then(|| "true".to_owned()));
}

/// A text in TOML.
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
