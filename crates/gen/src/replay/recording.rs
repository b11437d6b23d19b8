//! One capture file, read packet by packet, with what it holds that cannot be sent.

use std::fs::File;
use std::path::{Path, PathBuf};

use trawl_packet::link_type;
use trawl_packet::read::CaptureReader;
use trawl_sys::{Error, Result};

use super::ahead::Ahead;

const ETHERNET: u16 = 1;

/// The packet that is next.
#[derive(Debug, Default)]
pub struct Packet {
    pub time: u64,
    pub bytes: Vec<u8>,
    /// The recording kept less of it than there was.
    pub cut: bool,
}

#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    reader: Option<CaptureReader<Ahead>>,
    next: Packet,
    /// How many were read.
    count: u64,
    /// Why nothing more comes, where that is not the file's end.
    problem: Option<String>,
}

impl Recording {
    /// Opens the file and reads its first packet. A file that cannot be opened is an error; one that has nothing to
    /// send is at its end, with a problem.
    pub fn open(path: &Path) -> Result<Self> {
        let what = || format!("cannot replay {}", path.display());
        let file = File::open(path).map_err(|e| Error::os(what(), e))?;
        let about = file.metadata().map_err(|e| Error::os(what(), e))?;
        if !about.is_file() {
            let why = "it is not a regular file, and a recording is opened more than once";
            return Err(Error::failed(what(), why));
        }
        let mut recording = Self {
            path: path.to_owned(),
            reader: None,
            next: Packet::default(),
            count: 0,
            problem: None,
        };
        match CaptureReader::new(Ahead::new(file)) {
            Ok(reader) => recording.reader = Some(reader),
            Err(error) => recording.end(&error.to_string()),
        }
        recording.advance();
        if recording.count == 0 && recording.problem.is_none() {
            recording.end("there is no packet in it");
        }
        Ok(recording)
    }

    /// The packet that is next; `None` at the end.
    pub fn peek(&self) -> Option<&Packet> {
        self.reader.is_some().then_some(&self.next)
    }

    /// Goes on to the packet after that.
    pub fn advance(&mut self) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        let problem = match reader.next_packet() {
            Ok(Some(packet)) if packet.link_type == ETHERNET => {
                self.count += 1;
                self.next.time = packet.timestamp_ns;
                let original_len = packet.original_len as usize;
                let stored = reader.stored().unwrap_or_default();
                self.next.cut = stored.len() < original_len;
                self.next.bytes.clear();
                self.next.bytes.extend_from_slice(stored);
                return;
            }
            Ok(Some(packet)) => format!(
                "its packets are of the link type {}, which cannot be sent: only Ethernet frames can",
                link_type::described(packet.link_type)
            ),
            Ok(None) => {
                self.reader = None;
                return;
            }
            Err(error) => error.to_string(),
        };
        self.end(&problem);
    }

    fn end(&mut self, why: &str) {
        let so_far = match self.count {
            0 => String::new(),
            1 => "after its first packet: ".to_owned(),
            count => format!("after {count} packets: "),
        };
        self.problem = Some(format!("{}: {so_far}{why}", self.path.display()));
        self.reader = None;
    }

    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}
