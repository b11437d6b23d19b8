//! When the files of a series end, what they are called, and what becomes of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use trawl_kernel::clock;

/// When a file of a series ends, and what becomes of it.
#[derive(Clone, Debug, Default)]
pub struct SeriesPlan {
    /// The name: by strftime(3), and with a number before its extension where there may be several of one name.
    pub path: String,
    /// A file grows no larger than this.
    pub size: Option<u64>,
    pub time: Option<Duration>,
    /// This many files stay, the latest ones.
    pub files: Option<usize>,
    /// All files together stay below this.
    pub total: Option<u64>,
    /// What is run with the name of each finished file.
    pub command: Option<String>,
    /// A file has its name only once it is finished and on the disk.
    pub sealed: bool,
    /// A file holds one event that a capture waited for.
    pub by_event: bool,
}

impl SeriesPlan {
    /// Whether there is to be more than one file, or something is done with it.
    pub fn is_asked_for(&self) -> bool {
        self.size.is_some()
            || self.time.is_some()
            || self.files.is_some()
            || self.total.is_some()
            || self.command.is_some()
            || self.sealed
            || self.path.contains('%')
    }

    fn is_numbered(&self) -> bool {
        let ends = self.time.is_some() || self.total.is_some();
        self.size.is_some() || self.by_event || (ends && !self.path.contains('%'))
    }

    /// What a file takes at most: where all files together have a limit, an eighth of that if nothing else was said.
    pub fn largest(&self) -> Option<u64> {
        self.size.or(self.total.map(|total| total / 8))
    }

    /// The name of a file that begins at a time, in nanoseconds since 1970; with its number if it is used by another, or was
    /// the last one's, which is kept in `last`.
    pub fn name(
        &self,
        number: u64,
        time_ns: u64,
        last: &mut Option<PathBuf>,
        is_used: impl Fn(&Path) -> bool,
    ) -> PathBuf {
        let name = self.name_at(number, time_ns);
        if last.as_ref() == Some(&name) || is_used(&name) {
            return self.numbered(number, time_ns);
        }
        last.insert(name).clone()
    }

    fn name_at(&self, number: u64, time_ns: u64) -> PathBuf {
        match self.is_numbered() {
            true => self.numbered(number, time_ns),
            false => PathBuf::from(self.text_at(time_ns)),
        }
    }

    fn text_at(&self, time_ns: u64) -> String {
        match self.path.contains('%') {
            true => clock::strftime_at(&self.path, time_ns),
            false => self.path.clone(),
        }
    }

    fn numbered(&self, number: u64, time_ns: u64) -> PathBuf {
        let text = self.text_at(time_ns);
        let path = Path::new(&text);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (stem, extension) = name.split_at(end_of_stem(&name));
        path.with_file_name(format!("{stem}_{number:05}{extension}"))
    }
}

/// Where a name's extension begins: of a compressed file that is both of them, as in `a.pcapng.zst`.
fn end_of_stem(name: &str) -> usize {
    let dot = |part: &str| part.rfind('.').filter(|at| *at > 0);
    let Some(last) = dot(name) else {
        return name.len();
    };
    match &name[last..] {
        ".zst" | ".lz4" | ".gz" => dot(&name[..last]).unwrap_or(last),
        _ => last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_before_extensions() {
        for (path, name) in [
            ("d.d/a.pcapng", "d.d/a_00007.pcapng"),
            ("a.pcapng.zst", "a_00007.pcapng.zst"),
            ("a.b.pcap", "a.b_00007.pcap"),
            ("a.gz", "a_00007.gz"),
            ("a", "a_00007"),
            (".hidden", ".hidden_00007"),
        ] {
            let plan = SeriesPlan {
                path: path.to_owned(),
                size: Some(1 << 20),
                ..SeriesPlan::default()
            };
            assert_eq!(plan.name_at(7, 0), Path::new(name));
        }
    }
}
