//! The pages about drop reasons (docs/drops): their commands reproduce each reason, `trawl why` prints the recorded row,
//! and the named counters go up.
//!
//! With TRAWL_RECORD set, the tests print what they see, and write the pages: see scripts/record-drops.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Mutex;

use serde_json::Value;
use trawl_bpf::probe::kernel_is_at_least;
use trawl_explain::why::drops::{self, Reason, Subject};
use trawl_tests::wait::patience;
use trawl_tests::witness::nstat;
use trawl_tests::{Lab, Running, binary, root_or_skip, skip, trawl, wait_until};

/// Number of reproductions that run at the same time.
const PARALLEL: usize = 6;
/// Name of a lab in the commands.
const LAB: &str = "trawl-lab";
/// Name of the variable that makes the tests write what they see.
const RECORD: &str = "TRAWL_RECORD";
/// Begin of the lines that scripts/record-drops collects.
const RECORDED: &str = "recorded| ";

/// A reason with the lab in which its commands run.
struct Reproduction {
    reason: &'static Reason,
    lab: Lab,
}

impl Reproduction {
    /// Makes the lab; `None` if this kernel cannot drop packets for this reason, which is reported.
    fn prepare(reason: &'static Reason, known: &str) -> Option<Self> {
        let is_known = |name: &str| known.lines().any(|line| line.split_whitespace().next() == Some(name));
        if !is_known(reason.name) && !reason.later.is_some_and(is_known) {
            skip(&format!("the kernel has no reason {}", reason.name));
            return None;
        }
        if reason.until.is_some_and(|(major, minor)| kernel_is_at_least(major, minor + 1)) {
            skip(&format!("this kernel gives another reason than {}", reason.name));
            return None;
        }
        let lab = Lab::open()?;
        let reproduction = Self { reason, lab };
        if reason.needs.is_some_and(|command| !reproduction.run(command).status.success()) {
            skip(&format!("the kernel lacks a module for {}: {}", reason.name, reason.needs.unwrap_or_default()));
            return None;
        }
        Some(reproduction)
    }

    fn lab_name(&self) -> &str {
        let name = &self.lab.pair.b.name;
        name.strip_suffix("-b").unwrap_or(name)
    }

    /// Runs shell commands in the directory of the pages, with the names of this lab.
    fn run(&self, commands: &str) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let trawl = binary::path().parent().expect("a directory").display();
        let mut shell = Command::new("bash");
        shell.args(["-e", "-c", &commands.replace(LAB, self.lab_name())]).current_dir(pages());
        shell.env("LAB", self.lab_name()).env("PATH", format!("{trawl}:{path}"));
        shell.env("PATIENCE", patience().as_secs().to_string()).env("PYTHONDONTWRITEBYTECODE", "1");
        shell.output().expect("bash")
    }

    /// Runs the commands, and waits until the counters and the recording have the dropped packet.
    fn reproduce(&self, file: &str) {
        let name = self.reason.name;
        let done = self.run(&self.reason.commands);
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
        for counter in &self.reason.counters {
            wait_until(&format!("{counter} counts {name}"), || nstat(&self.lab.pair.b, counter) > 0);
        }
        let mut length = 0;
        wait_until(&format!("{name} is recorded"), || {
            let now = fs::metadata(file).map_or(0, |metadata| metadata.len());
            now > std::mem::replace(&mut length, now) && self.is_in(&fs::read(file).unwrap_or_default())
        });
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        [Some(self.reason.name), self.reason.later].into_iter().flatten()
    }

    /// Returns true if a recording has such a packet of this lab.
    fn is_in(&self, recording: &[u8]) -> bool {
        let text = String::from_utf8_lossy(recording);
        let space = format!("netns={}", self.lab.pair.b.name);
        let is_here = |comment: &str| match self.reason.is_everywhere {
            true => !comment.contains("netns="),
            false => comment.contains(&space),
        };
        let mut comments = text.split("drop=").skip(1).filter_map(|comment| comment.split('\0').next());
        comments.any(|comment| {
            let reason = comment.split(' ').next().unwrap_or_default();
            // The report finds the reasons of some functions that give none.
            let of_function = |function: &&str| comment.contains(&format!(" at={function}+"));
            let is_meant = match reason {
                "NOT_SPECIFIED" => self.reason.functions.iter().any(of_function),
                reason => self.names().any(|name| name == reason),
            };
            (is_meant || self.names().any(|name| name == reason)) && is_here(comment)
        })
    }

    /// Returns the row in a report as text, with the names of the pages.
    fn row(&self, report: &str) -> Option<String> {
        let space = format!("({})", self.lab.pair.b.name);
        let lines: Vec<&str> = report.lines().collect();
        let is_begin = |line: &&str| {
            let reason = line.split_whitespace().nth(1).unwrap_or_default();
            (self.reason.is_everywhere || line.contains(&space)) && self.names().any(|name| name == reason)
        };
        let begin = lines.iter().position(is_begin)?;
        let rest = lines[begin + 1..].iter().take_while(|line| line.starts_with("          "));
        let row: Vec<&str> = std::iter::once(&lines[begin]).chain(rest).copied().collect();
        Some(row.join("\n").replace(self.lab_name(), LAB) + "\n")
    }
}

/// Returns the directory of the pages.
fn pages() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/drops"))
}

/// Returns the words of a row with each number replaced, and without processes, which may have ended.
fn shape(row: &str) -> Vec<String> {
    let mut words = Vec::new();
    for word in row.split_whitespace().filter(|word| !word.contains('[')) {
        let mut plain = String::new();
        // The handle of a queueing discipline is hexadecimal.
        let is_handle = word.strip_suffix(':').is_some_and(|stem| stem.chars().all(|one| one.is_ascii_hexdigit()));
        let word = if is_handle { "0:" } else { word };
        for letter in word.chars() {
            match letter {
                '0'..='9' if plain.ends_with('N') => {}
                '0'..='9' => plain.push('N'),
                _ => plain.push(letter),
            }
        }
        words.push(plain);
    }
    words
}

fn release() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    text.trim().to_owned()
}

fn read_report(file: &str, options: &[&str]) -> String {
    let done = trawl(&[&["why", file], options].concat());
    String::from_utf8(done.stdout).expect("text")
}

/// Runs a function for each of these, several at a time; returns the results.
fn in_parallel<T: Send, R: Send>(all: Vec<T>, act: impl Fn(T) -> Option<R> + Sync) -> Vec<R> {
    let (waiting, results) = (Mutex::new(VecDeque::from(all)), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let work = || {
            while let Some(one) = { waiting.lock().expect("no panic").pop_front() } {
                let result = act(one);
                results.lock().expect("no panic").extend(result);
            }
        };
        for _ in 0..PARALLEL {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            std::thread::Builder::new().name(name).spawn_scoped(scope, work).expect("a thread");
        }
    });
    results.into_inner().expect("no panic")
}

/// Reproduces all reasons of a subject at once.
fn reproduce(subject: &'static Subject) {
    if !root_or_skip() {
        return;
    }
    let known = trawl(&["capture", "--tap", "drop", "--reason", "help"]);
    let known = String::from_utf8(known.stdout).expect("text");
    for is_everywhere in [false, true] {
        let chosen = subject.reasons.iter().filter(|reason| !reason.commands.is_empty());
        let chosen = chosen.filter(|reason| reason.is_everywhere == is_everywhere);
        let all = in_parallel(chosen.collect(), |reason| Reproduction::prepare(reason, &known));
        if !all.is_empty() {
            reproduce_at_once(&all, is_everywhere);
        }
    }
}

fn reproduce_at_once(all: &[Reproduction], is_everywhere: bool) {
    let file = all[0].lab.file("drops.pcapng");
    let mut arguments = vec!["why", "--all", "--no-trace", "--json", "--record", &file];
    if is_everywhere {
        arguments.push("--all-namespaces");
    } else {
        arguments.extend(all.iter().flat_map(|one| ["--netns", &one.lab.pair.b.name]));
    }
    let why = Running::start(&arguments, "looking");
    in_parallel(all.iter().collect(), |one| {
        one.reproduce(&file);
        Some(())
    });
    let report = why.stop().json();
    let losses = read_report(&file, &[]);
    let with_others = read_report(&file, &["--all"]);
    let release = release();
    for one in all {
        let name = one.reason.name;
        assert!(has_row(&report, one), "no {name}: {report:#}");
        let (row, with_all) = match one.row(&losses) {
            Some(row) => (row, false),
            None => (one.row(&with_others).unwrap_or_else(|| panic!("no {name}: {with_others}")), true),
        };
        if std::env::var_os(RECORD).is_some() {
            let options = if with_all { "options: --all\n" } else { "" };
            let row = row.lines().map(|line| format!("    {line}\n")).collect::<String>();
            let entry = format!("## {name}\nkernel: {release}\n{options}\n{row}\n");
            entry.lines().for_each(|line| println!("{RECORDED}{line}"));
            continue;
        }
        let recorded = one.reason.recorded.as_ref();
        if let Some(recorded) = recorded.filter(|recorded| recorded.kernel == release) {
            assert_eq!(shape(&row), shape(&recorded.row), "{name}");
            assert_eq!(with_all, recorded.with_all, "{name}");
        }
    }
}

/// Returns true if a report has a row of the reason in its lab, which names the page.
fn has_row(report: &Value, one: &Reproduction) -> bool {
    let rows = report["rows"].as_array().expect("rows");
    let page = format!("docs/drops/{}", one.reason.file());
    rows.iter().any(|row| {
        one.names().any(|name| row["reason"] == name)
            && (one.reason.is_everywhere || row["netns"] == one.lab.pair.b.name.as_str())
            && row["page"] == page.as_str()
    })
}

/// Returns the subject at this place of the index.
fn subject(number: usize, title: &str) -> &'static Subject {
    let subject = &drops::subjects()[number];
    assert!(subject.title.starts_with(title), "{}", subject.title);
    subject
}

#[test]
fn socket_drops_are_reproduced() {
    reproduce(subject(0, "Sockets"));
}

#[test]
fn tcp_drops_are_reproduced() {
    reproduce(subject(1, "TCP"));
}

#[test]
fn ip_drops_are_reproduced() {
    reproduce(subject(2, "IP"));
}

#[test]
fn ipv6_drops_are_reproduced() {
    reproduce(subject(3, "IPv6"));
}

#[test]
fn neighbour_drops_are_reproduced() {
    reproduce(subject(4, "Neighbours"));
}

#[test]
fn drops_by_programs_are_reproduced() {
    reproduce(subject(5, "Programs"));
}

#[test]
fn queue_drops_are_reproduced() {
    reproduce(subject(6, "Queueing"));
}

#[test]
fn device_drops_are_reproduced() {
    reproduce(subject(7, "Interfaces"));
}

#[test]
fn tunnel_drops_are_reproduced() {
    reproduce(subject(8, "Bridges"));
}

/// The subjects above are all that have commands.
#[test]
fn every_reproduction_has_a_test() {
    let rest = drops::subjects().iter().skip(9).flat_map(|subject| &subject.reasons);
    let without = rest.filter(|reason| !reason.commands.is_empty()).map(|reason| reason.name);
    assert_eq!(without.collect::<Vec<_>>(), [""; 0]);
}

/// The pages, their index and the list of the site follow from the table.
#[test]
fn pages_are_current() {
    let pages = pages();
    let mut expected: Vec<(String, String)> =
        drops::reasons().map(|reason| (reason.file(), drops::markdown(&reason.page()))).collect();
    expected.push(("README.md".to_owned(), drops::index()));
    expected.sort();
    let existing = || {
        let entries = fs::read_dir(&pages).expect("the pages").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().expect("a plain name")).collect();
        names.retain(|name| name.ends_with(".md"));
        names.sort();
        names
    };
    if std::env::var_os(RECORD).is_some() {
        existing().iter().for_each(|name| fs::remove_file(pages.join(name)).expect("a page"));
        expected.iter().for_each(|(name, text)| fs::write(pages.join(name), text).expect("a page"));
    }
    assert_eq!(existing(), expected.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    let summary = fs::read_to_string(pages.join("../SUMMARY.md")).expect("the list of the site's pages");
    for reason in drops::reasons() {
        let line = format!("  - [{}](docs/drops/{})", reason.name.replace('*', "\\*"), reason.file());
        assert!(summary.lines().any(|one| one == line), "docs/SUMMARY.md lacks: {line}");
    }
    for (name, text) in &expected {
        let found = fs::read_to_string(pages.join(name)).expect("a page");
        assert!(found == *text, "docs/drops/{name} is not current: scripts/record-drops --pages");
    }
}

/// `--explain` prints a page of at most 80 columns, and refuses unknown reasons with similar ones.
#[test]
fn explain_prints_the_page() {
    let explain = |name: &str| {
        let done = trawl(&["why", "--explain", name]);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    for name in ["NETFILTER_DROP", "netfilter_drop", "SKB_DROP_REASON_NETFILTER_DROP"] {
        let (code, page, _) = explain(name);
        assert_eq!(code, Some(0));
        assert!(page.starts_with("NETFILTER_DROP: ") && page.contains("\nFix: "), "{page}");
    }
    for reason in drops::reasons() {
        let page = drops::plain(&reason.page(), 80);
        let texts = page.lines().filter(|line| !line.starts_with("    "));
        let long: Vec<&str> = texts.filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{}: {long:?}", reason.name);
    }
    let (code, page, said) = explain("TCP_ZEROWINDOWS");
    assert_eq!((code, page.as_str()), (Some(2), ""));
    assert!(said.contains("TCP_ZEROWINDOW") || said.contains("TCP_"), "{said}");
    assert_eq!(explain("").0, Some(2));
    let (code, list, _) = explain("help");
    assert_eq!(code, Some(0));
    assert_eq!(list.lines().count(), drops::reasons().count());
    assert_eq!(trawl(&["why", "--explain", "XDP", "--json"]).status.code(), Some(2));
}
