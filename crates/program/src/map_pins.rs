//! Pins of a program's maps outside trawl's own directory: where the file or the person wants them.

use std::fs;
use std::path::{Path, PathBuf};

use trawl_kernel::bpf::loader::ObjectFile;
use trawl_kernel::privilege::Capabilities;
use trawl_kernel::warden::{Task, Undo, Warden};
use trawl_kernel::{Error, Result, bpffs};

use crate::installed::all_pins;
use trawl_attach::site::make_directory;

/// Pins that loading made outside trawl's own directory; removed again unless they are kept.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    expected: Vec<PathBuf>,
    made: Vec<PathBuf>,
    /// Made for other programs of trawl before; the last of them takes them along.
    shared: Vec<PathBuf>,
    kept: bool,
    /// Removes them if trawl is killed before they stand in a record.
    warden: Warden,
}

#[derive(Debug)]
struct Unpin(Vec<PathBuf>);

impl Undo for Unpin {
    fn undo(&self) -> Result<()> {
        remove(&self.0);
        Ok(())
    }

    fn takes(&self) -> Capabilities {
        Capabilities::DAC_OVERRIDE
    }
}

impl Pins {
    /// Tells libbpf where maps are to be pinned, and notes what was not there before.
    pub fn place(object: &mut ObjectFile, directory: Option<&Path>) -> Result<Self> {
        let mut pins = Self::default();
        let maps = object.maps();
        let mut missing = Vec::new();
        if let Some(directory) = directory {
            let directory = visible(directory)?;
            if directory.is_dir() {
                pins.share(&directory);
            } else {
                missing = missing_of(&directory);
            }
            for one in maps.iter().filter(|one| !one.is_data) {
                object.pin_at(&one.name, &directory.join(one.name.replace('.', "_")))?;
            }
        } else if maps.iter().any(|one| object.pin_path(&one.name).is_some()) {
            bpffs::lasting_or_mounted()?;
        }
        for one in &maps {
            match object.pin_path(&one.name) {
                Some(path) if path.exists() => pins.share(&path),
                Some(path) => pins.expected.push(path),
                None => {}
            }
        }
        if !missing.is_empty() || !pins.expected.is_empty() {
            let unpin = Unpin([missing.as_slice(), &pins.expected].concat());
            pins.warden.watch([Task::Other(Box::new(unpin))])?;
        }
        for one in missing {
            make_directory(&one)?;
            pins.made.push(one);
        }
        Ok(pins)
    }

    /// They stand in a record that is pinned, and go with that.
    pub fn recorded(&mut self) {
        self.warden = Warden::default();
    }

    /// Notes something that is there already.
    fn share(&mut self, path: &Path) {
        let usual = bpffs::usual_path(path);
        if all_pins().contains(&usual) {
            self.shared.push(path.to_owned());
        }
    }

    /// libbpf has pinned the maps.
    pub fn pinned_by_now(&mut self) {
        let made = self.expected.drain(..).filter(|path| path.exists());
        self.made.extend(made);
    }

    /// From now on they stay; what is to be removed with the program.
    pub fn keep(&mut self) -> Vec<PathBuf> {
        self.kept = true;
        let all = self.shared.iter().chain(&self.made);
        all.map(|path| bpffs::usual_path(path)).collect()
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if !self.kept {
            self.pinned_by_now();
            remove(&self.made);
        }
    }
}

/// Removes pins and emptied directories, the last made first.
pub(crate) fn remove(made: &[PathBuf]) {
    for path in made.iter().rev() {
        let path = bpffs::path_from_here(path);
        let _ = match path.is_dir() {
            true => fs::remove_dir(path),
            false => fs::remove_file(path),
        };
    }
}

/// A directory that is not there, and those that it is in, from the outermost on.
fn missing_of(directory: &Path) -> Vec<PathBuf> {
    let missing = directory.ancestors().take_while(|one| !one.exists());
    let mut missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    missing.reverse();
    missing
}

/// A directory in a BPF file system, by a path that leads there from here; an error if it is in none.
fn visible(directory: &Path) -> Result<PathBuf> {
    let mount = bpffs::lasting_or_mounted()?;
    let directory = match directory.strip_prefix(bpffs::USUAL) {
        Ok(rest) => mount.join(rest),
        Err(_) => std::path::absolute(directory)
            .map_err(|e| Error::os(format!("cannot pin maps in {}", directory.display()), e))?,
    };
    let what = || format!("cannot pin maps in {}", directory.display());
    if directory.exists() && !directory.is_dir() {
        return Err(Error::failed(what(), "it is not a directory"));
    }
    let exists = directory.ancestors().find(|path| path.exists());
    if !exists.is_some_and(bpffs::is_on_bpffs) {
        return Err(Error::failed(
            what(),
            "it is not in a BPF file system, and only there objects can be pinned",
        )
        .fix(format!("name a directory under {}", bpffs::USUAL)));
    }
    let missing = missing_of(&directory);
    let mut names = missing.iter().filter_map(|path| path.file_name());
    if names.any(|name| name.to_string_lossy().contains('.')) {
        return Err(Error::failed(
            what(),
            "the BPF file system takes no names with a dot in them",
        ));
    }
    Ok(directory)
}
