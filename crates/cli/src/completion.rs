//! Completions from the state of this machine: interfaces, namespaces, labs, bundled programs.
//!
//! The shell calls trawl with `COMPLETE=SHELL` in its environment to get the candidates. The name of an argument's value
//! selects its candidates, so that a new argument has them without being listed here.

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;
use trawl_attach::snapshot;
use trawl_capture::taps::drop::reasons::Reasons;
use trawl_guard::Guard;
use trawl_guard::rule::Rule;
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{self, Namespace};
use trawl_sys::{Error, Result};
use trawl_view::stat::Field;

use crate::terminal::write_out;

const VERDICTS: [&str; 5] = ["aborted", "drop", "pass", "tx", "redirect"];
const PROTOCOLS: [&str; 7] = ["tcp", "udp", "icmp", "icmpv6", "sctp", "gre", "esp"];
const BUNDLED: [&str; 5] = ["drop", "pass", "aborted", "tx", "redirect"];
const TCP_FLAGS: [&str; 9] = [
    "fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "none",
];
const META: [&str; 6] = ["full", "none", "flags", "queue", "id", "verdict"];
const PRESETS: [&str; 3] = ["ping-flood", "udp-flood", "syn-flood"];

/// Prints the completions for a shell
#[derive(Debug, clap::Args)]
pub struct Completions {
    #[arg(value_enum)]
    shell: Shell,
}

pub fn print_script(args: Completions) -> Result<ExitCode> {
    let script = registration(&args.shell.to_string())
        .map_err(|e| Error::os(format!("cannot complete for {}", args.shell), e))?;
    write_out(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the script by which the shell asks trawl for candidates.
fn registration(shell: &str) -> io::Result<String> {
    if shell == "bash" {
        // clap's own script sees the command line as readline splits it.
        return Ok(include_str!("completions.bash").to_owned());
    }
    let shells = Shells::builtins();
    let unknown = || io::Error::other("trawl has no completions for it");
    let completer = shells.completer(shell).ok_or_else(unknown)?;
    let mut script = Vec::new();
    completer.write_registration("COMPLETE", "trawl", "trawl", "trawl", &mut script)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Gives each argument of the command, and of its subcommands, its candidates.
pub fn with_candidates(command: Command) -> Command {
    let path = command.get_name().to_owned();
    add(without_internal(command), &path)
}

/// Renames hidden commands, which would otherwise be offered once their first letters are typed.
fn without_internal(command: Command) -> Command {
    let hidden: Vec<String> = command
        .get_subcommands()
        .filter(|below| below.is_hide_set())
        .map(|below| below.get_name().to_owned())
        .collect();
    hidden.into_iter().fold(command, |command, name| {
        // The process ends with the candidates.
        let unspeakable: &str = format!("\u{1}{name}").leak();
        command.mut_subcommand(name, |below| below.name(unspeakable))
    })
}

fn add(command: Command, path: &str) -> Command {
    let own = path.to_owned();
    let command = command.mut_args(|argument| match completer(&own, &argument) {
        Some(completer) => argument.add(completer),
        None => argument,
    });
    let names: Vec<String> = command
        .get_subcommands()
        .map(|below| below.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |below| add(below, &path))
    })
}

fn completer(path: &str, argument: &Arg) -> Option<ArgValueCompleter> {
    let value = argument.get_value_names()?.first()?.as_str();
    let id = argument.get_id().as_str();
    Some(match (path, id, value) {
        (_, "netns", _) => ArgValueCompleter::new(|word: &OsStr| matching(word, netns::list())),
        (_, "verdict" | "on_verdict", _) => of_list(&VERDICTS),
        (_, "proto", _) => of_list(&PROTOCOLS),
        (_, "icmp", _) => ArgValueCompleter::new(|word: &OsStr| {
            matching(word, trawl_guard::values::icmp_types().map(str::to_owned))
        }),
        ("trawl guard remove", "ids", _) => ArgValueCompleter::new(rule),
        ("trawl xdp unload", "id", _) => ArgValueCompleter::new(attached),
        (_, _, "FILE.o|NAME") => ArgValueCompleter::new(program),
        ("trawl guard preset", "name", _) => of_list(&PRESETS),
        ("trawl lab down" | "trawl lab show" | "trawl lab exec", "name", _) => {
            ArgValueCompleter::new(|word: &OsStr| matching(word, labs()))
        }
        ("trawl xdp load", _, "IF") if argument.is_positional() => {
            ArgValueCompleter::new(|word: &OsStr| {
                let mut candidates = interface(word);
                candidates.extend(program(word));
                candidates
            })
        }
        ("trawl xdp load", "on", _) => of_list(&VERDICTS),
        (_, "by", "FIELD,…") => of_list(&Field::names()),
        (_, "flags", "FLAGS") => of_list(&TCP_FLAGS),
        (_, "reason", _) => ArgValueCompleter::new(reason),
        (_, _, "full|none|LIST") => of_list(&META),
        (_, _, "USER") => ArgValueCompleter::new(|word: &OsStr| matching(word, users())),
        (_, _, "IF") => ArgValueCompleter::new(interface),
        (_, _, value) if argument.is_positional() && value.starts_with("FILE") => {
            ArgValueCompleter::new(PathCompleter::file())
        }
        _ => return None,
    })
}

/// Completes an item of the list; after a comma, the next one.
fn of_list(words: &[&'static str]) -> ArgValueCompleter {
    let words = words.to_vec();
    ArgValueCompleter::new(move |word: &OsStr| next_of(word, &words))
}

fn next_of(word: &OsStr, words: &[impl AsRef<str>]) -> Vec<CompletionCandidate> {
    let text = word.to_string_lossy();
    let begun = text.rfind(',').map_or("", |comma| &text[..=comma]);
    let full = words.iter().map(|one| format!("{begun}{}", one.as_ref()));
    matching(word, full)
}

/// Returns the running kernel's reasons for drops.
fn reason(word: &OsStr) -> Vec<CompletionCandidate> {
    let reasons = Reasons::of_kernel().unwrap_or_default();
    let own = ["all", "help"].into_iter();
    next_of(word, &own.chain(reasons.all()).collect::<Vec<_>>())
}

fn users() -> Vec<String> {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split(':').next());
    names.map(str::to_owned).collect()
}

fn matching(
    word: &OsStr,
    candidates: impl IntoIterator<Item = String>,
) -> Vec<CompletionCandidate> {
    let word = word.to_string_lossy();
    let fits = candidates
        .into_iter()
        .filter(|candidate| candidate.starts_with(word.as_ref()));
    fits.map(CompletionCandidate::new).collect()
}

/// Returns the rules of the guard, each with its text.
fn rule(word: &OsStr) -> Vec<CompletionCandidate> {
    let namespace = typed_namespace();
    let guard = Guard::look(namespace.as_ref()).ok().flatten();
    let rules = guard.and_then(|guard| guard.rules().ok());
    let all = rules.iter().flat_map(|set| &set.rules);
    let begun = all.filter(|rule| rule.id.to_string().starts_with(&*word.to_string_lossy()));
    let candidate = |rule: &Rule| {
        CompletionCandidate::new(rule.id.to_string()).help(Some(rule.to_string().into()))
    };
    begun.map(candidate).collect()
}

/// Returns the XDP programs of the interface on the command line, each with its name.
fn attached(word: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = typed();
    let after = words.iter().position(|one| one == "unload");
    let mut rest = words.iter().skip(after.map_or(words.len(), |at| at + 1));
    let Some(text) = rest.find(|one| !one.starts_with('-')) else {
        return Vec::new();
    };
    let (namespace, name) = match text.split_once(':') {
        Some((namespace, name)) => (Namespace::open(namespace).ok(), name),
        None => (typed_namespace(), text.as_str()),
    };
    let links = Netlink::open(namespace.as_ref()).and_then(|mut netlink| netlink.links());
    let links = links.unwrap_or_default().into_iter();
    let ids = links
        .filter(|link| link.name == name)
        .flat_map(|link| link.xdp)
        .map(|one| one.program_id);
    let begun = ids.filter(|id| id.to_string().starts_with(&*word.to_string_lossy()));
    let candidate = |id: u32| {
        let name = snapshot::name_of(id).map(Into::into);
        CompletionCandidate::new(id.to_string()).help(name)
    };
    begun.map(candidate).collect()
}

/// Returns the command line so far, with which the shell calls trawl.
fn typed() -> Vec<String> {
    let words = std::env::args_os().skip(1);
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Returns the namespace that the command line names.
fn typed_namespace() -> Option<Namespace> {
    let words = typed();
    let name = words.iter().enumerate().find_map(|(at, word)| {
        word.strip_prefix("--netns=")
            .or_else(|| (word == "--netns").then(|| words.get(at + 1).map(String::as_str))?)
    })?;
    Namespace::open(name).ok()
}

/// Returns the interfaces of this namespace or the one given by --netns, and the namespaces by name; after a colon, the
/// interfaces of that namespace.
fn interface(word: &OsStr) -> Vec<CompletionCandidate> {
    let text = word.to_string_lossy();
    let candidates = match text.split_once(':') {
        Some((name, _)) => {
            let namespace = Namespace::open(name).ok();
            let links = namespace.map(|namespace| interfaces(Some(&namespace)));
            let full = links.unwrap_or_default().into_iter();
            full.map(|link| format!("{name}:{link}")).collect()
        }
        None => {
            let mut all = interfaces(typed_namespace().as_ref());
            all.extend(netns::list().into_iter().map(|name| name + ":"));
            all
        }
    };
    matching(word, candidates)
}

fn interfaces(namespace: Option<&Namespace>) -> Vec<String> {
    let links = Netlink::open(namespace).and_then(|mut netlink| netlink.links());
    links
        .unwrap_or_default()
        .into_iter()
        .map(|link| link.name)
        .collect()
}

fn labs() -> Vec<String> {
    let labs = trawl_lab::list().unwrap_or_default();
    labs.into_iter().map(|lab| lab.id).collect()
}

/// Completes bundled programs by name, others by file.
fn program(word: &OsStr) -> Vec<CompletionCandidate> {
    let bundled = BUNDLED.iter().map(ToString::to_string);
    let mut candidates = matching(word, bundled);
    candidates.extend(PathCompleter::file().complete(word));
    candidates
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, ValueEnum};

    use super::*;
    use crate::Cli;

    fn complete(words: &[&str]) -> Vec<String> {
        let mut command = with_candidates(Cli::command());
        let arguments = words.iter().map(Into::into).collect();
        let found = clap_complete::engine::complete(&mut command, arguments, words.len() - 1, None);
        let text = |one: &CompletionCandidate| one.get_value().to_string_lossy().into_owned();
        found.expect("candidates").iter().map(text).collect()
    }

    #[test]
    fn interfaces_verdicts_and_programs_are_completed() {
        for words in [
            &["trawl", "capture", "-i", "l"][..],
            &["trawl", "capture", "--interface", "l"],
            &["trawl", "xdp", "load", "l"],
            &["trawl", "doctor", "-i", "l"],
            &["trawl", "guard", "load", "l"],
        ] {
            assert!(complete(words).contains(&"lo".to_owned()), "{words:?}");
        }
        let verdicts = ["trawl", "capture", "--verdict", "drop,ab"];
        assert_eq!(complete(&verdicts), ["drop,aborted"]);
        assert_eq!(
            complete(&["trawl", "guard", "deny", "--proto", "u"]),
            ["udp"]
        );
        assert_eq!(complete(&["trawl", "guard", "preset", "s"]), ["syn-flood"]);
        for (words, found) in [
            (&["trawl", "stat", "--by", "src,dpo"][..], "src,dport"),
            (&["trawl", "gen", "tcp", "--flags", "syn,a"], "syn,ack"),
            (&["trawl", "capture", "-Z", "nobod"], "nobody"),
            (&["trawl", "read", "-Z", "nobod"], "nobody"),
            (&["trawl", "capture", "--reason", "he"], "help"),
            (&["trawl", "capture", "--meta", "no"], "none"),
        ] {
            assert_eq!(complete(words), [found], "{words:?}");
        }
        let programs = complete(&["trawl", "xdp", "load", "lo", "re"]);
        assert!(programs.contains(&"redirect".to_owned()), "{programs:?}");
    }

    /// Commands for trawl's own processes are not for people.
    #[test]
    fn internal_commands_are_not_offered() {
        let commands = complete(&["trawl", ""]);
        assert!(commands.contains(&"capture".to_owned()));
        for internal in ["stand-by", "man"] {
            assert!(!commands.contains(&internal.to_owned()), "{internal}");
            let begun = complete(&["trawl", &internal[..3]]);
            assert!(
                !begun.contains(&internal.to_owned()),
                "{internal}: {begun:?}"
            );
        }
    }

    #[test]
    fn each_shell_asks_trawl_for_candidates() {
        for shell in Shell::value_variants() {
            let script = registration(&shell.to_string()).expect("a script");
            assert!(
                script.contains("COMPLETE") && script.contains("trawl"),
                "{shell}"
            );
        }
    }
}
