//! `trawl slow`: why connections are slow, and who is to blame.

use std::path::Path;
use std::process::ExitCode;

use trawl_explain::slow::file;
use trawl_source::Input;
use trawl_sys::{Error, Result};

use crate::args::LibpcapArg;
use crate::read::split_files;
use crate::{exit_code, json};

/// Shows why the connections of capture files are slow: the cause, its evidence, and where to look
///
/// Names loss, reordering, distance, queues, slow readers, slow answers, packets that are too large, refused and reset
/// connections, and slow or silent name servers. The first 128 bytes of each packet are enough. A connection that has
/// nothing to say is not slow.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show the result as JSON
    #[arg(long)]
    json: bool,
    /// Files to read, and a filter in tcpdump's syntax
    #[arg(value_name = "FILE… [EXPRESSION]", required = true, add = crate::completion::paths())]
    words: Vec<String>,
    #[command(flatten)]
    libpcap: LibpcapArg,
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    let (files, words) = split_files(&args.words);
    if files.is_empty() {
        let why = "no file is named";
        return Err(Error::usage("cannot look for slow connections", why).fix("trawl slow FILE"));
    }
    let open = |name: &String| Input::open(Path::new(name), None, None, json::show_notice);
    let inputs: Vec<Input> = files.iter().map(open).collect::<Result<_>>()?;
    let found = file::read(inputs, &words.join(" "))?;
    json::print_as(args.json, &found.report, || found.report.to_string())?;
    Ok(exit_code(found.is_whole))
}
