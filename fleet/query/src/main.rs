//! `trawl-query`: answers a question in SQL about a store's index. trawl-fleet runs it for `trawl store query` and
//! `trawl store trace`: a program of its own, because DataFusion is ten times as large as the rest.

mod condition;
mod engine;
mod flows;
mod limits;
mod net;
mod pool;
mod pruning;
mod table;

use std::io::{self, Read};
use std::process::ExitCode;

use engine::Answer;
use trawl_store::search::answer::Part;
use trawl_store::search::limits::WHAT;
use trawl_store::search::question::Question;
use trawl_sys::{Error, Result, memory};

/// Reads the question on standard input.
fn question() -> Result<Question> {
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text).map_err(|e| Error::os(WHAT, e))?;
    serde_json::from_slice(&text).map_err(|_| {
        Error::usage("cannot read the question", "it is not one that this version of trawl-query answers")
            .fix("run trawl store query, and install trawl's programs together")
    })
}

fn answer() -> Result<()> {
    let question = question()?;
    memory::share_heap();
    limits::watch_over(question.memory)?;
    Answer::to(&question)?.write(question.form, |text| {
        let written = Part::Text(text).write(&mut io::stdout().lock());
        written.map_err(|e| Error::os("cannot write the answer", e))
    })
}

/// Writes the answer to standard output, in parts. trawl-fleet reports the error in it.
fn main() -> ExitCode {
    let end = match answer() {
        Ok(()) => Part::End,
        Err(error) => Part::Failed(error),
    };
    match end.write(&mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
