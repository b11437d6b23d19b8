//! `trawl extcap install`: trawl's interfaces, fields and profile in Wireshark's folders.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use trawl_sys::files::create;
use trawl_sys::process::own_binary;
use trawl_sys::{Error, Result};

use super::dissector;
use crate::terminal::{say, write_out};

/// The files of the profile.
const PROFILE: [(&str, &str); 4] = [
    ("preferences", include_str!("../../../../packaging/wireshark/preferences")),
    ("colorfilters", include_str!("../../../../packaging/wireshark/colorfilters")),
    ("dfilter_buttons", include_str!("../../../../packaging/wireshark/dfilter_buttons")),
    (RECENT, include_str!("../../../../packaging/wireshark/recent")),
];
/// The file with the widths of columns, into which Wireshark writes those that the user chose.
const RECENT: &str = "recent";
/// The script's second line, which identifies it as trawl's.
const MARK: &str = "# Written by trawl extcap install.";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Wireshark's folder for extcap programs [default: the one tshark names, or the user's own]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Wireshark's folder for profiles [default: the user's own]
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,
    /// Wireshark's folder for plugins in Lua [default: the user's own]
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,
}

struct InstallPaths {
    /// Candidates for the script's path: the first that this user may write to is used.
    scripts: Vec<PathBuf>,
    profile: PathBuf,
    /// The post-dissector.
    plugin: PathBuf,
}

impl Args {
    fn paths(&self) -> Result<InstallPaths> {
        let extcap = match &self.dir {
            Some(dir) => vec![dir.clone()],
            None => default_extcap()?,
        };
        let profiles = match &self.profiles {
            Some(dir) => dir.clone(),
            None => configuration()?.join("profiles"),
        };
        let plugins = match &self.plugins {
            Some(dir) => dir.clone(),
            None => own_folder("Personal Lua Plugins:", "plugins")?,
        };
        Ok(InstallPaths {
            scripts: extcap.iter().map(|dir| dir.join("trawl")).collect(),
            profile: profiles.join("trawl"),
            plugin: plugins.join("trawl.lua"),
        })
    }
}

fn home() -> Result<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from).ok_or_else(|| {
        Error::usage("cannot find Wireshark's folders", "HOME is not set").fix("name them with --dir and --profiles")
    })
}

fn configuration() -> Result<PathBuf> {
    Ok(match std::env::var_os("XDG_CONFIG_HOME") {
        Some(config) => PathBuf::from(config).join("wireshark"),
        None => home()?.join(".config/wireshark"),
    })
}

/// Returns a folder in tshark's answer.
fn folder(heading: &str) -> Option<PathBuf> {
    let output = Command::new("tshark").args(["-G", "folders"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix(heading))?;
    Some(PathBuf::from(line.trim()))
}

/// Returns a folder of the user.
fn own_folder(heading: &str, usual: &str) -> Result<PathBuf> {
    match folder(heading) {
        Some(folder) => Ok(folder),
        None => Ok(home()?.join(".local/lib/wireshark").join(usual)),
    }
}

/// Returns the folders in tshark's answer. Before Wireshark 4.2 only the machine's folder exists, which root alone may
/// write: the user's own is then the second choice, which Wireshark searches only if an environment variable says so.
fn default_extcap() -> Result<Vec<PathBuf>> {
    if let Some(personal) = folder("Personal Extcap path:") {
        return Ok(vec![personal]);
    }
    let own = home().map(|home| home.join(".local/lib/wireshark/extcap"));
    match folder("Extcap path:") {
        Some(shared) => Ok(std::iter::once(shared).chain(own).collect()),
        None => Ok(vec![own?]),
    }
}

pub fn install(args: &Args) -> Result<()> {
    let paths = args.paths()?;
    let program = own_binary()?;
    let quoted = program.display().to_string().replace('\'', "'\\''");
    let text = format!("#!/bin/sh\n{MARK}\nexec '{quoted}' extcap \"$@\"\n");
    let mut written = None;
    for (index, script) in paths.scripts.iter().enumerate() {
        refuse_others(script, "install")?;
        match write(script, &text)
            .and_then(|()| std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)))
        {
            Ok(()) => {
                written = Some((index, script));
                break;
            }
            Err(e) if is_denied(&e) && index + 1 < paths.scripts.len() => {}
            Err(e) => return Err(cannot_write(script, e)),
        }
    }
    for (name, text) in PROFILE {
        let file = paths.profile.join(name);
        if name == RECENT && file.exists() {
            continue;
        }
        write(&file, text).map_err(|e| cannot_write(&file, e))?;
    }
    write(&paths.plugin, &dissector::lua()).map_err(|e| cannot_write(&paths.plugin, e))?;
    let Some((index, script)) = written else {
        return Ok(());
    };
    write_out(&format!(
        "installed {}, {} and the profile {}\n",
        script.display(),
        paths.plugin.display(),
        paths.profile.display()
    ))?;
    if let (true, Some(folder)) = (index > 0, script.parent()) {
        say(&format!(
            "this Wireshark searches that folder only after: export WIRESHARK_EXTCAP_DIR={}; for all users: run 'trawl extcap install' as root",
            folder.display()
        ));
    }
    Ok(())
}

pub fn remove(args: &Args) -> Result<()> {
    let paths = args.paths()?;
    for script in &paths.scripts {
        refuse_others(script, "remove")?;
    }
    let mut removed = Vec::new();
    let files = PROFILE.map(|(name, _)| paths.profile.join(name));
    // The user's own folder is cleaned before an error reports that the machine's is root's.
    for path in files.iter().chain([&paths.plugin]).chain(paths.scripts.iter().rev()) {
        match std::fs::remove_file(path) {
            Ok(()) => removed.push(path.display().to_string()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if is_denied(&e) && !removed.is_empty() => {}
            Err(e) => return Err(failed(format!("cannot remove {}", path.display()), e)),
        }
    }
    // Other files in the profile stay, and its folder with them.
    let _ = std::fs::remove_dir(&paths.profile);
    write_out(&if removed.is_empty() {
        "nothing is installed\n".to_owned()
    } else {
        format!("removed {}\n", removed.join(", "))
    })
}

/// Refuses to touch a file of that name that trawl did not write.
fn refuse_others(script: &Path, verb: &str) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(script) else {
        return Ok(());
    };
    if text.contains(MARK) {
        return Ok(());
    }
    let what = format!("cannot {verb} {}", script.display());
    Err(Error::failed(what, "the file exists and was not installed by trawl").fix("name another folder with --dir"))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    create::replace(path, text.as_bytes())
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn cannot_write(path: &Path, error: io::Error) -> Error {
    failed(format!("cannot write {}", path.display()), error)
}

fn failed(what: String, error: io::Error) -> Error {
    let denied = is_denied(&error);
    let error = Error::os(what, error);
    if denied { error.fix("run it as root, or name folders of your own with --dir and --profiles") } else { error }
}
