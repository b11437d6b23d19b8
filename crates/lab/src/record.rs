//! Records of labs: a file for each under /run/trawl/labs, written before anything is created and removed after
//! everything is gone, so that the leftovers of a killed process can be found.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trawl_sys::process::warden::Undo;
use trawl_sys::process::{self, interrupt};
use trawl_sys::{Error, Result, netns};

use crate::topology::{PREFIX, Topology};

const DIRECTORY: &str = "/run/trawl/labs";
/// Namespaces of this project's own tests: the prefix, then the process id.
const TEST_PREFIX: &str = "trawl-test-";

/// Process that owns a lab. The start time distinguishes it from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub pid: u32,
    pub started: u64,
}

impl Owner {
    fn this_process() -> Self {
        let pid = std::process::id();
        Self { pid, started: process::started(pid).unwrap_or(0) }
    }

    fn is_alive(self) -> bool {
        process::started(self.pid) == Some(self.started)
    }
}

/// Description of a lab, known without inspecting it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub id: String,
    pub namespaces: Vec<String>,
    /// `None` if it stays until it is taken down.
    pub owner: Option<Owner>,
    /// Source topology, for a file or a preset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
}

impl Record {
    pub(crate) fn new(id: &str, namespaces: Vec<String>) -> Self {
        Self { id: id.to_owned(), namespaces, owner: Some(Owner::this_process()), topology: None }
    }

    /// Returns true if the lab's owner is running, or if the lab was built to stay.
    pub fn in_use(&self) -> bool {
        self.owner.is_none_or(Owner::is_alive)
    }

    fn path(id: &str) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{id}.json"))
    }

    /// Writes the record, unless one of the same id exists.
    pub(crate) fn write_new(&self) -> Result<()> {
        let path = Self::path(&self.id);
        let what = || format!("cannot make the lab {}", self.id);
        fs::create_dir_all(DIRECTORY).map_err(|e| Error::os(what(), e).fix("this requires root"))?;
        // The record is linked as a whole: a half-written one would count as the record of a dead process.
        let draft = self.draft().map_err(|e| Error::os(what(), e))?;
        let entered = fs::hard_link(&draft, &path);
        let _ = fs::remove_file(&draft);
        entered.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => {
                Error::failed(what(), "a lab has that name already").fix(format!("trawl lab down {}", self.id))
            }
            _ => Error::os(what(), e),
        })
    }

    /// Makes the lab stay after this process.
    pub(crate) fn disown(&mut self) -> Result<()> {
        self.owner = None;
        self.draft()
            .and_then(|draft| fs::rename(draft, Self::path(&self.id)))
            .map_err(|e| Error::os(format!("cannot keep the lab {}", self.id), e))
    }

    /// Writes the record to a temporary file in the same directory, under a name that only this process uses.
    fn draft(&self) -> io::Result<PathBuf> {
        let draft = Self::path(&self.id).with_extension(format!("draft-{}", std::process::id()));
        fs::write(&draft, serde_json::to_vec(self)?)?;
        Ok(draft)
    }

    /// Deletes the namespaces (and with them the interfaces), then the record.
    pub(crate) fn remove(&self) -> Result<()> {
        let existing = netns::list();
        for name in self.namespaces.iter().filter(|name| existing.contains(name)) {
            netns::delete(name)?;
        }
        match fs::remove_file(Self::path(&self.id)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::os(format!("cannot remove the lab {}", self.id), e))
            }
            _ => Ok(()),
        }
    }
}

/// Returns all records, by name.
pub fn list() -> Result<Vec<Record>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            let root = "this requires root";
            return Err(Error::os(format!("cannot list the labs in {DIRECTORY}"), e).fix(root));
        }
    };
    let mut labs: Vec<Record> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            if path.extension()? != "json" {
                return None;
            }
            let id = path.file_stem()?.to_str()?.to_owned();
            let read = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            Some(read.unwrap_or_else(|| unreadable(id)))
        })
        .collect();
    labs.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(labs)
}

/// Returns a record for a damaged file, with an owner that does not exist: `clean` finds its namespaces by their names.
fn unreadable(id: String) -> Record {
    let nobody = Owner { pid: 0, started: 0 };
    Record { id, namespaces: Vec::new(), owner: Some(nobody), topology: None }
}

/// Takes down one lab, no matter who made it.
pub fn remove(id: &str) -> Result<Record> {
    let lab = crate::find(id)?;
    lab.remove()?;
    Ok(lab)
}

/// Removal of a lab, for the warden of a process that may be killed.
#[derive(Debug)]
pub struct Removal {
    pub lab: String,
    /// Processes that would keep its namespaces alive. They are interrupted.
    pub processes: Vec<u32>,
}

impl Undo for Removal {
    fn undo(&self) -> Result<()> {
        for process in &self.processes {
            let _ = interrupt(*process);
        }
        remove(&self.lab).map(drop)
    }

    /// Keeps standard output and error open: their readers wait until the lab is gone.
    fn descriptors(&self) -> Vec<RawFd> {
        vec![1, 2]
    }

    fn unmounts(&self) -> bool {
        true
    }
}

/// Result of a cleaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cleaned {
    /// Names of the labs and stray namespaces that were removed.
    pub removed: Vec<String>,
    /// Names of the labs and namespaces that were kept, because they are or may be in use.
    pub kept: Vec<String>,
}

/// Removes the leftovers of dead processes; with `all`, every lab and every namespace named `trawl-…`.
pub fn clean(all: bool) -> Result<Cleaned> {
    let mut cleaned = Cleaned::default();
    let mut known = Vec::new();
    for lab in list()? {
        known.extend(lab.namespaces.iter().cloned());
        if all || !lab.in_use() {
            lab.remove()?;
            cleaned.removed.push(lab.id);
        } else {
            cleaned.kept.push(lab.id);
        }
    }
    let strays = netns::list();
    for name in strays.iter().filter(|name| name.starts_with(PREFIX) && !known.contains(name)) {
        if all || test_is_over(name) {
            netns::delete(name)?;
            cleaned.removed.push(name.clone());
        } else {
            cleaned.kept.push(name.clone());
        }
    }
    Ok(cleaned)
}

/// Returns true if a namespace belongs to a test whose process is gone.
fn test_is_over(name: &str) -> bool {
    let pid = name.strip_prefix(TEST_PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
    pid.is_some_and(|pid| process::started(pid).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_identified_by_id_and_start_time() {
        let owner = Owner::this_process();
        assert!(owner.is_alive());
        assert!(!Owner { started: owner.started - 1, ..owner }.is_alive());
        assert!(!Owner { pid: u32::MAX, started: 1 }.is_alive());
    }

    #[test]
    fn test_is_over_when_its_process_is_gone() {
        assert!(!test_is_over(&format!("trawl-test-{}-0", std::process::id())));
        assert!(test_is_over("trawl-test-4294967295-0"));
        assert!(!test_is_over("trawl-lab-a"));
        assert!(!test_is_over("trawl-test-x"));
    }
}
