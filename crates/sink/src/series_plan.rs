//! End, name and treatment of the files of a series.

use std::path::{Path, PathBuf};

use trawl_plan::outputs::Rotation;
use trawl_sys::clock;

/// Rules for the end and the treatment of a series' files.
#[derive(Clone, Debug, Default)]
pub struct SeriesPlan {
    /// Name for strftime(3), with a number before its extension if several files may have the same name.
    pub path: String,
    pub rotation: Rotation,
    /// True if each file holds one event.
    pub by_event: bool,
    /// True if the packets come from files: the new files end and are named by the packets' time.
    pub by_packets: bool,
}

impl SeriesPlan {
    /// Returns true for more than one file, or for treatment of a single one.
    pub fn is_asked_for(&self) -> bool {
        self.rotation.is_asked_for() || self.path.contains('%')
    }

    fn is_numbered(&self) -> bool {
        let Rotation { size, time, total, .. } = &self.rotation;
        let ends = time.is_some() || total.is_some();
        size.is_some() || self.by_event || (ends && !self.path.contains('%'))
    }

    /// Returns the maximum size of a file: with a total limit, an eighth of it by default.
    pub fn largest(&self) -> Option<u64> {
        let Rotation { size, total, .. } = &self.rotation;
        size.or(total.map(|total| total / 8))
    }

    /// Returns the name of a file that begins at a time, in nanoseconds since 1970; with its number if another file has
    /// the name, or the previous one, which is kept in `last`.
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
        if self.is_numbered() { self.numbered(number, time_ns) } else { PathBuf::from(self.text_at(time_ns)) }
    }

    fn text_at(&self, time_ns: u64) -> String {
        if self.path.contains('%') { clock::strftime_at(&self.path, time_ns) } else { self.path.clone() }
    }

    fn numbered(&self, number: u64, time_ns: u64) -> PathBuf {
        let text = self.text_at(time_ns);
        let path = Path::new(&text);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (stem, extension) = name.split_at(end_of_stem(&name));
        path.with_file_name(format!("{stem}_{number:05}{extension}"))
    }
}

/// Returns the start of a name's extension; compressed files have two, as in `a.pcapng.zst`.
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
                rotation: Rotation { size: Some(1 << 20), ..Rotation::default() },
                by_event: false,
                by_packets: false,
            };
            assert_eq!(plan.name_at(7, 0), Path::new(name));
        }
    }
}
