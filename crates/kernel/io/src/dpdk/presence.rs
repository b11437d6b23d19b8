//! Whether the helper is installed, and whether it is of this build.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use trawl_sys::Result;
use trawl_sys::process::companion;

use super::EXCHANGE_ABI;

/// What the helper is called, beside trawl's own binary.
pub const PROGRAM: &str = "trawl-dpdk";
/// Names another one.
pub const VARIABLE: &str = "TRAWL_DPDK";

/// Where the helper is: where the environment says, beside trawl's binary, or where packages put it.
pub fn find() -> Result<Option<PathBuf>> {
    if let Some(named) = env::var_os(VARIABLE) {
        return Ok(Some(PathBuf::from(named)).filter(|path| path.is_file()));
    }
    companion(PROGRAM)
}

/// The helper, as it is seen without an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    NotThere,
    /// It cannot be run: the libraries of DPDK are gone, say.
    DoesNotRun {
        program: PathBuf,
        said: String,
    },
    OtherBuild {
        program: PathBuf,
    },
    Ready {
        program: PathBuf,
        dpdk: String,
    },
}

/// Asks the helper for its version.
pub fn presence() -> Presence {
    match find() {
        Ok(Some(program)) => presence_of(program),
        Ok(None) => Presence::NotThere,
        Err(error) => Presence::DoesNotRun {
            program: PROGRAM.into(),
            said: error.to_string(),
        },
    }
}

fn presence_of(program: PathBuf) -> Presence {
    let output = Command::new(&program)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    let said = match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Presence::DoesNotRun { program, said };
        }
        Err(error) => {
            let said = error.to_string();
            return Presence::DoesNotRun { program, said };
        }
    };
    match said.strip_prefix(&format!("{PROGRAM} {EXCHANGE_ABI} ")) {
        Some(dpdk) => Presence::Ready {
            dpdk: dpdk.to_owned(),
            program,
        },
        None => Presence::OtherBuild { program },
    }
}
