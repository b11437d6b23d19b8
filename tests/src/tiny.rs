//! A file system that is quickly full.

use std::path::PathBuf;

use crate::Lab;
use crate::args;
use crate::witness::run;

#[derive(Debug)]
pub struct TinyDisk(PathBuf);

impl TinyDisk {
    /// Mounts a file system of this many bytes (in whole pages), under the test's own directory.
    pub fn mount(lab: &Lab, bytes: u64) -> Self {
        let path = lab.path("tiny");
        std::fs::create_dir(&path).expect("a directory");
        run("mount", &args!("-t tmpfs -o size={bytes} trawl-tests {}", path.to_str().expect("plain")));
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a plain path").to_owned()
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = crate::witness::output("umount", &["--lazy", self.0.to_str().unwrap_or_default()]);
    }
}
