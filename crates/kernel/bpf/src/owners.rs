//! Processes that hold a BPF program or link open.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Processes by the objects that they hold, from /proc.
#[derive(Debug, Default)]
pub struct Owners {
    programs: BTreeMap<u32, Vec<String>>,
    links: BTreeMap<u32, Vec<String>>,
}

impl Owners {
    /// Reads all descriptors of all accessible processes.
    pub fn read_all() -> Self {
        let mut owners = Self::default();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = process.file_name();
            if name.to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit())) {
                owners.add_process(&process.path());
            }
        }
        owners
    }

    pub fn of_program(&self, id: u32) -> &[String] {
        self.programs.get(&id).map_or(&[], Vec::as_slice)
    }

    pub fn of_link(&self, id: u32) -> &[String] {
        self.links.get(&id).map_or(&[], Vec::as_slice)
    }

    fn add_process(&mut self, process: &Path) {
        let mut label = None;
        for entry in fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten() {
            let Ok(text) = fs::read_to_string(entry.path()) else {
                continue;
            };
            let (program, link) = (field(&text, "prog_id:"), field(&text, "link_id:"));
            if program.is_none() && link.is_none() {
                continue;
            }
            let label = label.get_or_insert_with(|| describe(process));
            for (ids, id) in [(&mut self.programs, program), (&mut self.links, link)] {
                let Some(id) = id else { continue };
                let holders = ids.entry(id).or_default();
                if !holders.contains(label) {
                    holders.push(label.clone());
                }
            }
        }
    }
}

fn field(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

fn describe(process: &Path) -> String {
    let pid = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match fs::read_to_string(process.join("comm")) {
        Ok(name) => format!("{} ({pid})", name.trim_end()),
        Err(_) => format!("process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_the_lines_of_a_descriptor() {
        let text = "pos:\t0\nflags:\t02000002\nlink_type:\txdp\nlink_id:\t7\nprog_id:\t42\n";
        assert_eq!((field(text, "link_id:"), field(text, "prog_id:")), (Some(7), Some(42)));
        assert_eq!(field("pos:\t0\n", "prog_id:"), None);
    }
}
