//! The processes that a file describes: in Wireshark's blocks, and in Darwin's.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use super::block::OptionList;
use super::block::{self, Block, ByteOrder};
use super::note::ProcessNote;
use super::options::PacketOptions;
use super::{NamedProcess, PacketProcess, Process};

/// Darwin's block with a process, and its options.
const DARWIN_PROCESS: u32 = 0x8000_0001;
const DARWIN_NAME: u16 = 2;

/// The processes described so far.
#[derive(Debug, Default)]
pub struct Processes {
    /// By number, then by start.
    by_id: HashMap<u32, BTreeMap<Option<u64>, Process>>,
    /// Numbers of the processes in Darwin's blocks, in the order of the blocks, by which packets refer to them.
    darwin: Vec<u32>,
}

impl Process {
    /// Returns the process that a little-endian block describes, if it does.
    pub fn from_block(block: &Block<'_>) -> Option<Self> {
        Self::parse(block.kind, block.body, ByteOrder::Little)
    }

    /// Returns the process that the body of a block in Wireshark's layout describes.
    pub fn parse(kind: u32, body: &[u8], order: ByteOrder) -> Option<Self> {
        (kind == block::CUSTOM).then_some(())?;
        wireshark(body, order)
    }
}

impl Processes {
    /// Adds the process that a block describes, if it does.
    pub fn add(&mut self, kind: u32, body: &[u8], order: ByteOrder) {
        let process = match kind {
            block::CUSTOM => wireshark(body, order),
            DARWIN_PROCESS => {
                let process = darwin(body, order);
                self.darwin.extend(process.as_ref().map(|process| process.id));
                process
            }
            _ => None,
        };
        if let Some(process) = process {
            let by_start = self.by_id.entry(process.id).or_default();
            by_start.insert(process.start_ns, process);
        }
    }

    /// Adds the process that a block of a running capture describes, if it does.
    pub fn add_block(&mut self, block: &Block<'_>) {
        self.add(block.kind, block.body, ByteOrder::Little);
    }

    /// Returns the process of a packet, which an option or a comment names.
    pub fn of_packet<'a>(&'a self, options: &PacketOptions<'a>, time_ns: u64) -> Option<NamedProcess<'a>> {
        let commented = options.comments.iter().find_map(commented);
        let by_order = || {
            let id = *self.darwin.get(options.darwin_process? as usize)?;
            Some(PacketProcess { id, thread: 0 })
        };
        let Some(process) = options.process.or_else(by_order) else {
            // The comment's number cannot be looked up: in this file, it may belong to another host's process.
            return commented;
        };
        let described = self.find(process.id, time_ns);
        let in_comment = commented.filter(|one| one.id == process.id);
        Some(NamedProcess {
            id: process.id,
            thread: process.thread,
            name: match described {
                Some(described) => described.name.as_deref(),
                None => in_comment.and_then(|one| one.name),
            },
            described,
        })
    }

    /// Returns the description of a process at a time: the last one that began before, else the first.
    pub fn find(&self, id: u32, time_ns: u64) -> Option<&Process> {
        let by_start = self.by_id.get(&id)?;
        let last = by_start.range(..=Some(time_ns)).next_back();
        last.or(by_start.first_key_value()).map(|(_, process)| process)
    }
}

/// Returns the process that a comment names: one of `--process=comment`, or one on a drop.
fn commented<'a>(comment: &Cow<'a, str>) -> Option<NamedProcess<'a>> {
    let Cow::Borrowed(text) = comment else {
        return None;
    };
    let ProcessNote { name, id } = ProcessNote::in_comment(text)?;
    Some(NamedProcess { id, thread: 0, name: Some(name).filter(|name| !name.is_empty()), described: None })
}

fn wireshark(body: &[u8], order: ByteOrder) -> Option<Process> {
    // The contents are little-endian in files of either order.
    const OWN: ByteOrder = ByteOrder::Little;
    if order.u32_at(body, 0)? != block::WIRESHARK || OWN.u32_at(body, 4)? != block::WIRESHARK_PROCESS {
        return None;
    }
    let length = OWN.u32_at(body, 8)? as usize;
    let entry = body.get(12..)?.get(..length)?;
    let mut process = Process { id: OWN.u32_at(entry, 0)?, ..Process::default() };
    for option in OptionList::new(entry.get(4..)?, OWN) {
        let text = || Some(String::from_utf8_lossy(option.value).into_owned());
        let number = || OWN.u32_at(option.value, 0);
        match option.code {
            block::PROCESS_NAME => process.name = text(),
            block::PROCESS_PATH => process.path = text(),
            block::PROCESS_COMMAND => process.command = Some(option.value.to_vec()),
            block::PROCESS_PARENT => process.parent = number(),
            block::PROCESS_USER_ID => process.user_id = number(),
            block::PROCESS_USER => process.user = text(),
            block::PROCESS_START => {
                process.start_ns = option.value.try_into().ok().map(u64::from_le_bytes);
            }
            block::OPT_COMMENT => process.comment = text(),
            _ => {}
        }
    }
    Some(process)
}

fn darwin(body: &[u8], order: ByteOrder) -> Option<Process> {
    let id = order.u32_at(body, 0)?;
    let name = OptionList::new(body.get(4..)?, order)
        .find(|option| option.code == DARWIN_NAME)
        .map(|option| String::from_utf8_lossy(option.value).into_owned());
    Some(Process { id, name, ..Process::default() })
}

#[cfg(test)]
mod tests {
    use super::super::write;
    use super::*;

    fn process(start_ns: u64, name: &str) -> Process {
        Process {
            id: 7,
            name: Some(name.to_owned()),
            path: Some("/usr/bin/curl".to_owned()),
            command: Some(b"curl\0-s\0x".to_vec()),
            parent: Some(1),
            user_id: Some(1000),
            user: Some("alice".to_owned()),
            start_ns: Some(start_ns),
            comment: Some("container=0123456789ab".to_owned()),
        }
    }

    #[test]
    fn written_descriptions_are_found_by_time() {
        let mut out = Vec::new();
        write::process(&mut out, &process(100, "sh"));
        write::process(&mut out, &process(200, "curl"));
        let mut processes = Processes::default();
        block::blocks(&out).for_each(|block| processes.add_block(&block));
        for (time, name) in [(50, "sh"), (150, "sh"), (200, "curl"), (900, "curl")] {
            let found = processes.find(7, time).expect("a description");
            assert_eq!(found.name.as_deref(), Some(name), "{time}");
        }
        assert_eq!(processes.find(7, 200), Some(&process(200, "curl")));
        assert_eq!(processes.find(8, 200), None);
    }

    #[test]
    fn container_is_the_most_specific_name() {
        for (comment, container) in [
            ("container=0123456789ab pod=8a6e cgroup=/x/y inner_pid=3", Some("0123456789ab")),
            ("pod=8a6e cgroup=/x/y", Some("8a6e")),
            ("cgroup=/system.slice/ssh.service inner_pid=3", Some("ssh.service")),
            ("cgroup=/forged container=0123456789ab", Some("forged container=0123456789ab")),
            ("inner_pid=3", None),
        ] {
            let process = Process { comment: Some(comment.to_owned()), ..Process::default() };
            assert_eq!(process.container(), container, "{comment}");
        }
        assert_eq!(Process::default().container(), None);
    }

    /// The bytes of Wireshark's own example: pid 1234, curl, started by process 1 for user 1000.
    #[test]
    fn bytes_are_those_of_the_layout() {
        let mut out = Vec::new();
        let described = Process {
            id: 1234,
            name: Some("curl".to_owned()),
            parent: Some(1),
            user_id: Some(1000),
            ..Process::default()
        };
        write::process(&mut out, &described);
        let words: Vec<u32> =
            out.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
        let curl = u32::from_le_bytes(*b"curl");
        let option = |code: u32, length: u32| length << 16 | code;
        let expected = [0xbad, 56, 32622, 3, 32, 1234, option(2, 4), curl, option(5, 4), 1, option(6, 4), 1000, 0, 56];
        assert_eq!(words, expected);
    }

    #[test]
    fn darwins_processes_are_named_by_their_order() {
        let mut body = 99u32.to_le_bytes().to_vec();
        body.extend([2, 0, 3, 0]);
        body.extend(b"ssh\0");
        body.extend([0; 4]);
        let mut processes = Processes::default();
        processes.add(DARWIN_PROCESS, &body, ByteOrder::Little);
        let options = PacketOptions { darwin_process: Some(0), ..PacketOptions::default() };
        let found = processes.of_packet(&options, 0).expect("a process");
        assert_eq!((found.id, found.name), (99, Some("ssh")));
    }

    #[test]
    fn comments_name_processes_without_a_description() {
        let mut out = Vec::new();
        write::process(&mut out, &process(100, "sh"));
        let mut processes = Processes::default();
        block::blocks(&out).for_each(|block| processes.add_block(&block));
        let named = |id: Option<u32>, comment: &'static str| {
            let options = PacketOptions {
                process: id.map(|id| PacketProcess { id, thread: 0 }),
                comments: vec!["drop=NO_SOCKET".into(), comment.into()],
                ..PacketOptions::default()
            };
            let found = processes.of_packet(&options, 200)?;
            Some((found.id, found.name?.to_owned()))
        };
        let is = |id, name: &str| Some((id, name.to_owned()));
        assert_eq!(named(Some(9), "process=a[1][9]"), is(9, "a[1]"));
        assert_eq!(named(None, "process=curl[9]"), is(9, "curl"));
        let dropped = "drop=SOCKET_RCVBUFF process=a_b[9] rcvbuf=4096";
        assert_eq!(named(Some(9), dropped), is(9, "a_b"));
        assert_eq!(named(Some(7), "process=curl[7]"), is(7, "sh"));
        assert_eq!(named(None, "process=curl[7]"), is(7, "curl"));
        for comment in ["process=curl[8]", "process=[9]", "process=curl[9"] {
            assert_eq!(named(Some(9), comment), None, "{comment}");
        }
    }
}
