//! Rule files in TOML, read as a whole before anything is changed; what is wrong is told with its place.

mod form;
mod notation;
mod save;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use trawl_kernel::{Error, Result};

use self::form::Content;
use self::notation::{Entry, PresetEntry, Text};
pub use self::save::text_of;
use super::prefix::Prefix;
use super::rule::{Action, Match, TcpState};
use super::set::Draft;

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
    pub(super) fn parse(
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
        let mut sources: Vec<Prefix> = self.src.0.into_iter().map(|one| one.0).collect();
        if let Some(Text(list)) = self.src_file {
            let text = read_list(&list).map_err(|e| e.to_string())?;
            sources.extend(prefix_list(&text, &list)?);
        }
        let destinations = self.dst.0.into_iter().map(|one| one.0);
        let ports = self.port.0.into_iter().map(|one| one.0);
        let mut rules = Vec::new();
        let base = Match {
            protocol: self.proto.map(|one| one.0),
            icmp: self.icmp.map(|one| one.0),
            tcp,
            ..Match::default()
        };
        let (destinations, ports) = (choices(destinations), choices(ports));
        let sources = choices(sources.into_iter());
        let count = [sources.len(), destinations.len(), ports.len()]
            .into_iter()
            .try_fold(1usize, usize::checked_mul);
        if count.is_none_or(|count| count > room) {
            return Err(format!(
                "{} sources, {} destinations and {} ports make more than the {MOST_RULES} rules that a file may have",
                sources.len(),
                destinations.len(),
                ports.len()
            ));
        }
        for source in sources {
            for destination in &destinations {
                for ports in &ports {
                    let what = Match {
                        source,
                        destination: *destination,
                        ports: *ports,
                        ..base.clone()
                    };
                    let draft = Draft {
                        action: self.action.into(),
                        what: what.complete()?,
                        rate: self.rate.as_ref().map(|rate| rate.0),
                        expires: None,
                    };
                    rules.push(FileRule {
                        draft,
                        on: self.on.as_ref().map(|on| on.0.clone()),
                        lasts: self.lasts.as_ref().map(|lasts| lasts.0),
                        all: self.all,
                        place: place.to_owned(),
                    });
                }
            }
        }
        Ok(rules)
    }
}

/// Each of them, or once nothing.
fn choices<T>(all: impl Iterator<Item = T>) -> Vec<Option<T>> {
    let mut choices: Vec<Option<T>> = all.map(Some).collect();
    if choices.is_empty() {
        choices.push(None);
    }
    choices
}

/// Some editors begin a file with a mark that it is UTF-8.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// One prefix on each line; what is behind `#` or `;` is a remark.
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
