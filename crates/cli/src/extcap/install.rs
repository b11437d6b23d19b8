//! Making trawl known to Wireshark: a script in its folder for extcap programs, and a profile of columns and colours.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use trawl_sys::process::own_binary;
use trawl_sys::{Error, Result, create};

use crate::terminal::{say, write_out};

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
    /// Where the script may be: the first of these that this user may write to.
    scripts: Vec<PathBuf>,
    profile: PathBuf,
}

impl Args {
    fn places(&self) -> Result<Places> {
        let extcap = match &self.dir {
            Some(dir) => vec![dir.clone()],
            None => default_extcap()?,
        };
        let profiles = match &self.profiles {
            Some(dir) => dir.clone(),
            None => configuration()?.join("profiles"),
        };
        Ok(Places {
            scripts: extcap.iter().map(|dir| dir.join("trawl")).collect(),
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

/// As tshark names it. Before Wireshark 4.2 there is the machine's folder alone, where only root may write: then the
/// user's own is the second choice, which Wireshark looks into when an environment variable says so.
fn default_extcap() -> Result<Vec<PathBuf>> {
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
        return Ok(vec![personal]);
    }
    let own = home().map(|home| home.join(".local/lib/wireshark/extcap"));
    match named("Extcap path:") {
        Some(shared) => Ok(std::iter::once(shared).chain(own).collect()),
        None => Ok(vec![own?]),
    }
}

pub(super) fn install(args: &Args) -> Result<()> {
    let places = args.places()?;
    let program = own_binary()?;
    let quoted = program.display().to_string().replace('\'', "'\\''");
    let text = format!("#!/bin/sh\n{MARK}\nexec '{quoted}' extcap \"$@\"\n");
    let mut written = None;
    for (index, script) in places.scripts.iter().enumerate() {
        refuse_others(script, "install")?;
        match write(script, &text)
            .and_then(|()| std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)))
        {
            Ok(()) => {
                written = Some((index, script));
                break;
            }
            Err(e) if is_denied(&e) && index + 1 < places.scripts.len() => {}
            Err(e) => return Err(cannot_write(script, e)),
        }
    }
    for (name, text) in [("preferences", PREFERENCES), ("colorfilters", COLOURS)] {
        let file = places.profile.join(name);
        write(&file, text).map_err(|e| cannot_write(&file, e))?;
    }
    let Some((index, script)) = written else {
        return Ok(());
    };
    write_out(&format!(
        "installed {} and the profile {}\n",
        script.display(),
        places.profile.display()
    ))?;
    if let (true, Some(folder)) = (index > 0, script.parent()) {
        say(&format!(
            "this Wireshark looks there only with: export WIRESHARK_EXTCAP_DIR={}; for all users: run 'trawl extcap install' as root",
            folder.display()
        ));
    }
    Ok(())
}

pub(super) fn remove(args: &Args) -> Result<()> {
    let places = args.places()?;
    for script in &places.scripts {
        refuse_others(script, "remove")?;
    }
    let mut removed = Vec::new();
    let files = ["preferences", "colorfilters"].map(|name| places.profile.join(name));
    // What the user's own folder has goes before it is told that the machine's is root's.
    for path in files.iter().chain(places.scripts.iter().rev()) {
        match std::fs::remove_file(path) {
            Ok(()) => removed.push(path.display().to_string()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if is_denied(&e) && !removed.is_empty() => {}
            Err(e) => return Err(failed(format!("cannot remove {}", path.display()), e)),
        }
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
    Err(
        Error::failed(what, "the file exists and was not installed by trawl")
            .fix("name another folder with --dir"),
    )
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    create::replace(path, text.as_bytes())
}

fn is_denied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

fn cannot_write(path: &Path, error: io::Error) -> Error {
    failed(format!("cannot write {}", path.display()), error)
}

fn failed(what: String, error: io::Error) -> Error {
    let denied = is_denied(&error);
    let error = Error::os(what, error);
    match denied {
        true => error.fix("run it as root, or name folders of your own with --dir and --profiles"),
        false => error,
    }
}
