//! Code that trawl's programs share: messages, JSON, exit status, output files, published statistics, HTTP, metrics.

pub mod bound;
pub mod help;
pub mod http;
pub mod json;
pub mod lines;
pub mod prometheus;
pub mod published;
pub mod saving;
pub mod terminal;

use std::process::ExitCode;

use clap::{Command, FromArgMatches};
use trawl_sys::error::ErrorKind;

/// Returns the exit status of a command that completed, by its result.
pub fn exit_code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reports a wrong command line, or prints the help that it asks for.
pub fn refuse(error: &clap::Error) -> ExitCode {
    if json::is_wanted() && error.use_stderr() {
        json::report_usage(error.render().to_string().trim_end());
        return ExitCode::from(2);
    }
    error.exit()
}

/// Parses a program's command line; the exit status if it is wrong, or asks for help.
pub fn parse<C: FromArgMatches>(command: Command) -> Result<C, ExitCode> {
    let matches = command.try_get_matches();
    let parsed = matches.and_then(|matches| C::from_arg_matches(&matches));
    parsed.map_err(|error| refuse(&error))
}

/// Reports the error of a command, if it has one, and returns the exit status.
pub fn end(result: trawl_sys::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        if json::is_wanted() {
            json::report(&error);
        } else {
            terminal::say(&error.to_string());
        }
        match error.kind() {
            ErrorKind::Usage => ExitCode::from(2),
            ErrorKind::Failed => ExitCode::from(1),
        }
    })
}
