//! Processes that have sockets open, by the sockets' inode numbers.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// A process that has a socket open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    pub name: String,
}

/// Returns the processes by the sockets that they have open, as far as they may be inspected. A shared socket belongs
/// to the process with the lowest number.
pub fn read_all() -> HashMap<u64, Process> {
    let mut owners = HashMap::new();
    let mut ids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    ids.sort_unstable();
    for id in ids {
        let directory = format!("/proc/{id}");
        let mut name = None;
        for entry in fs::read_dir(format!("{directory}/fd")).into_iter().flatten().flatten() {
            let Some(inode) = fs::read_link(entry.path()).ok().and_then(|to| socket_inode(&to)) else {
                continue;
            };
            let name = name.get_or_insert_with(|| {
                let name = fs::read_to_string(format!("{directory}/comm")).unwrap_or_default();
                name.trim_end().to_owned()
            });
            owners.entry(inode).or_insert_with(|| Process { id, name: name.clone() });
        }
    }
    owners
}

fn socket_inode(link: &Path) -> Option<u64> {
    let text = link.to_str()?.strip_prefix("socket:[")?;
    text.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn this_process_owns_its_sockets() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let inode = socket_inode(&link).unwrap();
        assert_eq!(read_all()[&inode].id, std::process::id());
        assert_eq!(socket_inode(Path::new("pipe:[17]")), None);
    }
}
