//! Arguments shared by several commands.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use trawl_capture::filter::choose_for_filters;
use trawl_sys::netns::{CURRENT, Namespace};
use trawl_sys::{Error, Result, files::outfile};

use crate::{completion, terminal, units};

/// A value by its name on the command line, after `|` other names for it, with its help.
pub type NamedValue<T> = (&'static str, &'static str, T);

/// Parses one of several named values.
pub fn choice<T: Copy + Send + Sync + 'static>(choices: &'static [NamedValue<T>]) -> impl TypedValueParser<Value = T> {
    let shown = choices.iter().map(|(names, help, _)| {
        let (name, others) = names.split_once('|').unwrap_or((names, ""));
        let value = PossibleValue::new(name).aliases(others.split('|').filter(|other| !other.is_empty()));
        if help.is_empty() { value } else { value.help(*help) }
    });
    PossibleValuesParser::new(shown).try_map(|word| {
        let found = choices.iter().find(|(names, ..)| names.split('|').any(|name| name == word));
        found.map(|(.., value)| *value).ok_or("no such value")
    })
}

#[derive(Clone, Debug, Default, clap::Args)]
pub struct NetnsArg {
    /// Network namespace of interfaces given without one: a name, a path or a process id
    #[arg(long, value_name = "NAME", add = completion::namespaces())]
    netns: Option<String>,
}

impl NetnsArg {
    /// Opens the namespace; `None` for the one that trawl runs in.
    pub fn open(&self) -> Result<Option<Namespace>> {
        self.netns.as_deref().map(Namespace::open).transpose()
    }
}

impl Deref for NetnsArg {
    type Target = Option<String>;

    fn deref(&self) -> &Option<String> {
        &self.netns
    }
}

/// Network namespaces to inspect: the caller's, those that are named, or all.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NamespacesArg {
    /// Network namespace to inspect: a name, a path or a process id; may be given several times [default: the one that
    /// trawl runs in]
    #[arg(long, value_name = "NAME", add = completion::namespaces())]
    netns: Vec<String>,
    /// Inspect all network namespaces of this machine
    #[arg(long, conflicts_with = "netns")]
    all_namespaces: bool,
}

impl NamespacesArg {
    pub fn are_all(&self) -> bool {
        self.all_namespaces
    }

    /// Returns the names that were given.
    pub fn given(&self) -> &[String] {
        &self.netns
    }

    /// Returns the names; none for all namespaces.
    pub fn names(&self) -> Vec<String> {
        match (self.all_namespaces, &self.netns[..]) {
            (true, _) => Vec::new(),
            (false, []) => vec![CURRENT.to_owned()],
            (false, names) => names.to_vec(),
        }
    }

    /// Returns the names for packets of a command, which may enter any namespace; none for all.
    pub fn names_for_command(&self) -> Vec<String> {
        self.netns.clone()
    }

    /// Opens the namespaces; none for all.
    pub fn open(&self) -> Result<Vec<Namespace>> {
        self.names().iter().map(|name| Namespace::open(name)).collect()
    }

    /// Returns the namespace of interfaces given without one.
    pub fn of_interfaces(&self) -> Option<&str> {
        match &self.netns[..] {
            [one] => Some(one),
            _ => None,
        }
    }
}

/// Interfaces of a command: arguments, each perhaps after the word `dev`, or values of `-i`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct InterfaceArgs {
    /// The interfaces, NAME or NAMESPACE:NAME; `dev` may precede each
    #[arg(value_name = "IF", add = completion::interfaces())]
    interfaces: Vec<String>,
    /// The same, in the form that trawl capture accepts
    #[arg(short = 'i', long = "interface", value_name = "IF", num_args = 1.., add = completion::interfaces())]
    by_option: Vec<String>,
}

impl InterfaceArgs {
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut words = &self.interfaces[..];
        while let Some((first, rest)) = without_dev(words).split_first() {
            names.push(first.clone());
            words = rest;
        }
        names.extend(self.by_option.iter().cloned());
        names
    }

    /// Returns the interfaces of a command that needs at least one.
    pub fn some(&self, command: &str) -> Result<Vec<String>> {
        let names = self.names();
        if names.is_empty() { Err(unnamed(command)) } else { Ok(names) }
    }

    /// Returns the only interface; `None` without any.
    pub fn at_most_one(&self, command: &str) -> Result<Option<String>> {
        let mut names = self.names();
        let first = names.pop();
        if names.is_empty() {
            Ok(first)
        } else {
            Err(Error::usage("cannot use these interfaces", "several are named").fix(format!("trawl {command} IF")))
        }
    }
}

/// The interface of a command whose further arguments follow it: `IF REST`, `dev IF REST` or `-i IF REST`.
pub fn interface_and_rest<'a>(
    by_option: Option<&'a str>,
    words: &'a [OsString],
    command: &str,
) -> Result<(String, &'a [OsString])> {
    match (by_option, without_dev(words)) {
        (Some(interface), rest) => Ok((interface.to_owned(), rest)),
        (None, [interface, rest @ ..]) => Ok((interface.to_string_lossy().into_owned(), rest)),
        (None, []) => Err(unnamed(command)),
    }
}

/// Leaves out iproute2's `dev` before the name of an interface, which may itself be `dev`.
fn without_dev<T: AsRef<OsStr>>(words: &[T]) -> &[T] {
    match words {
        [dev, rest @ ..] if dev.as_ref() == "dev" && !rest.is_empty() => rest,
        _ => words,
    }
}

fn unnamed(command: &str) -> Error {
    let what = format!("cannot run trawl {command}");
    Error::usage(what, "no interface is named").fix(format!("trawl {command} IF (trawl capture -D lists them)"))
}

/// `--watch` of a command that shows counts.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct WatchArg {
    /// Show the counts every second, or every TIME, until interrupted; as JSON, one document per line
    #[arg(long, short, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", value_parser = units::duration)]
    watch: Option<Duration>,
}

impl WatchArg {
    /// Shows a reading, once or until interrupted: a line of JSON, or text for people.
    pub fn show(&self, as_json: bool, mut read: impl FnMut() -> Result<String>) -> Result<()> {
        loop {
            let text = read()?;
            let text = match (as_json, self.watch) {
                (true, _) => text,
                (false, Some(every)) => terminal::frame(every, &text),
                (false, None) => terminal::printable(&terminal::folded(&text)),
            };
            let is_read = terminal::write_to_reader(&text)?;
            match self.watch {
                Some(every) if is_read => std::thread::sleep(every),
                _ => return Ok(()),
            }
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct LibpcapArg {
    /// The libpcap that compiles the filter, loaded only if there is a filter [default: the system's]
    #[arg(long, value_name = "PATH")]
    pub libpcap: Option<PathBuf>,
}

impl LibpcapArg {
    /// Selects the library that compiles filters from now on.
    pub fn choose(&self) {
        if let Some(path) = &self.libpcap {
            choose_for_filters(path);
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct SubjectArgs {
    /// Run this command, see only its processes' packets, and end with it
    #[arg(id = "subject", last = true, value_name = "COMMAND")]
    pub words: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub struct VerifierLog {
    /// Write the verifier's whole log of each program that is loaded, accepted or refused, to this file
    #[arg(long, value_name = "FILE")]
    verifier_log: Option<PathBuf>,
}

impl VerifierLog {
    /// Opens the log; must be called before any program is loaded.
    pub fn begin(&self) -> Result<()> {
        self.verifier_log.as_deref().map_or(Ok(()), begin_verifier_log)
    }

    pub fn path(&self) -> Option<PathBuf> {
        self.verifier_log.clone()
    }
}

/// Logs the programs that are loaded from now on.
pub fn begin_verifier_log(path: &Path) -> Result<()> {
    let (file, _) = outfile::open(path, None)?;
    file.set_len(0).map_err(|e| Error::os(format!("cannot write to {}", path.display()), e))?;
    trawl_program::keep_verifier_log(file);
    Ok(())
}

/// Form of packets in JSON: one object a line, or one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JsonForm {
    Lines,
    Array,
}

/// Maximum size of a file with an expression. A list of a million IPv6 networks is shorter.
const LONGEST_FILTER: u64 = 64 << 20;

/// Reads a filter expression from a file, without comments from `#` to the line's end.
pub fn filter_in_file(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let source = match path.to_str() {
        Some("-") => Path::new("/dev/stdin"),
        _ => path,
    };
    let what = || format!("cannot read the filter in {name}");
    let mut text = String::new();
    File::open(source)
        .and_then(|file| file.take(LONGEST_FILTER + 1).read_to_string(&mut text))
        .map_err(|e| Error::os(what(), e))?;
    if text.len() as u64 > LONGEST_FILTER {
        return Err(Error::usage(what(), format!("it has more than {LONGEST_FILTER} bytes")));
    }
    let without_comments = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(without_comments.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dev_may_precede_each_interface() {
        let named = |words: &[&str]| InterfaceArgs {
            interfaces: words.iter().map(|&word| word.to_owned()).collect(),
            by_option: vec!["z".to_owned()],
        };
        for (words, names) in [
            (&["a", "b"][..], &["a", "b", "z"][..]),
            (&["dev", "a", "dev", "b"], &["a", "b", "z"]),
            (&["dev"], &["dev", "z"]),
            (&["dev", "dev"], &["dev", "z"]),
            (&[], &["z"]),
        ] {
            assert_eq!(named(words).names(), names, "{words:?}");
        }
    }
}
