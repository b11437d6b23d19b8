//! Pins of a program's maps outside trawl's own directory: where the file or the person wants them.

use std::fs;
use std::path::{Path, PathBuf};

use trawl_kernel::bpf::loader::ObjectFile;
use trawl_kernel::{Error, Result, bpffs};

use crate::site::make_directory;
use crate::standing::all_pins;

/// Pins that loading made outside trawl's own directory; removed again unless they are kept.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    expected: Vec<PathBuf>,
    made: Vec<PathBuf>,
    /// Made for other programs of trawl before; the last of them takes them along.
    shared: Vec<PathBuf>,
    kept: bool,
}

impl Pins {
    /// Tells libbpf where maps are to be pinned, and notes what was not there before.
    pub fn place(object: &mut ObjectFile, directory: Option<&Path>) -> Result<Self> {
        let mut pins = Self::default();
        let maps = object.maps();
        if let Some(directory) = directory {
            let directory = visible(directory)?;
            if directory.is_dir() {
                pins.share(&directory);
            } else {
                pins.make(&directory)?;
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
        Ok(pins)
    }

    /// Makes a directory, with those that it is in.
    fn make(&mut self, directory: &Path) -> Result<()> {
        let missing: Vec<&Path> = directory
            .ancestors()
            .take_while(|one| !one.exists())
            .collect();
        for one in missing.into_iter().rev() {
            make_directory(one)?;
            self.made.push(one.to_owned());
        }
        Ok(())
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
        .mend(format!("name a directory under {}", bpffs::USUAL)));
    }
    let missing = directory.ancestors().take_while(|path| !path.exists());
    let mut names = missing.filter_map(Path::file_name);
    if names.any(|name| name.to_string_lossy().contains('.')) {
        return Err(Error::failed(
            what(),
            "the BPF file system takes no names with a dot in them",
        ));
    }
    Ok(directory)
}
