//! The processes that a file describes: in Wireshark's blocks, and in Darwin's.

use std::collections::HashMap;

use super::block::{self, Block, ByteOrder};
use super::options::{OptionList, PacketOptions};
use super::{PacketProcess, Process};

/// Darwin's block with a process, and its options.
const DARWIN_PROCESS: u32 = 0x8000_0001;
const DARWIN_NAME: u16 = 2;

/// The processes described so far.
#[derive(Debug, Default)]
pub struct Processes {
    by_id: HashMap<u32, Vec<Process>>,
    /// Numbers of the processes in Darwin's blocks: packets name these blocks by their order.
    darwin: Vec<u32>,
}

impl Processes {
    /// Adds the process that a block describes, if it does.
    pub fn add(&mut self, kind: u32, body: &[u8], order: ByteOrder) {
        let process = match kind {
            block::CUSTOM => wireshark(body, order),
            DARWIN_PROCESS => {
                let process = darwin(body, order);
                self.darwin
                    .extend(process.as_ref().map(|process| process.id));
                process
            }
            _ => None,
        };
        if let Some(process) = process {
            self.by_id.entry(process.id).or_default().push(process);
        }
    }

    /// Adds the process that a block of a running capture describes, if it does.
    pub fn add_block(&mut self, block: &Block<'_>) {
        self.add(block.kind, block.body, ByteOrder::Little);
    }

    /// Returns the process of a packet.
    pub fn of_packet(&self, options: &PacketOptions<'_>) -> Option<PacketProcess> {
        let by_order = || {
            let id = *self.darwin.get(options.darwin_process? as usize)?;
            Some(PacketProcess { id, thread: 0 })
        };
        options.process.or_else(by_order)
    }

    /// Returns the description of a process at a time: the last one that began before, else the first.
    pub fn find(&self, id: u32, time_ns: u64) -> Option<&Process> {
        let all = self.by_id.get(&id)?;
        let has_begun = |process: &&Process| process.start_ns.is_none_or(|start| start <= time_ns);
        let last = all
            .iter()
            .filter(has_begun)
            .max_by_key(|process| process.start_ns);
        last.or(all.first())
    }
}

fn wireshark(body: &[u8], order: ByteOrder) -> Option<Process> {
    // The contents are little-endian in files of either order.
    const OWN: ByteOrder = ByteOrder::Little;
    if order.u32_at(body, 0)? != block::WIRESHARK
        || OWN.u32_at(body, 4)? != block::WIRESHARK_PROCESS
    {
        return None;
    }
    let length = OWN.u32_at(body, 8)? as usize;
    let entry = body.get(12..)?.get(..length)?;
    let mut process = Process {
        id: OWN.u32_at(entry, 0)?,
        ..Process::default()
    };
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
    Some(Process {
        id,
        name,
        ..Process::default()
    })
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
        let words: Vec<u32> = out
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
            .collect();
        let curl = u32::from_le_bytes(*b"curl");
        let option = |code: u32, length: u32| length << 16 | code;
        let expected = [
            0xbad,
            56,
            32622,
            3,
            32,
            1234,
            option(2, 4),
            curl,
            option(5, 4),
            1,
            option(6, 4),
            1000,
            0,
            56,
        ];
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
        let options = PacketOptions {
            darwin_process: Some(0),
            ..PacketOptions::default()
        };
        let found = processes.of_packet(&options).expect("a process");
        assert_eq!(found.id, 99);
        let name = processes.find(99, 0).and_then(|one| one.name.as_deref());
        assert_eq!(name, Some("ssh"));
    }
}
