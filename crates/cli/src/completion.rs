//! Completions from the state of this machine: interfaces, namespaces, labs, bundled programs.
//!
//! The shell calls trawl with `COMPLETE=SHELL` in its environment to get the candidates. Each argument names its own.

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::Shells;
use trawl_capture::taps::drop::reasons::Reasons;
use trawl_explain::why::drops;
use trawl_guard::Guard;
use trawl_guard::rule::Rule;
use trawl_guard::values;
use trawl_program::bundled::NAMES;
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{self, Namespace};
use trawl_sys::{Error, Result};

use crate::terminal::write_out;

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
        // clap's own script gets words that readline has split at ':' and '=', which this one joins again.
        return Ok(include_str!("completions.bash").to_owned());
    }
    let shells = Shells::builtins();
    let unknown = || io::Error::other("trawl has no completions for it");
    let completer = shells.completer(shell).ok_or_else(unknown)?;
    let mut script = Vec::new();
    completer.write_registration("COMPLETE", "trawl", "trawl", "trawl", &mut script)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

pub fn namespaces() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| matching(word, netns::list()))
}

pub fn interfaces() -> ArgValueCompleter {
    ArgValueCompleter::new(interface)
}

/// Completes an interface, then the number of a program on it.
pub fn interface_and_attached() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| both(interface(word), attached(word)))
}

/// Completes an interface, or a program: a bundled one by name, others by file.
pub fn interface_and_program() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| both(interface(word), program(word)))
}

pub fn interface_and_file() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| both(interface(word), files(word)))
}

pub fn paths() -> ArgValueCompleter {
    ArgValueCompleter::new(PathCompleter::file())
}

pub fn explained_reasons() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| matching(word, drops::reasons().map(|reason| reason.name.to_owned())))
}

pub fn verdicts() -> ArgValueCompleter {
    of_list(&["aborted", "drop", "pass", "tx", "redirect"])
}

pub fn protocols() -> ArgValueCompleter {
    of_list(&["tcp", "udp", "icmp", "icmpv6", "sctp", "gre", "esp"])
}

pub fn icmp_types() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| matching(word, values::icmp_types().map(str::to_owned)))
}

pub fn presets() -> ArgValueCompleter {
    of_list(&["ping-flood", "udp-flood", "syn-flood"])
}

/// Completes the numbers of the guard's rules.
pub fn rules() -> ArgValueCompleter {
    ArgValueCompleter::new(rule)
}

/// Completes the running kernel's reasons for drops.
pub fn reasons() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let reasons = Reasons::of_kernel().unwrap_or_default();
        let own = ["all", "help"].into_iter();
        next_of(word, &own.chain(reasons.all()).collect::<Vec<_>>())
    })
}

pub fn metadata() -> ArgValueCompleter {
    of_list(&["full", "none", "flags", "queue", "id", "verdict"])
}

pub fn tcp_flags() -> ArgValueCompleter {
    of_list(&["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "none"])
}

pub fn users() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let names = text.lines().filter_map(|line| line.split(':').next());
        matching(word, names.map(str::to_owned))
    })
}

pub fn labs() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let labs = trawl_lab::list().unwrap_or_default();
        matching(word, labs.into_iter().map(|lab| lab.id))
    })
}

/// Completes the names of lessons.
pub fn lessons() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| matching(word, crate::lab::lesson::names().map(str::to_owned)))
}

/// Completes an item of the list; after a comma, the next one.
pub fn of_list(words: &[&'static str]) -> ArgValueCompleter {
    let words = words.to_vec();
    ArgValueCompleter::new(move |word: &OsStr| next_of(word, &words))
}

fn next_of(word: &OsStr, words: &[impl AsRef<str>]) -> Vec<CompletionCandidate> {
    let text = word.to_string_lossy();
    let begun = text.rfind(',').map_or("", |comma| &text[..=comma]);
    let full = words.iter().map(|one| format!("{begun}{}", one.as_ref()));
    matching(word, full)
}

fn matching(word: &OsStr, candidates: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let word = word.to_string_lossy();
    let fits = candidates.into_iter().filter(|candidate| candidate.starts_with(word.as_ref()));
    fits.map(CompletionCandidate::new).collect()
}

/// Returns the rules of the guard, each with its text.
fn rule(word: &OsStr) -> Vec<CompletionCandidate> {
    let namespace = typed_namespace();
    let guard = Guard::find_to_read(namespace.as_ref()).ok().flatten();
    let rules = guard.and_then(|guard| guard.rules().ok());
    let all = rules.iter().flat_map(|set| &set.rules);
    let begun = all.filter(|rule| rule.id.to_string().starts_with(&*word.to_string_lossy()));
    let candidate = |rule: &Rule| CompletionCandidate::new(rule.id.to_string()).help(Some(rule.to_string().into()));
    begun.map(candidate).collect()
}

/// Returns the XDP programs of the interface on the command line, each with its name.
fn attached(word: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = typed();
    let after = words.iter().position(|one| one == "unload");
    let mut rest = words.iter().skip(after.map_or(words.len(), |at| at + 1));
    let Some(text) = rest.find(|one| !one.starts_with('-') && *one != "dev") else {
        return Vec::new();
    };
    let (namespace, name) = match text.split_once(':') {
        Some((namespace, name)) => (Namespace::open(namespace).ok(), name),
        None => (typed_namespace(), text.as_str()),
    };
    let links = Netlink::open(namespace.as_ref()).and_then(|mut netlink| netlink.links());
    let links = links.unwrap_or_default().into_iter();
    let ids = links.filter(|link| link.name == name).flat_map(|link| link.xdp).map(|one| one.program_id);
    let begun = ids.filter(|id| id.to_string().starts_with(&*word.to_string_lossy()));
    let candidate = |id: u32| {
        let name = trawl_program::name_of(id).map(Into::into);
        CompletionCandidate::new(id.to_string()).help(name)
    };
    begun.map(candidate).collect()
}

/// Returns the command line typed so far. The shell passes it to trawl as arguments.
fn typed() -> Vec<String> {
    let words = std::env::args_os().skip(1);
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Returns the namespace that the command line names.
fn typed_namespace() -> Option<Namespace> {
    let words = typed();
    let name = words.iter().enumerate().find_map(|(at, word)| {
        word.strip_prefix("--netns=").or_else(|| (word == "--netns").then(|| words.get(at + 1).map(String::as_str))?)
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
            let links = namespace.map(|namespace| link_names(Some(&namespace)));
            let full = links.unwrap_or_default().into_iter();
            full.map(|link| format!("{name}:{link}")).collect()
        }
        None => {
            let mut all = link_names(typed_namespace().as_ref());
            all.extend(netns::list().into_iter().map(|name| name + ":"));
            all
        }
    };
    matching(word, candidates)
}

fn link_names(namespace: Option<&Namespace>) -> Vec<String> {
    let links = Netlink::open(namespace).and_then(|mut netlink| netlink.links());
    links.unwrap_or_default().into_iter().map(|link| link.name).collect()
}

fn program(word: &OsStr) -> Vec<CompletionCandidate> {
    let bundled = matching(word, NAMES.iter().map(ToString::to_string));
    both(bundled, files(word))
}

fn both(mut one: Vec<CompletionCandidate>, other: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    one.extend(other);
    one
}

fn files(word: &OsStr) -> Vec<CompletionCandidate> {
    PathCompleter::file().complete(word)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, ValueEnum};

    use super::*;
    use crate::Cli;

    fn complete(words: &[&str]) -> Vec<String> {
        let mut command = Cli::command();
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
        assert_eq!(complete(&["trawl", "guard", "deny", "--proto", "u"]), ["udp"]);
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
            let begun = complete(&["trawl", &internal[..3]]);
            assert!(!begun.contains(&internal.to_owned()), "{begun:?}");
        }
    }

    #[test]
    fn each_shell_asks_trawl_for_candidates() {
        for shell in Shell::value_variants() {
            let script = registration(&shell.to_string()).expect("a script");
            assert!(script.contains("COMPLETE") && script.contains("trawl"), "{shell}");
        }
    }
}
