//! Tests of XDP programs on recorded packets: `trawl xdp test` compared with bpftool's test runs, also of programs that
//! coverbee has instrumented. Packets in a second, and the number of object files that load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use trawl_bpf::object;
use trawl_packet::pcap;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_program::load::Source;
use trawl_sys::{Error, Result};

use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, Statements, Stop, compared, named, of_aims, read, unknown};
use crate::model::{Experiment, Finding};
use crate::process;
use crate::scratch::Directory;

/// Exit status of `trawl xdp test` if a program does not load.
const CANNOT_RUN: i32 = 2;
/// Seconds after which the load of an object counts as failed: the verifier's log of an instrumented program can be huge.
const PATIENCE: &str = "60";
const GAP_NANOSECONDS: u64 = 1000;

/// A private BPF file system, where all pins of a script vanish with it. Programs pin maps of libxdp's at this place.
const MOUNT: &str = "set -e; mount -t bpf bpf /sys/fs/bpf; cd /sys/fs/bpf";
/// $1 is bpftool, $2 the object.
const LOAD: &str = "\"$1\" prog load \"$2\" /sys/fs/bpf/program type xdp";
const LOAD_ALL: &str = "\"$1\" prog loadall \"$2\" /sys/fs/bpf/programs type xdp";
/// $1 is bpftool, $2 the object, $3 coverbee, $4 a directory for its files.
const INSTRUMENT: &str = "mkdir programs maps; \"$3\" load --elf \"$2\" --prog-pin-dir programs --map-pin-dir maps \
                          --block-list \"$4/blocks.json\"";
/// $5 is the directory of the packets.
const EACH: &str = "for packet in \"$5\"/*; do \"$1\" prog run pinned $program data_in \"$packet\"; done";
/// $6 is the number of repetitions.
const REPEATED: &str = "\"$1\" prog run pinned $program data_in \"$5/0\" repeat \"$6\"";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// One program with coverage.
    Alone,
    /// The same program on both sides, with coverage.
    Against,
    EachPacket,
    OnePacket,
    Instrumented,
}

const METHODS: [(&str, Method); 5] = [
    ("trawl, one program", Method::Alone),
    ("trawl, both sides", Method::Against),
    ("bpftool, a process for each packet", Method::EachPacket),
    ("bpftool, one packet repeated", Method::OnePacket),
    ("coverbee, a process for each packet", Method::Instrumented),
];

pub fn rates(space: &Space) -> Result<Vec<Case>> {
    let processes = space.number("processes")? as u64;
    Case::each(space, "packets", |series, packets| {
        let (method, object) = parts(series)?;
        let (object, packets) = (format!("{object}.o"), packets as u64);
        Ok(move |bench: &Bench| rate(bench, method, &object, packets, processes))
    })
}

/// Returns the method of a series, and the name of its object without the extension.
fn parts(series: &str) -> Result<(Method, &str)> {
    let (method, object) = series.rsplit_once(", ").ok_or_else(|| {
        let methods = METHODS.map(|(name, _)| name).join("; ");
        unknown(series, &format!("one of these, a comma, and the name of an object of xdp-tools: {methods}"))
    })?;
    Ok((named(method, &METHODS)?, object))
}

/// Compares the methods that test each packet: a repeated packet tests one.
pub fn judge_rates(experiment: &Experiment) -> Finding {
    let series = experiment.series();
    let pairs: Vec<(&str, &str)> = series
        .iter()
        .filter_map(|theirs| {
            let (_, object) = theirs.split_once(", a process for each packet, ")?;
            let ours = series.iter().find(|ours| ours.strip_prefix("trawl, one program, ") == Some(object))?;
            Some((ours.as_str(), theirs.as_str()))
        })
        .collect();
    compared(experiment, &pairs, "pps", Comparison::Faster)
}

fn rate(bench: &Bench, method: Method, object: &str, packets: u64, processes: u64) -> Outcome {
    require_this_host(bench)?;
    let object = installed()?.join(object);
    if !object.is_file() {
        return Err(Stop::NotHere(format!("{} does not exist", object.display())));
    }
    let directory = Directory::new(&bench.scratch, "packets")?;
    let (mut command, packets) = match method {
        Method::Alone | Method::Against => {
            let recording = directory.path().join("recording.pcap");
            write_recording(&recording, packets)?;
            let mut trawl = bench.command(&["xdp", "test"]);
            trawl.arg(&object).arg(recording);
            if method == Method::Against {
                trawl.arg("--against").arg(&object);
            }
            (trawl, packets)
        }
        Method::EachPacket | Method::Instrumented => {
            write_packets(directory.path(), processes)?;
            (script(bench, method, &object, directory.path(), 1)?, processes)
        }
        Method::OnePacket => {
            write_packets(directory.path(), 1)?;
            (script(bench, method, &object, directory.path(), packets)?, packets)
        }
    };
    let began = Instant::now();
    process::run(&mut command)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Measured { values: [("pps", packets as f64 / seconds)].into(), seconds, ..Measured::default() })
}

/// Returns the command that loads a program, and runs it on packets by bpftool.
fn script(bench: &Bench, method: Method, object: &Path, packets: &Path, repeat: u64) -> Result<Command, Stop> {
    let run = if method == Method::OnePacket { REPEATED } else { EACH };
    let load = match method {
        Method::Instrumented => format!("{INSTRUMENT}; program=$(echo programs/*)"),
        _ => format!("{LOAD}; program=program"),
    };
    let coverbee = match method {
        Method::Instrumented => bench.peers.path("coverbee")?,
        _ => PathBuf::new(),
    };
    let mut command = shell(&format!("{MOUNT}; {load}; {run}"));
    command.arg(bench.peers.path("bpftool")?).arg(object).arg(coverbee).arg(std::env::temp_dir());
    command.arg(packets).arg(repeat.to_string());
    Ok(command)
}

fn shell(script: &str) -> Command {
    let mut command = process::command("unshare");
    command.args(["--mount", "timeout", "--kill-after", "1"]);
    command.args([PATIENCE, "sh", "-c", script, "sh"]);
    command
}

fn write_recording(path: &Path, packets: u64) -> Result<()> {
    let mut file = Vec::new();
    pcap::file_header(&mut file, LINKTYPE_ETHERNET, 0);
    for number in 0..packets {
        let frame = read::frame(number as u32);
        let time = 1_700_000_000_000_000_000 + number * GAP_NANOSECONDS;
        pcap::record(&mut file, time, &frame, frame.len() as u32);
    }
    write(path, &file)
}

/// Writes a file for each packet, because bpftool reads the bytes of one.
fn write_packets(directory: &Path, packets: u64) -> Result<()> {
    (0..packets).try_for_each(|number| write(&directory.join(number.to_string()), &read::frame(number as u32)))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|e| Error::os(format!("cannot write {}", path.display()), e))
}

fn require_this_host(bench: &Bench) -> Result<(), Stop> {
    match bench.hosts {
        Some(_) => Err(Stop::NotHere("programs are tested on this host".to_owned())),
        None => Ok(()),
    }
}

/// Returns the directory with the objects of xdp-tools and libxdp.
fn installed() -> Result<PathBuf, Stop> {
    let architecture = format!("/usr/lib/{}-linux-gnu/bpf", std::env::consts::ARCH);
    let usual = [architecture.as_str(), "/usr/lib64/bpf", "/usr/lib/bpf", "/usr/local/lib/bpf"].map(PathBuf::from);
    let mut found = usual.into_iter().filter(|directory| directory.join("xdpfilt_alw_all.o").is_file());
    found.next().ok_or_else(|| {
        Stop::NotHere("the objects of xdp-tools are not installed: apt-get install xdp-tools".to_owned())
    })
}

// The number of objects that load.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loader {
    Trawl,
    Bpftool,
    Coverbee,
}

const LOADERS: [(&str, Loader); 3] =
    [("trawl", Loader::Trawl), ("bpftool", Loader::Bpftool), ("coverbee", Loader::Coverbee)];
const OWN: &str = "trawl's objects";
const TOOLS: &str = "objects of xdp-tools";

/// An object file, and the names of its XDP programs.
struct Object {
    file: PathBuf,
    programs: Vec<String>,
}

pub fn objects(space: &Space) -> Result<Vec<Case>> {
    Case::each(space, "packets", |series, packets| {
        let (loader, origin) = series.split_once(", ").unwrap_or((series, ""));
        let loader = named(loader, &LOADERS)?;
        let is_own = named(origin, &[(OWN, true), (TOOLS, false)])?;
        Ok(move |bench: &Bench| loads(bench, loader, is_own, packets as u64))
    })
}

pub fn judge_objects(experiment: &Experiment) -> Finding {
    let mut statements = Statements::default();
    let (_, x) = experiment.ends();
    for origin in [OWN, TOOLS] {
        let series = format!("trawl, {origin}");
        let values = ["loaded", "objects"].map(|metric| experiment.median(&series, metric, x));
        if let [Some(loaded), Some(all)] = values {
            statements.check(format!("trawl loads {loaded} of {all} {origin}"), loaded == all);
        }
    }
    of_aims(&statements, &[experiment.listed("loaded", x, " objects")])
}

fn loads(bench: &Bench, loader: Loader, is_own: bool, packets: u64) -> Outcome {
    require_this_host(bench)?;
    let directory = Directory::new(&bench.scratch, "objects")?;
    let objects = if is_own { own(directory.path())? } else { of_directory(&installed()?)? };
    let recording = directory.path().join("recording.pcap");
    write_recording(&recording, packets)?;
    let peer = match loader {
        Loader::Trawl => None,
        Loader::Bpftool => Some(bench.peers.path("bpftool")?),
        Loader::Coverbee => Some(bench.peers.path("coverbee")?),
    };
    let began = Instant::now();
    let mut loaded = 0;
    for object in &objects {
        let is_loaded = match (&peer, loader) {
            (Some(bpftool), Loader::Bpftool) => does_load(LOAD_ALL, bpftool, object, directory.path())?,
            (Some(coverbee), _) => does_load(INSTRUMENT, coverbee, object, directory.path())?,
            (None, _) => is_tested(bench, object, &recording)?,
        };
        loaded += u64::from(is_loaded);
    }
    let values = [("loaded", loaded as f64), ("objects", objects.len() as f64)];
    Ok(Measured { values: values.into(), seconds: began.elapsed().as_secs_f64(), ..Measured::default() })
}

/// Returns true if each program of the object runs on the packets. A difference from the recorded verdicts is no failure.
fn is_tested(bench: &Bench, object: &Object, recording: &Path) -> Result<bool> {
    for program in &object.programs {
        let mut command = bench.command(&["xdp", "test", "--prog", program]);
        let output = command.arg(&object.file).arg(recording).output();
        let output = output.map_err(|e| Error::os("cannot start trawl xdp test", e))?;
        if output.status.code().is_none_or(|status| status == CANNOT_RUN) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn does_load(load: &str, peer: &Path, object: &Object, directory: &Path) -> Result<bool> {
    let mut command = shell(&format!("{MOUNT}; {load}"));
    let output = command.arg(peer).arg(&object.file).arg(peer).arg(directory).output();
    let output = output.map_err(|e| Error::os(format!("cannot start {}", peer.display()), e))?;
    Ok(output.status.success())
}

/// Writes the objects of trawl's XDP programs that users load.
fn own(directory: &Path) -> Result<Vec<Object>> {
    for (name, bytes) in object::ALL.iter().filter(|(name, _)| name.starts_with("xdp_")) {
        write(&directory.join(format!("{name}.o")), bytes)?;
    }
    of_directory(directory)
}

/// Returns the objects in a directory that have XDP programs.
fn of_directory(directory: &Path) -> Result<Vec<Object>> {
    let entries = fs::read_dir(directory).map_err(|e| Error::os(format!("cannot list {}", directory.display()), e))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "o"));
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let programs = Source::read(&file)?.programs().into_iter();
        let programs: Vec<String> = programs.filter(|one| one.section.contains("xdp")).map(|one| one.name).collect();
        if !programs.is_empty() {
            objects.push(Object { file, programs });
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_have_a_method_and_an_object() {
        assert_eq!(parts("trawl, both sides, xdpfilt_alw_all").expect("valid"), (Method::Against, "xdpfilt_alw_all"));
        let series = "bpftool, a process for each packet, xsk_def_xdp_prog";
        assert_eq!(parts(series).expect("valid"), (Method::EachPacket, "xsk_def_xdp_prog"));
        assert!(parts("trawl").is_err() && parts("trawl, three sides, xdpfilt_alw_all").is_err());
    }

    #[test]
    fn own_objects_have_xdp_programs() {
        let directory = Directory::new(&std::env::temp_dir(), "objects").expect("a directory");
        let objects = own(directory.path()).expect("objects");
        let programs = |name: &str| {
            let object = objects.iter().find(|one| one.file.file_stem().is_some_and(|stem| stem == name));
            object.expect(name).programs.clone()
        };
        assert!(programs("xdp_route").contains(&"trawl_route".to_owned()), "{:?}", programs("xdp_route"));
        assert!(objects.len() >= 6);
    }

    #[test]
    fn recordings_have_all_packets() {
        let directory = Directory::new(&std::env::temp_dir(), "packets").expect("a directory");
        let recording = directory.path().join("recording.pcap");
        write_recording(&recording, 300).expect("a file");
        assert_eq!(crate::scratch::contents(&recording, None, false).expect("a recording").packets, 300);
        write_packets(directory.path(), 3).expect("files");
        assert_eq!(fs::read(directory.path().join("2")).expect("a packet"), read::frame(2));
    }
}
