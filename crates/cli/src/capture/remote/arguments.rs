//! The arguments of a capture that mean something at the hosts, as they were typed.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory};
use trawl_kernel::{Error, Result};

use crate::Cli;
use crate::capture::args::Args;

/// What is done here with the packets of all hosts.
const HERE: [&str; 30] = [
    "on",
    "push",
    "ssh",
    "collected",
    "write",
    "format",
    "file_mode",
    "stats",
    "summary",
    "json",
    "id",
    "print",
    "filter_file",
    "expression",
    "link_header",
    "numeric",
    "without_domain",
    "time",
    "hex",
    "hex_ascii",
    "ascii",
    "verbosity",
    "absolute_sequence",
    "trust_checksums",
    "number",
    "micro",
    "nano",
    "line_buffered",
    "packet_buffered",
    "immediate_mode",
];

/// The options, and the expression that follows them.
pub(super) struct Arguments {
    pub options: Vec<String>,
    pub expression: String,
}

pub(super) fn forwarded(args: &Args) -> Result<Arguments> {
    let command = Cli::command();
    let again = |e: clap::Error| Error::failed("cannot read the arguments again", e);
    let matches = command.clone().try_get_matches().map_err(again)?;
    let (Some(capture), Some(("capture", matches))) =
        (command.find_subcommand("capture"), matches.subcommand())
    else {
        return Err(Error::failed(
            "cannot capture on other hosts",
            "this is no capture",
        ));
    };
    let mut options = Vec::new();
    for argument in capture.get_arguments() {
        let id = argument.get_id().as_str();
        let is_typed = matches.value_source(id) == Some(ValueSource::CommandLine);
        if is_typed && !HERE.contains(&id) {
            add(&mut options, argument, matches)?;
        }
    }
    Ok(Arguments {
        options,
        // Of a file that only this host has, too.
        expression: args.expression()?,
    })
}

fn add(words: &mut Vec<String>, argument: &Arg, matches: &ArgMatches) -> Result<()> {
    let id = argument.get_id().as_str();
    let flag = match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => return Ok(()),
    };
    if matches!(argument.get_action(), ArgAction::SetTrue) {
        words.push(flag);
        return Ok(());
    }
    for value in matches.get_raw(id).into_iter().flatten() {
        let value = OsString::from(value).into_string().map_err(|value| {
            let what = format!("cannot pass {flag} {} to another host", value.display());
            Error::usage(what, "it is no text")
        })?;
        match flag.starts_with("--") {
            true => words.push(format!("{flag}={value}")),
            false => words.extend([flag.clone(), value]),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_here_is_an_argument() {
        let command = Cli::command();
        let capture = command.find_subcommand("capture").expect("it is one");
        for id in HERE {
            let known = capture
                .get_arguments()
                .any(|argument| argument.get_id() == id);
            assert!(known, "{id}");
        }
    }
}
