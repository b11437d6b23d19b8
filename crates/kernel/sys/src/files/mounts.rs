//! The mount table, as a process sees it.

use std::fs;
use std::path::PathBuf;

/// A mounted file system, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub mount_point: PathBuf,
    /// Part of the file system that is mounted, as the kernel writes it: `/`, or `net:[4026531840]`.
    pub part: String,
}

/// Returns the mounts of one kind of file system that a process (`self`, or its number) sees, as far as it may be read.
pub fn of_kind(kind: &str, process: &str) -> Vec<Mount> {
    let table = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    parse(&table, kind)
}

fn parse(table: &str, kind: &str) -> Vec<Mount> {
    let one = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let mount = Mount { part: unescape(fields.next()?), mount_point: PathBuf::from(unescape(fields.next()?)) };
        (after.split(' ').next()? == kind).then_some(mount)
    };
    table.lines().filter_map(one).collect()
}

/// Decodes blanks and backslashes, which the table holds as octal numbers.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_from_the_table() {
        let table = "30 24 0:27 / /sys/fs/bpf rw - bpf bpf rw,mode=700\n\
                     31 24 0:28 / /proc rw - proc proc rw\n\
                     32 24 0:29 / /mnt/a\\040b rw shared:1 - bpf none rw\n\
                     33 24 0:4 net:[4026532199] /run/netns/red rw shared:2 - nsfs nsfs rw\n\
                     garbage\n";
        let mount = |part: &str, mount_point: &str| Mount { part: part.to_owned(), mount_point: mount_point.into() };
        let bpf = [mount("/", "/sys/fs/bpf"), mount("/", "/mnt/a b")];
        assert_eq!(parse(table, "bpf"), bpf);
        let namespaces = [mount("net:[4026532199]", "/run/netns/red")];
        assert_eq!(parse(table, "nsfs"), namespaces);
    }
}
