//! A lab and a directory for one test, removed after the test.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::{Line, LineOptions, Pair, PairOptions, Station};
use trawl_packet::build::Template;

use crate::root_or_skip;
use crate::turn::Turn;
use crate::witness::{output, run};

/// A pair of namespaces: traffic goes from `pair.a` to `pair.b`, where it is captured.
#[derive(Debug)]
pub struct Lab {
    pub pair: Pair,
    directory: Directory,
    _turn: Turn,
}

impl Lab {
    /// Opens a lab; `None` if the test has to be skipped, which is reported.
    pub fn open() -> Option<Self> {
        Self::with(PairOptions::default())
    }

    pub fn with(options: PairOptions) -> Option<Self> {
        root_or_skip().then(|| Self::taking(Turn::shared(), options))
    }

    /// Opens a lab with the machine reserved for this test.
    pub fn alone() -> Option<Self> {
        root_or_skip().then(|| Self::taking(Turn::alone(), PairOptions::default()))
    }

    fn taking(turn: Turn, options: PairOptions) -> Self {
        let pair = Pair::new(&options).unwrap_or_else(|e| panic!("no lab for the test: {e}"));
        Self { pair, directory: Directory::new(), _turn: turn }
    }

    /// Returns the receiving interface in the syntax of `-i`.
    pub fn receiver(&self) -> String {
        place(&self.pair.b)
    }

    /// Returns the sending interface in the syntax of `-i`.
    pub fn sender(&self) -> String {
        place(&self.pair.a)
    }

    /// Returns a path in this test's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }

    /// Returns a path as text, for an argument.
    pub fn file(&self, name: &str) -> String {
        self.path(name).to_str().expect("a plain path").to_owned()
    }

    /// Returns a UDP packet from a to a port of b.
    pub fn udp(&self, port: u16) -> Vec<u8> {
        let (a, b) = (&self.pair.a, &self.pair.b);
        Template::new()
            .ethernet(a.mac, b.mac)
            .ipv4(a.ipv4.octets(), b.ipv4.octets())
            .udp(40000, port)
            .payload([0; 18])
            .build()
    }

    /// Runs a command, words separated by spaces, in the namespace of b; returns its output.
    #[track_caller]
    pub fn inside(&self, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        let enter = ["netns", "exec", &self.pair.b.name];
        run("ip", &[&enter[..], &words].concat())
    }

    /// Adds rules in the syntax of nftables' files in the namespace of b.
    #[track_caller]
    pub fn nft(&self, rules: &str) {
        let file = self.file("rules.nft");
        fs::write(&file, rules).expect("a file");
        self.inside(&format!("nft -f {file}"));
    }

    /// Sends `count` frames from a to b, in turn, and returns once the interface accepted the last.
    pub fn send(&self, frames: &[Vec<u8>], count: u64) {
        send_from(&self.pair.a, frames, count, Engine::Live, None, None);
    }

    /// Sends each frame once, by a packet socket: any length that the MTU allows.
    pub fn send_long(&self, frames: &[Vec<u8>]) {
        send_from(&self.pair.a, frames, frames.len() as u64, Engine::Packet, None, None);
    }

    /// Sends `count` frames from each of two CPUs at once, so that two queues are busy.
    pub fn send_from_two_cpus(&self, frames: &[Vec<u8>], count: u64) {
        std::thread::scope(|scope| {
            for cpu in 0..2 {
                scope.spawn(move || send_from(&self.pair.a, frames, count, Engine::Live, Some(cpu), None));
            }
        });
    }
}

/// A file system in memory, mounted for the duration of a test.
#[derive(Debug)]
pub struct Mounted {
    pub path: String,
}

impl Mounted {
    #[track_caller]
    pub fn at(lab: &Lab, kind: &str, options: &str) -> Self {
        let path = lab.file(kind);
        std::fs::create_dir(&path).expect("a directory");
        run("mount", &["-t", kind, "-o", options, "none", &path]);
        Self { path }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = output("umount", &[&self.path]);
    }
}

/// Sends out of one end of a lab; fails the test if not all frames were accepted.
pub fn send_from(
    from: &Station,
    frames: &[Vec<u8>],
    count: u64,
    engine: Engine,
    cpu: Option<usize>,
    rate: Option<u64>,
) {
    let job = Job { namespace: Some(&from.namespace), interface: &from.interface, frames, count, engine, rate, cpu };
    let sent = send(&job).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(sent.packets, count);
}

/// The directory of a test's files.
pub trait Files: fmt::Debug + Send + Sync {
    /// Returns a path in the test's own directory, as text for an argument.
    fn file(&self, name: &str) -> String;
}

impl Files for Lab {
    fn file(&self, name: &str) -> String {
        Lab::file(self, name)
    }
}

/// A line of three namespaces and a directory for one test, removed after the test.
#[derive(Debug)]
pub struct LineLab {
    pub line: Line,
    directory: Directory,
    _turn: Turn,
}

impl LineLab {
    /// Opens a line; `None` if the test has to be skipped, which is reported.
    pub fn with(options: &LineOptions) -> Option<Self> {
        root_or_skip().then(|| Self {
            line: Line::new(options).unwrap_or_else(|e| panic!("no lab for the test: {e}")),
            directory: Directory::new(),
            _turn: Turn::shared(),
        })
    }

    pub fn open() -> Option<Self> {
        Self::with(&LineOptions::default())
    }

    /// Opens a line for packets of several buffers.
    pub fn jumbo() -> Option<Self> {
        Self::with(&LineOptions { mtu: 9000, ..LineOptions::default() })
    }

    /// Sends `count` frames from a, in turn, and returns once the interface accepted the last.
    pub fn send(&self, frames: &[Vec<u8>], count: u64) {
        send_from(&self.line.a, frames, count, Engine::Live, None, None);
    }

    /// Sends each frame once, by a packet socket.
    pub fn send_packets(&self, frames: &[Vec<u8>]) {
        let count = frames.len() as u64;
        send_from(&self.line.a, frames, count, Engine::Packet, None, None);
    }
}

impl Files for LineLab {
    fn file(&self, name: &str) -> String {
        let path = self.directory.0.join(name);
        path.to_str().expect("a plain path").to_owned()
    }
}

/// Returns a station's interface in the syntax of `-i`.
pub fn place(station: &Station) -> String {
    format!("{}:{}", station.name, station.interface)
}

/// A directory for a test's files, removed after the test.
#[derive(Debug)]
pub struct Directory(PathBuf);

#[allow(clippy::new_without_default, reason = "creating it has side effects")]
impl Directory {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("trawl-tests-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("a directory for the test");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let keep = std::thread::panicking() && std::env::var_os("TRAWL_TESTS_KEEP").is_some();
        if !keep {
            let _ = fs::remove_dir_all(Path::new(&self.0));
        }
    }
}
