//! `trawl-bus MODE`: the network side of `trawl agent --nats` (MODE agent) and of `trawl fleet` (MODE fleet, or key to print the
//! public key). It has no rights over packets. The first line of standard input is the configuration, in JSON; requests follow
//! it, and answers and events go to standard output, one JSON object a line. It ends when standard input is closed.

mod agent;
mod connection;
mod fleet;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mode = std::env::args().nth(1);
    let built = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        let mut input = connection::Input::new();
        match mode.as_deref() {
            Some("agent") => agent::run(&mut input).await,
            Some("fleet") => fleet::run(&mut input).await,
            Some("key") => fleet::key(&mut input).await,
            _ => Err(
                "this program serves agents and fleets of trawl; it is not called by hand"
                    .to_owned(),
            ),
        }
    });
    // A thread may still be blocked on standard input; it is not waited for.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
