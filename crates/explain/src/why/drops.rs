//! The table of drop reasons: what each means, since which kernel it exists, the advice about it, commands that reproduce
//! it, and what was recorded when they ran. Advice in rows, `--explain`, the pages in docs/drops and the tests use it.

use std::sync::LazyLock;

use trawl_view::text;

/// The files of the table, in the order of the index.
const SUBJECTS: [&str; 12] = [
    include_str!("drops/sockets.txt"),
    include_str!("drops/tcp.txt"),
    include_str!("drops/ip.txt"),
    include_str!("drops/ipv6.txt"),
    include_str!("drops/neighbours.txt"),
    include_str!("drops/programs.txt"),
    include_str!("drops/queues.txt"),
    include_str!("drops/devices.txt"),
    include_str!("drops/tunnels.txt"),
    include_str!("drops/subsystems.txt"),
    include_str!("drops/functions.txt"),
    include_str!("drops/ipsec.txt"),
];
/// The rows that `trawl why` printed while the commands ran, written by the tests.
const RECORDED: &str = include_str!("drops/recorded.txt");
/// Begin of the paragraph with the remedy.
const FIX: &str = "Fix: ";
/// Prefixes of the kernel's full names.
const PREFIXES: [&str; 2] = ["SKB_DROP_REASON_", "OVS_DROP_"];

/// The reasons of one part of the network stack.
#[derive(Debug)]
pub struct Subject {
    pub title: &'static str,
    pub reasons: Vec<Reason>,
}

/// A drop reason, or a group of reasons, with a page.
#[derive(Debug, Default)]
pub struct Reason {
    /// The kernel's name. A `*` at the end stands for any suffix.
    pub name: &'static str,
    /// Its name in newer kernels, if that changed.
    pub later: Option<&'static str>,
    /// The first version with it, or the versions between which it was added.
    pub since: &'static str,
    /// A few words.
    pub short: &'static str,
    /// Functions of the kernel that give it.
    pub functions: Vec<&'static str>,
    /// Counters of nstat that go up by the same packets.
    pub counters: Vec<&'static str>,
    /// A counter of another tool, which the commands themselves check.
    pub other_counter: Option<&'static str>,
    /// A shell command that fails if the kernel lacks a module for the commands.
    pub needs: Option<&'static str>,
    /// True if the kernel does not name the namespace of such packets.
    pub is_everywhere: bool,
    /// The last version of the kernel that gives this reason to the packets of the commands.
    pub until: Option<(u32, u32)>,
    /// Why it is not reproduced, if it is not.
    pub obstacle: Option<&'static str>,
    pub meaning: Vec<String>,
    /// Shell commands that reproduce it in a lab.
    pub commands: String,
    pub fix: String,
    pub recorded: Option<Recorded>,
}

/// The row of `trawl why` while the commands of a reason ran.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The kernel's release.
    pub kernel: &'static str,
    /// True if it counts as no loss, so that `--all` shows it.
    pub with_all: bool,
    pub row: String,
}

/// A block of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Block {
    Heading(String),
    Text(String),
    Commands(String),
    Output(String),
}

/// An entry of a file of the table.
#[derive(Debug, Default)]
struct Entry {
    name: &'static str,
    keys: Vec<(&'static str, &'static str)>,
    paragraphs: Vec<String>,
    indented: String,
}

impl Entry {
    fn key(&self, key: &str) -> Option<&'static str> {
        self.keys.iter().find(|(one, _)| *one == key).map(|(_, value)| *value)
    }

    fn list(&self, key: &str) -> Vec<&'static str> {
        self.key(key).map_or_else(Vec::new, |list| list.split(", ").collect())
    }
}

/// Returns the title and the entries of a file: keys, an empty line, paragraphs, and indented lines among these.
fn parse(text: &'static str) -> (&'static str, Vec<Entry>) {
    let mut title = "";
    let mut entries: Vec<Entry> = Vec::new();
    let (mut in_keys, mut in_paragraph) = (true, false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            entries.push(Entry { name, ..Entry::default() });
            in_keys = true;
            continue;
        }
        let Some(entry) = entries.last_mut() else {
            title = line.strip_prefix("# ").unwrap_or(title);
            continue;
        };
        if line.is_empty() {
            (in_keys, in_paragraph) = (false, false);
        } else if in_keys {
            entry.keys.push(line.split_once(": ").unwrap_or((line, "")));
        } else if let Some(command) = line.strip_prefix("    ") {
            entry.indented += &format!("{command}\n");
        } else if let (true, Some(paragraph)) = (in_paragraph, entry.paragraphs.last_mut()) {
            *paragraph += &format!(" {line}");
        } else {
            entry.paragraphs.push(line.to_owned());
            in_paragraph = true;
        }
    }
    (title, entries)
}

static TABLE: LazyLock<Vec<(&'static str, Vec<Entry>)>> = LazyLock::new(|| SUBJECTS.into_iter().map(parse).collect());

/// All reasons with a page, by subject.
static REASONS: LazyLock<Vec<Subject>> = LazyLock::new(|| {
    let (_, recorded) = parse(RECORDED);
    let subjects = TABLE.iter().map(|(title, entries)| {
        let reasons = entries.iter().filter_map(|entry| Reason::new(entry, &recorded)).collect();
        Subject { title, reasons }
    });
    subjects.filter(|subject: &Subject| !subject.reasons.is_empty()).collect()
});

/// Lines of advice, each with its subject: a reason, `@FUNCTION,…`, or both; a `*` at the end of a reason stands for any
/// suffix.
pub(super) static ADVICE: LazyLock<Vec<(String, &'static str)>> = LazyLock::new(|| {
    let entries = TABLE.iter().flat_map(|(_, entries)| entries);
    let lines = entries.flat_map(|entry| {
        let names = [Some(entry.name), entry.key("later")].into_iter().flatten();
        names.flat_map(|name| {
            let advice = entry.keys.iter().filter_map(move |(key, advice)| {
                let functions = key.strip_prefix("advice")?;
                Some((format!("{name}{functions}"), *advice))
            });
            advice.collect::<Vec<_>>()
        })
    });
    lines.collect()
});

/// Returns all reasons with a page, by subject.
pub fn subjects() -> &'static [Subject] {
    &REASONS
}

/// Returns all reasons with a page.
pub fn reasons() -> impl Iterator<Item = &'static Reason> {
    REASONS.iter().flat_map(|subject| &subject.reasons)
}

/// Finds the page of a reason by any of its names.
pub fn find(name: &str) -> Option<&'static Reason> {
    let name = name.trim().to_ascii_uppercase();
    let name = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name);
    let exact = reasons().find(|reason| reason.name == name || reason.later == Some(name));
    exact.or_else(|| {
        let groups = reasons().filter(|reason| !name.is_empty() && reason.is_group());
        groups
            .max_by_key(|reason| if reason.includes(name) { reason.name.len() } else { 0 })
            .filter(|r| r.includes(name))
    })
}

impl Reason {
    /// Makes the reason of an entry; `None` if the entry has advice only.
    fn new(entry: &Entry, recorded: &[Entry]) -> Option<Self> {
        let fix = entry.paragraphs.iter().find_map(|text| text.strip_prefix(FIX));
        let found = recorded.iter().find(|one| one.name == entry.name);
        Some(Self {
            name: entry.name,
            later: entry.key("later"),
            since: entry.key("since").unwrap_or_default(),
            short: entry.key("short")?,
            functions: entry.list("source"),
            counters: entry.list("counters"),
            other_counter: entry.key("moves"),
            needs: entry.key("needs"),
            is_everywhere: entry.key("scope").is_some(),
            until: entry.key("until").and_then(|version| {
                let (major, minor) = version.split_once('.')?;
                Some((major.parse().ok()?, minor.parse().ok()?))
            }),
            obstacle: entry.key("not"),
            meaning: entry.paragraphs.iter().filter(|text| !text.starts_with(FIX)).cloned().collect(),
            commands: entry.indented.clone(),
            fix: fix.unwrap_or_default().to_owned(),
            recorded: found.map(|one| Recorded {
                kernel: one.key("kernel").unwrap_or_default(),
                with_all: one.key("options").is_some(),
                row: one.indented.clone(),
            }),
        })
    }

    fn is_group(&self) -> bool {
        self.name.ends_with('*')
    }

    fn includes(&self, name: &str) -> bool {
        self.name.strip_suffix('*').is_some_and(|begin| name.starts_with(begin))
    }

    /// Returns the name of its page in docs/drops.
    pub fn file(&self) -> String {
        format!("{}.md", self.name.trim_end_matches(['*', '_']))
    }

    /// Returns the page.
    pub fn page(&self) -> Vec<Block> {
        let mut page = vec![Block::Heading(format!("{}: {}", self.name, self.short))];
        let mut text = |words: String| page.push(Block::Text(words));
        self.meaning.iter().for_each(|words| text(words.clone()));
        let later = self.later.map_or(String::new(), |name| format!("; Linux 7.3 calls it {name}"));
        text(format!("Kernels: {}{later}.", self.since_words()));
        if !self.functions.is_empty() {
            text(format!("Functions of the kernel: `{}`.", self.functions.join("`, `")));
        }
        match &self.recorded {
            Some(recorded) => self.reproduction(recorded, &mut page),
            None => {
                let obstacle =
                    self.obstacle.unwrap_or("the commands below need another kernel, or a module that was missing");
                page.push(Block::Text(format!("Not reproduced here: {obstacle}.")));
                if !self.commands.is_empty() {
                    page.push(Block::Commands(self.commands.clone()));
                }
            }
        }
        page.push(Block::Text(format!("{FIX}{}", self.fix)));
        page
    }

    fn reproduction(&self, recorded: &Recorded, page: &mut Vec<Block>) {
        let all = if recorded.with_all { "--all " } else { "" };
        let scope = if self.is_everywhere { "--all-namespaces" } else { "--netns trawl-lab-b" };
        let until = self.until.map_or(String::new(), |(major, minor)| format!(" under Linux {major}.{minor} or older"));
        page.push(Block::Text(format!(
            "To reproduce it{until}, run these commands in docs/drops, with a lab (`trawl lab up`), while `trawl why {all}{scope}` runs:"
        )));
        page.push(Block::Commands(self.commands.clone()));
        page.push(Block::Text(format!("`trawl why` then prints (recorded with Linux {}):", recorded.kernel)));
        page.push(Block::Output(recorded.row.clone()));
        if !self.counters.is_empty() {
            page.push(Block::Text(format!("`{}` of nstat goes up as well.", self.counters.join("`, `"))));
        }
        if let Some(counter) = self.other_counter {
            page.push(Block::Text(format!("Another counter goes up as well: {counter}.")));
        }
        if self.counters.is_empty() && self.other_counter.is_none() {
            page.push(Block::Text("No counter is known that shows these packets alone.".to_owned()));
        }
    }

    /// Describes the versions.
    fn since_words(&self) -> String {
        if let Some(version) = self.since.strip_suffix(" or older") {
            return format!("Linux {version} and later; older ones may have it too");
        }
        match self.since.split_once(" to ") {
            Some((first, last)) => format!("added in one of Linux {first} to {last}"),
            None => format!("since Linux {}", self.since),
        }
    }
}

/// Returns a page as Markdown.
pub fn markdown(page: &[Block]) -> String {
    let mut text = String::new();
    for block in page {
        text += &match block {
            Block::Heading(words) => format!("# {words}\n\n"),
            Block::Text(words) => format!("{}\n\n", text::lines(words, 120).join("\n")),
            Block::Commands(lines) => format!("```sh\n{lines}```\n\n"),
            Block::Output(lines) => format!("```\n{lines}```\n\n"),
        };
    }
    text + "[All reasons](README.md)\n"
}

/// Returns a page as plain text of this width.
pub fn plain(page: &[Block], width: usize) -> String {
    let indented = |lines: &str| -> String { lines.lines().map(|line| format!("    {line}\n")).collect() };
    let blocks = page.iter().map(|block| match block {
        Block::Heading(words) | Block::Text(words) => text::lines(words, width).join("\n") + "\n",
        Block::Commands(lines) | Block::Output(lines) => indented(lines),
    });
    blocks.collect::<Vec<_>>().join("\n")
}

/// Returns the index of all pages as Markdown.
pub fn index() -> String {
    let all: Vec<&Reason> = reasons().collect();
    let reproduced = all.iter().filter(|reason| reason.recorded.is_some()).count();
    let mut text = format!(
        "# Reasons of dropped packets

Linux gives a reason when it drops a packet, and `trawl why` shows it. Each reason has a page here: what it means, commands
that reproduce it, what `trawl why` prints then, the counter that goes up as well, and the fix. `trawl why --explain REASON`
prints the page.

{reproduced} of {all} reasons are reproduced: tests run the commands of each page in a lab of two network namespaces (`trawl lab
up`, see the [guide](../GUIDE.md)), and compare the printed row with the page. To run them yourself, change to this
directory; [lab.py](lab.py) makes packets and connections that no ordinary program makes. The commands change the lab:
`trawl lab down` and `trawl lab up` make a new one. The other reasons are listed with their source.

The column *kernels* has the first version with the reason. `6.2 to 6.6` means that 6.6 has it and 6.1 does not; `5.18 or
older` that 5.18 has it (5.17 is the first kernel with reasons). The versions come from the type information and the
sources of Linux 5.18, 6.1, 6.6, 6.12, 6.14, 6.18, 6.19 and 7.3.
",
        all = all.len()
    );
    for subject in subjects() {
        text +=
            &format!("\n## {}\n\n| reason | meaning | reproduced with | kernels |\n|---|---|---|---|\n", subject.title);
        for reason in &subject.reasons {
            let with = reason.recorded.as_ref().map_or("-", |recorded| recorded.kernel);
            let name = reason.name.replace('*', "\\*");
            text += &format!("| [{name}]({}) | {} | {with} | {} |\n", reason.file(), reason.short, reason.since);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::why::report::known_counters;

    #[test]
    fn each_reason_is_complete() {
        let mut names = BTreeSet::new();
        for reason in reasons() {
            let name = reason.name;
            assert!(names.insert(name), "{name} is listed twice");
            assert!(!reason.since.is_empty() && !reason.meaning.is_empty() && !reason.fix.is_empty(), "{reason:?}");
            assert!(ADVICE.iter().any(|(subject, _)| subject == name || is_in_group(subject, name)), "{name}");
            assert!(reason.commands.is_empty() == reason.obstacle.is_some(), "{name}: either commands or an obstacle");
            assert!(reason.commands.is_empty() == reason.functions.is_empty() || reason.obstacle.is_some(), "{name}");
        }
        for (_, entries) in TABLE.iter() {
            for (entry, (key, _)) in entries.iter().flat_map(|entry| entry.keys.iter().map(move |key| (entry, key))) {
                let known =
                    ["since", "short", "later", "source", "counters", "moves", "needs", "scope", "until", "not"];
                assert!(known.contains(key) || key.starts_with("advice"), "{}: {key}", entry.name);
            }
        }
    }

    fn is_in_group(subject: &str, name: &str) -> bool {
        subject.strip_suffix('*').is_some_and(|begin| name.starts_with(begin))
    }

    /// Advice about a reason alone is on its page; the rest is about functions, groups and counters.
    #[test]
    fn each_reason_with_advice_has_a_page() {
        let subjects = ADVICE.iter().map(|(subject, _)| subject.as_str());
        let reasons = subjects.filter(|one| !one.contains(['@', '*']) && !one.starts_with("Xfrm"));
        let without = reasons.filter(|one| find(one).is_none());
        // It stands for a counter that only this name gives advice about.
        assert_eq!(without.collect::<Vec<_>>(), ["TCP_REQ_QUEUE_FULL"]);
        for counter in known_counters() {
            for reason in counter.reasons().filter(|one| !one.contains('@') && *one != "TCP_REQ_QUEUE_FULL") {
                assert!(find(reason).is_some(), "{}: {reason}", counter.name);
            }
        }
    }

    #[test]
    fn reasons_are_found_by_any_name() {
        let name = |name| find(name).map(|reason| reason.name);
        assert_eq!(name("skb_drop_reason_no_socket"), Some("NO_SOCKET"));
        assert_eq!(name("QDISC_DROP_OVERLIMIT"), Some("QDISC_OVERLIMIT"));
        assert_eq!(name("RX_DROP_U_REPLAY"), Some("RX_DROP_*"));
        assert_eq!(name("NO_SUCH_REASON"), None);
        assert_eq!(name(""), None);
    }
}
