//! Runs each parser of untrusted bytes over mutated seeds. The mutations are the same in each run, unless
//! TRAWL_FUZZ_SECONDS sets a time (`make fuzz`). An input that causes a panic is kept in a file, to become a seed. The
//! targets are shared with fuzz/, which uses libFuzzer.

#[path = "../../fuzz/exercise/balance_table.rs"]
mod balance_table;
#[path = "../../fuzz/exercise/capture.rs"]
mod capture;
#[path = "../../fuzz/exercise/connections.rs"]
mod connections;
#[path = "../../fuzz/exercise/expression.rs"]
mod expressions;
#[path = "../../fuzz/exercise/guard_rules.rs"]
mod guard_rules;
#[path = "../../crates/packet/tests/all/packets/mod.rs"]
mod packets;
#[path = "../../fuzz/exercise/rewrite.rs"]
mod rewrites;
#[path = "../../fuzz/exercise/template.rs"]
mod templates;

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use trawl_packet::pcapng::note::{DropNote, Note};
use trawl_spool::manifest::{Begin, End, Manifest, Pruned, Sealed};

/// Maximum length of an input. Longer inputs need more time and find no more errors.
const MAX_LEN: usize = 64 << 10;
/// Numbers at the limits of lengths and counts.
const LIMITS: [u32; 12] = [0, 1, 3, 4, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }

    /// Returns a seed with one to eight changes.
    fn changed(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(8) {
            let at = self.below(bytes.len());
            let len = self.below(16).min(bytes.len() - at.min(bytes.len()));
            match self.below(9) {
                0 => flip(&mut bytes, at, 1 << self.below(8)),
                1 => put(&mut bytes, at, &[self.below(256) as u8]),
                2 => put(&mut bytes, at, &[LIMITS[self.below(LIMITS.len())] as u8]),
                3 => put(&mut bytes, at, &(LIMITS[self.below(LIMITS.len())] as u16).to_be_bytes()),
                4 => put(&mut bytes, at, &LIMITS[self.below(LIMITS.len())].to_le_bytes()),
                5 => bytes.truncate(at),
                6 => drop(bytes.drain(at..at + len)),
                7 => {
                    let part = bytes[at..at + len].to_vec();
                    bytes.splice(at..at, part);
                }
                _ => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len());
                    let end = (from + self.below(64)).min(other.len());
                    let at = at.min(bytes.len());
                    bytes.splice(at..at, other[from..end].iter().copied());
                }
            }
        }
        bytes.truncate(MAX_LEN);
        bytes
    }
}

fn flip(bytes: &mut [u8], at: usize, bits: u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= bits;
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (byte, new) in bytes.iter_mut().skip(at).zip(value) {
        *byte = *new;
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs the fuzz target of this name over its seeds and further ones. Ordinary tests run it for about a second.
fn fuzz(target: &str, count: usize, more: Vec<Vec<u8>>, run: fn(&[u8])) {
    let mut seeds = more;
    let corpus = root().join("fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    // Runs must be reproducible, but a directory is unordered.
    files.sort();
    seeds.extend(files.iter().map(|path| std::fs::read(path).expect("a seed")));
    let time = std::env::var("TRAWL_FUZZ_SECONDS").ok();
    let time = time.map(|time| Duration::from_secs(time.parse().expect("a number of seconds")));
    let begin = Instant::now();
    let mut numbers = Numbers(17);
    if time.is_some() {
        // Each timed run differs, and prints its seed.
        let seed = std::process::id();
        eprintln!("{target}: seed {seed}");
        numbers = Numbers(seed.into());
    }
    let goes_on = |runs| time.map_or(runs < count, |time| begin.elapsed() < time);
    let mut runs = 0;
    while goes_on(runs) {
        let bytes = numbers.changed(&seeds);
        if catch_unwind(|| run(&bytes)).is_err() {
            let found = std::env::temp_dir().join(format!("trawl-fuzz-{target}"));
            std::fs::write(&found, &bytes).expect("a file");
            panic!("{target} panics at run {runs}; its input is {}", found.display());
        }
        runs += 1;
    }
    eprintln!("{target}: {runs} runs in {:.1} s", begin.elapsed().as_secs_f64());
}

/// Returns all crafted packets in the form of the printer's target, with all details.
fn crafted() -> Vec<Vec<u8>> {
    const ALL_DETAILS: u8 = 0x1c;
    let kind = |link_type| match link_type {
        101 | 107 => 1,
        276 => 2,
        0 => 3,
        _ => 0,
    };
    packets::all().into_iter().map(|case| [&[ALL_DETAILS | kind(case.link_type)], &case.bytes[..]].concat()).collect()
}

#[test]
fn printer() {
    fuzz("printer", 20_000, crafted(), capture::packet);
}

#[test]
fn capture_file() {
    fuzz("capture_file", 600, Vec::new(), capture::capture_file);
}

#[test]
fn connections() {
    fuzz("connections", 4_000, Vec::new(), connections::capture_file);
}

#[test]
fn blocks() {
    fuzz("blocks", 40_000, Vec::new(), capture::blocks);
}

#[test]
fn names() {
    fuzz("names", 40_000, Vec::new(), capture::names);
}

#[test]
fn compressed() {
    fuzz("compressed", 600, Vec::new(), capture::compressed_file);
}

#[test]
fn expression() {
    trawl_io::libpcap::compile_filters();
    fuzz("expression", 60, Vec::new(), expressions::expression);
}

/// Runs each seed of a target, cut at each length.
fn cut_anywhere(target: &str, run: fn(&[u8])) {
    let corpus = root().join("fuzz/corpus").join(target);
    for seed in std::fs::read_dir(&corpus).expect("the seeds are part of the source") {
        let bytes = std::fs::read(seed.expect("an entry").path()).expect("a seed");
        (0..=bytes.len()).for_each(|cut| run(&bytes[..cut]));
    }
}

#[test]
fn seeds_that_are_cut_are_read_or_refused() {
    cut_anywhere("guard_rules", guard_rules::rule_file);
    cut_anywhere("balance_table", balance_table::table_file);
    cut_anywhere("rewrite", rewrites::exercise);
    cut_anywhere("names", capture::names);
}

#[test]
fn guard_rules() {
    fuzz("guard_rules", 4_000, Vec::new(), guard_rules::rule_file);
}

#[test]
fn balance_table() {
    fuzz("balance_table", 4_000, Vec::new(), balance_table::table_file);
}

#[test]
fn rewrite() {
    fuzz("rewrite", 20_000, Vec::new(), rewrites::exercise);
}

#[test]
fn template() {
    fuzz("template", 2_000, Vec::new(), templates::file);
}

#[test]
fn program() {
    fuzz("program", 20_000, Vec::new(), expressions::program);
}

/// Fuzzes untrusted texts: comments of dropped packets, files of labs, records of a store, arguments of a dispatcher,
/// and stamps of received packets.
#[test]
fn documents() {
    fuzz("documents", 10_000, Vec::new(), |bytes| {
        let _ = trawl_program::chain::dispatcher::DispatcherConfig::parse(bytes);
        let _ = trawl_gen::stamp::Stamp::read(bytes);
        let _ = Manifest::from_bytes(bytes);
        let _ = Begin::from_bytes(bytes);
        let _ = End::from_bytes(bytes);
        let _ = Pruned::from_bytes(bytes);
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        if let Some(drop) = DropNote::parse(text) {
            let _ = drop.to_string();
        }
        let _ = trawl_lab::topology::Topology::parse(text);
    });
}
