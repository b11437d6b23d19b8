//! Recordings: trawl compared with tcpdump. Both print the same file to a pipe, and filter and write it again.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Instant;

use trawl_packet::build::{Tcp, Template};
use trawl_packet::pcap;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_sys::{Error, Result};

use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, Stop, compared, unknown};
use crate::model::{Experiment, Finding};
use crate::process;
use crate::scratch::Scratch;

/// Number of different frames of the recording; they repeat at other times.
const DISTINCT_FRAMES: u32 = 5000;
/// One frame in N is a DNS query.
const QUERY_EVERY: u32 = 100;
const GAP_MICROSECONDS: u64 = 3;
const TASKS: [(&str, Option<&str>); 3] = [
    ("print to a pipe", None),
    ("rewrite, most match", Some("ip and not udp port 53")),
    ("rewrite, 1 % matches", Some("udp port 53")),
];

/// The recording of the latest case: the next one may read it too.
type Shared = Rc<RefCell<Option<Recording>>>;

struct Recording {
    file: Scratch,
    megabytes: f64,
    packets: u64,
}

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let shared = Shared::default();
    Case::each(space, "megabytes", |series, megabytes| {
        let (program, task) = series.split_once(", ").unwrap_or((series, ""));
        let task = TASKS.iter().find(|(name, _)| *name == task);
        let (Some((_, filter)), "trawl" | "tcpdump") = (task, program) else {
            return Err(unknown(
                series,
                "trawl and tcpdump, each with: print to a pipe; rewrite, most match; rewrite, 1 % matches",
            ));
        };
        let (program, shared) = (program.to_owned(), Rc::clone(&shared));
        Ok(move |bench: &Bench| {
            let mut shared = shared.borrow_mut();
            if shared.as_ref().is_none_or(|one| one.megabytes != megabytes) {
                *shared = Some(Recording::write(&bench.scratch, megabytes)?);
            }
            match &*shared {
                Some(recording) => measure(bench, recording, &program, *filter),
                None => Err(Stop::Failed("the recording is missing".to_owned())),
            }
        })
    })
}

pub fn judge(experiment: &Experiment) -> Finding {
    let names = TASKS.map(|(task, _)| [format!("trawl, {task}"), format!("tcpdump, {task}")]);
    let pairs = names.each_ref().map(|[a, b]| (a.as_str(), b.as_str()));
    let mut finding = compared(experiment, &pairs, "mpps", Comparison::Faster);
    for (ours, theirs) in &pairs[1..] {
        let made = |series: &str| {
            let mut runs = experiment.runs.iter();
            let run = runs.find(|run| run.series == series)?;
            run.values.get("made").copied()
        };
        if let (Some(ours), Some(theirs)) = (made(ours), made(theirs))
            && ours != theirs
        {
            let text = format!(" Their files differ: trawl wrote {ours} bytes, tcpdump {theirs}.");
            finding.sentence.push_str(&text);
        }
    }
    finding
}

impl Recording {
    /// Writes frames of many lengths, of TCP and UDP, and DNS queries among them.
    fn write(directory: &Path, megabytes: f64) -> Result<Self> {
        let file = Scratch::new(directory, "recording.pcap")?;
        let fail = |e| Error::os(format!("cannot write {}", file.path().display()), e);
        let frames: Vec<Vec<u8>> = (0..DISTINCT_FRAMES).map(frame).collect();
        let mut out = BufWriter::with_capacity(1 << 20, File::create(file.path()).map_err(fail)?);
        let mut record = Vec::new();
        pcap::file_header(&mut record, LINKTYPE_ETHERNET, 0);
        let (mut packets, mut bytes) = (0, 0);
        for (number, frame) in frames.iter().cycle().enumerate() {
            let time = 1_700_000_000_000_000_000 + number as u64 * GAP_MICROSECONDS * 1000;
            pcap::record(&mut record, time, frame, frame.len() as u32);
            out.write_all(&record).map_err(fail)?;
            bytes += record.len();
            packets += 1;
            record.clear();
            if bytes as f64 >= megabytes * 1e6 {
                break;
            }
        }
        out.flush().map_err(fail)?;
        Ok(Self { file, megabytes, packets })
    }
}

/// Returns one of the frames of a recording: of many lengths, of TCP and UDP, and DNS queries among them.
pub(super) fn frame(number: u32) -> Vec<u8> {
    let [_, _, high, low] = number.to_be_bytes();
    let template = Template::new().ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let ip = template.ipv4([10, 0, high, low], [10, 1, 0, 1]);
    if number.is_multiple_of(QUERY_EVERY) {
        let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05trawl\x04test\x00\x00\x01\x00\x01";
        return ip.udp(number as u16, 53).payload(query.to_vec()).build();
    }
    let payload = vec![number as u8; [10, 500, 1400][number as usize % 3]];
    match number % 2 {
        0 => ip.udp(number as u16, 4000).payload(payload).build(),
        _ => {
            let tcp = Tcp { src: number as u16, dst: 443, ..Tcp::default() };
            ip.tcp(tcp).payload(payload).build()
        }
    }
}

fn measure(bench: &Bench, recording: &Recording, program: &str, filter: Option<&str>) -> Outcome {
    let mut command = match program {
        "trawl" => bench.command(&["read"]),
        // tcpdump stays root, because it could not write to most directories otherwise.
        peer => {
            let mut tcpdump = process::command(bench.peers.path(peer)?);
            tcpdump.args(["-n", "-Z", "root"]);
            tcpdump
        }
    };
    command.arg("-r").arg(recording.file.path());
    let written = match filter {
        Some(_) => Some(Scratch::new(&bench.scratch, "rewritten.pcap")?),
        None => None,
    };
    if let Some(written) = &written {
        command.arg("-w").arg(written.path());
    }
    command.args(filter);
    let fail = |e| Error::os(format!("cannot run {program}"), e);
    let began = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(fail)?;
    let mut lines = 0;
    if let Some(mut pipe) = child.stdout.take() {
        let mut buffer = vec![0; 1 << 20];
        loop {
            match pipe.read(&mut buffer).map_err(fail)? {
                0 => break,
                count => lines += buffer[..count].iter().filter(|byte| **byte == b'\n').count(),
            }
        }
    }
    let status = child.wait().map_err(fail)?;
    let seconds = began.elapsed().as_secs_f64();
    if !status.success() {
        return Err(Error::failed(format!("{program} ended"), status).into());
    }
    let size = |path: &Path| path.metadata().map(|about| about.len()).map_err(fail);
    let made = match &written {
        Some(written) => size(written.path())?,
        None => lines as u64,
    };
    let read = size(recording.file.path())?;
    Ok(Measured {
        values: [
            ("mpps", recording.packets as f64 / seconds / 1e6),
            ("mbytes_per_second", read as f64 / seconds / 1e6),
            ("made", made as f64),
        ]
        .into(),
        seconds,
        ..Measured::default()
    })
}
