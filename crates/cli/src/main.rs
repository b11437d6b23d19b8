//! The binary: arguments and terminal output, nothing else.

mod args;
mod balance;
mod capture;
mod clean;
mod completion;
mod demo;
mod doctor;
mod extcap;
mod filter;
mod follow;
mod r#gen;
mod guard;
mod habits;
mod help;
mod helpers;
mod lab;
mod program_args;
mod read;
mod route;
mod screen;
mod serve;
mod slow;
mod stat;
mod top;
mod why;
mod xdp;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::env::CompleteEnv;
use trawl_capture::event::Event;
use trawl_front::{end, exit_code, json, published, terminal};
use trawl_sys::units;

/// Captures, filters, generates, forwards and measures packets on the fast path
#[derive(Debug, Parser)]
#[command(name = "trawl", version, max_term_width = 100, disable_version_flag = true, arg_required_else_help = true)]
struct Cli {
    /// Print the version
    #[arg(short = 'V', action = ArgAction::Version)]
    short_version: Option<bool>,
    /// Print the versions of trawl, libpcap and the helpers
    #[arg(long)]
    version: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Capture(Box<capture::Args>),
    Read(Box<read::ReadArgs>),
    Stat(stat::StatArgs),
    Top(top::Args),
    Serve(serve::Args),
    Why(why::Args),
    Slow(slow::Args),
    Follow(follow::Args),
    Filter(filter::FilterArgs),
    Gen(Box<r#gen::GenArgs>),
    Extcap(Box<extcap::Args>),
    Taps(doctor::TapsArgs),
    Doctor(doctor::Args),
    Xdp(xdp::Args),
    Route(route::Args),
    Guard(Box<guard::Args>),
    Balance(Box<balance::Args>),
    #[command(flatten)]
    Helper(helpers::Run),
    Lab(lab::LabArgs),
    Demo(demo::Args),
    Completions(completion::Completions),
}

// Commands that neither help nor completions show. A doc comment would become the help of trawl.
#[derive(Debug, Subcommand)]
enum Hidden {
    #[command(hide = true)]
    Man(help::Man),
    /// The former name of `doctor --clean`
    #[command(hide = true)]
    Clean(clean::Args),
}

fn main() -> ExitCode {
    helpers::complete();
    CompleteEnv::with_factory(Cli::command).complete();
    trawl_capture::filter::compile_filters();
    let command = Hidden::augment_subcommands(help::with_examples(Cli::command()));
    let words: Vec<OsString> = std::env::args_os().collect();
    let perform = |matches: ArgMatches| match matches.subcommand_name() {
        Some(name) if Hidden::has_subcommand(name) => Hidden::from_arg_matches(&matches).map(run_hidden),
        _ => Cli::from_arg_matches(&matches).map(run),
    };
    match command.clone().try_get_matches_from(&words).and_then(perform) {
        Ok(result) => end(result),
        Err(mut error) => {
            habits::improve(&mut error, &command, &words);
            trawl_front::refuse(&error)
        }
    }
}

/// Reports an event of a capture whose packets are shown in a view. On a terminal, messages would break the view, so
/// the event is left out there.
fn report_unless_on_screen(event: &Event) {
    if json::is_wanted() || !terminal::stdout_is_terminal() {
        json::event(event);
    }
}

fn run_hidden(command: Hidden) -> trawl_sys::Result<ExitCode> {
    match command {
        Hidden::Man(args) => help::man(args),
        Hidden::Clean(args) => clean::run(args.all, args.json),
    }
}

fn run(cli: Cli) -> trawl_sys::Result<ExitCode> {
    let Some(command) = cli.command else {
        // The helpers next to the binary are checked only for commands that need them.
        return doctor::version();
    };
    match command {
        Command::Capture(args) => capture::run(*args),
        Command::Read(args) => read::run(*args),
        Command::Stat(args) => stat::run(args),
        Command::Top(args) => top::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Why(args) => why::run(args),
        Command::Slow(args) => slow::run(args),
        Command::Follow(args) => follow::run(args),
        Command::Filter(args) => filter::run(args),
        Command::Gen(args) => r#gen::run(*args),
        Command::Extcap(args) => extcap::run(*args),
        Command::Taps(args) => doctor::taps(&args),
        Command::Doctor(args) => doctor::run(args),
        Command::Xdp(args) => xdp::run(args),
        Command::Route(args) => route::run(args),
        Command::Guard(args) => guard::run(*args),
        Command::Balance(args) => balance::run(*args),
        Command::Helper(helper) => helper.run(),
        Command::Lab(args) => lab::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Completions(args) => completion::print_script(args),
    }
}
