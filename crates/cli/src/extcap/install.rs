//! Making trawl known to Wireshark: a script in its folder for extcap programs, and a profile of columns and colours.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use trawl_kernel::{Error, Result};

use crate::terminal::write_out;

const PREFERENCES: &str = include_str!("../../../../packaging/wireshark/preferences");
const COLOURS: &str = include_str!("../../../../packaging/wireshark/colorfilters");
/// The script's second line, by which it is known to be trawl's.
const MARK: &str = "# Written by trawl extcap install.";

/// Makes trawl's interfaces known to Wireshark and tshark, or has them forget; a profile 'trawl' comes with it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Wireshark's folder for extcap programs [default: the one tshark names, or the user's own]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Wireshark's folder for profiles [default: the user's own]
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,
}

struct Places {
    script: PathBuf,
    profile: PathBuf,
}

impl Args {
    fn places(&self) -> Result<Places> {
        let extcap = match &self.dir {
            Some(dir) => dir.clone(),
            None => default_extcap()?,
        };
        let profiles = match &self.profiles {
            Some(dir) => dir.clone(),
            None => configuration()?.join("profiles"),
        };
        Ok(Places {
            script: extcap.join("trawl"),
            profile: profiles.join("trawl"),
        })
    }
}

fn home() -> Result<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from).ok_or_else(|| {
        Error::usage("cannot find Wireshark's folders", "HOME is not set")
            .fix("name them with --dir and --profiles")
    })
}

fn configuration() -> Result<PathBuf> {
    Ok(match std::env::var_os("XDG_CONFIG_HOME") {
        Some(config) => PathBuf::from(config).join("wireshark"),
        None => home()?.join(".config/wireshark"),
    })
}

/// As tshark names it, if this user may write there.
fn default_extcap() -> Result<PathBuf> {
    let folders = Command::new("tshark").args(["-G", "folders"]).output();
    let text = folders.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    let named = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(PathBuf::from(line.trim()))
    };
    if let Some(personal) = named("Personal Extcap path:") {
        return Ok(personal);
    }
    match named("Extcap path:") {
        Some(shared) => Ok(shared),
        None => Ok(home()?.join(".local/lib/wireshark/extcap")),
    }
}

pub(super) fn install(args: &Args) -> Result<()> {
    let places = args.places()?;
    let program =
        std::env::current_exe().map_err(|e| Error::os("cannot find where trawl is", e))?;
    let quoted = program.display().to_string().replace('\'', "'\\''");
    let script = format!("#!/bin/sh\n{MARK}\nexec '{quoted}' extcap \"$@\"\n");
    refuse_others(&places.script, "install")?;
    write(&places.script, &script)?;
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&places.script, executable).map_err(|e| {
        Error::os(
            format!("cannot make {} executable", places.script.display()),
            e,
        )
    })?;
    write(&places.profile.join("preferences"), PREFERENCES)?;
    write(&places.profile.join("colorfilters"), COLOURS)?;
    write_out(&format!(
        "installed {} and the profile {}\n",
        places.script.display(),
        places.profile.display()
    ))
}

pub(super) fn remove(args: &Args) -> Result<()> {
    let places = args.places()?;
    refuse_others(&places.script, "remove")?;
    let mut removed = Vec::new();
    let mut take = |path: &Path| -> Result<()> {
        match std::fs::remove_file(path) {
            Ok(()) => removed.push(path.display().to_string()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::os(format!("cannot remove {}", path.display()), e)),
        }
        Ok(())
    };
    take(&places.script)?;
    for file in ["preferences", "colorfilters"] {
        take(&places.profile.join(file))?;
    }
    // What else a person has put into the profile stays, and the folder with it.
    let _ = std::fs::remove_dir(&places.profile);
    write_out(&match removed.is_empty() {
        true => "nothing is installed\n".to_owned(),
        false => format!("removed {}\n", removed.join(", ")),
    })
}

/// A file of that name that trawl did not write stays as it is.
fn refuse_others(script: &Path, verb: &str) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(script) else {
        return Ok(());
    };
    if text.contains(MARK) {
        return Ok(());
    }
    let what = format!("cannot {verb} {}", script.display());
    Err(Error::failed(what, "another program's file is there")
        .fix("name another folder with --dir"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    let fail = |e| Error::os(format!("cannot write {}", path.display()), e);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(fail)?;
    }
    std::fs::write(path, text).map_err(fail)
}
