//! The result of a trial, as values: `--json` prints them, the other forms are made of them.

use serde::Serialize;

use crate::wording;

/// The result of a trial.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The program that is tested.
    pub program: Tested,
    /// The program that it is compared with.
    pub against: Option<Tested>,
    pub files: Vec<FileReport>,
    /// Number of packets that were run.
    pub packets: u64,
    /// A number for the verdicts and bytes of all packets in their order, in hexadecimal digits.
    pub outcomes: String,
    /// Packets by verdict, the most frequent first.
    pub verdicts: Vec<VerdictCount>,
    /// The verdicts in the files, compared with the tested program's.
    pub recorded: Option<Recorded>,
    /// Differences, the most frequent first.
    pub groups: Vec<Group>,
    pub maps: Vec<MapDifference>,
    pub coverage: Option<Coverage>,
    pub timing: Option<Timing>,
    pub fuzzing: Option<Fuzzing>,
    /// Circumstances that the trial could not reproduce.
    pub notes: Vec<String>,
    /// Limits that were not met, each as a sentence.
    pub missed: Vec<String>,
}

impl Report {
    /// Returns true if nothing differs but what is allowed, and no limit was missed.
    pub fn is_well(&self) -> bool {
        self.maps.is_empty() && self.missed.is_empty() && self.groups.iter().all(|group| group.allowed.is_some())
    }
}

/// One of the programs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tested {
    /// Name of its function.
    pub name: String,
    /// The file, or the interface that it runs on.
    pub source: String,
    pub instructions: usize,
    /// The kernel's tag of the program as it is in the file.
    pub tag: Option<String>,
}

/// One file of packets.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FileReport {
    pub name: String,
    /// Number of packets that were run.
    pub packets: u64,
    /// Packets that could not be run, by reason.
    pub left_out: Vec<LeftOut>,
    /// Number of packets with a difference that is not allowed.
    pub differing: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    pub why: &'static str,
    pub packets: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct VerdictCount {
    pub verdict: String,
    /// Packets with this verdict of the tested program.
    pub packets: u64,
    /// Packets with this verdict of the program that it is compared with.
    pub against: Option<u64>,
}

/// Comparison with the verdicts in the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Packets with a verdict in their file.
    pub packets: u64,
    /// Packets for which the tested program has the same verdict.
    pub reproduced: u64,
}

/// A property of a packet's outcome that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    Verdict,
    /// The bytes of the packet that leaves the program.
    Bytes,
    /// Their number.
    Length,
    Metadata,
    /// Values that a tc program sets apart from the bytes: mark, priority, class, and the words for later programs.
    Context,
    /// The target of a redirection.
    Target,
}

/// Packets that differ in the same way.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// The verdict that was expected: of the other program, or in the file.
    pub before: String,
    /// The verdict of the tested program.
    pub after: String,
    pub differences: Vec<Difference>,
    /// Fields of the packet that differ, by their offsets.
    pub fields: Vec<Field>,
    pub packets: u64,
    /// The rule of --allow that accepts the difference.
    pub allowed: Option<String>,
    /// First line that the other program alone ran.
    pub line_before: Option<SourceLine>,
    /// First line that the tested program alone ran.
    pub line_after: Option<SourceLine>,
    pub example: Example,
}

/// Bytes that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    pub offset: usize,
    pub length: usize,
}

/// The smallest packet, or the shortest sequence, with a difference.
#[derive(Clone, Debug, Serialize)]
pub struct Example {
    /// The file and the number of the packet in it, counted from 1, from which the example was made.
    pub file: String,
    pub number: u64,
    /// The packets: the last one differs, those before it bring the maps into the state that it needs.
    #[serde(serialize_with = "as_hex")]
    pub packets: Vec<Vec<u8>>,
    /// Times of the packets in nanoseconds since 1970.
    pub times: Vec<u64>,
    /// True if the difference was seen again with the example alone, from the maps' first state.
    pub is_confirmed: bool,
}

fn as_hex<S: serde::Serializer>(packets: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(packets.iter().map(|bytes| wording::hex(bytes)))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceLine {
    pub file: String,
    pub line: u32,
    pub text: String,
}

/// A map whose contents differ after all packets.
#[derive(Clone, Debug, Serialize)]
pub struct MapDifference {
    pub name: String,
    /// True if packets of fuzzing alone show it.
    pub is_fuzzed: bool,
    /// Entries that only one of the programs has, or with other values.
    pub entries: u64,
    /// A key that differs.
    pub key: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// A number of parts that were reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    pub reached: u64,
    pub total: u64,
}

impl Share {
    /// Returns the share in percent; all of nothing is 100.
    pub fn percent(self) -> f64 {
        if self.total == 0 { 100.0 } else { self.reached as f64 * 100.0 / self.total as f64 }
    }
}

/// The parts of the tested program that the packets reached. Parts that the verifier removed do not count.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Coverage {
    pub blocks: Share,
    /// Ways from the end of a block to the beginning of another.
    pub edges: Share,
    pub lines: Share,
    pub functions: Vec<FunctionCoverage>,
    pub files: Vec<SourceCoverage>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FunctionCoverage {
    pub name: String,
    /// The source file, and the function's first line, if they are known.
    pub file: Option<String>,
    pub line: Option<u32>,
    /// Packets that entered it.
    pub packets: u64,
    pub blocks: Share,
    pub edges: Share,
}

/// A source file.
#[derive(Clone, Debug, Serialize)]
pub struct SourceCoverage {
    pub name: String,
    /// The lines with instructions, in their order, from 1: instructions that belong to no line are left out.
    pub lines: Vec<LineCoverage>,
}

#[derive(Clone, Debug, Serialize)]
pub struct LineCoverage {
    pub line: u32,
    pub text: String,
    /// Packets that reached any part of the line.
    pub packets: u64,
    /// Blocks that begin or lie in the line.
    pub blocks: Share,
    /// Its conditional jumps.
    pub branches: Vec<BranchCoverage>,
}

impl LineCoverage {
    /// Returns the ways of its conditional jumps.
    pub fn ways(&self) -> Share {
        let ways = || self.branches.iter().flat_map(BranchCoverage::ways);
        let reached = ways().filter(|(_, packets)| *packets > 0).count() as u64;
        Share { reached, total: ways().count() as u64 }
    }
}

/// A conditional jump: packets that reached its block, and packets that took each of its ways. The verifier removes a way
/// that is never taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BranchCoverage {
    pub packets: u64,
    pub taken: Option<u64>,
    pub not_taken: Option<u64>,
}

impl BranchCoverage {
    /// Returns the packets of its ways, each with its position: the jump's way is 0, the other one is 1.
    pub fn ways(&self) -> impl Iterator<Item = (usize, u64)> + use<> {
        let ways = [self.taken, self.not_taken].into_iter().enumerate();
        ways.filter_map(|(position, packets)| Some((position, packets?)))
    }
}

/// The times of the programs without probes and with the kernel's own clocks, from the maps' first state.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timing {
    /// Average over the timed packets, in nanoseconds.
    pub ns: f64,
    /// The same of the other program.
    pub against_ns: Option<f64>,
    /// Difference that the two averages can have by chance.
    pub noise_ns: f64,
    /// Packets of the timed paths.
    pub packets: u64,
    /// Packets of other paths: those that need another state of the maps, or are too rare.
    pub not_timed: u64,
    /// The paths, the most frequent first.
    pub paths: Vec<PathTiming>,
}

/// The times of the packets that take the same path through the tested program.
#[derive(Clone, Debug, Serialize)]
pub struct PathTiming {
    pub packets: u64,
    /// The verdict of the tested program.
    pub verdict: String,
    /// Last line of the path in the tested program.
    pub line: Option<SourceLine>,
    pub ns: f64,
    pub against_ns: Option<f64>,
    pub method: Method,
}

/// A method of timing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Median of runs that each get the recorded packet.
    #[default]
    Single,
    /// Average of runs one after the other on a packet that the programs do not change.
    Repeated,
}

/// Runs of packets that were made of the recorded ones.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Fuzzing {
    pub seconds: f64,
    pub runs: u64,
    /// Blocks of the tested program that none of the recorded packets reached.
    pub new_blocks: u64,
    /// Different paths, of both programs if there are two.
    pub paths: u64,
    /// Number of packets of which others were made at the end.
    pub corpus: u64,
    /// Runs with a difference between the programs.
    pub differing: u64,
    /// Runs of these whose difference was not seen again with the packet alone, from the maps' first state.
    pub unconfirmed: u64,
    /// Runs that ended with ABORTED or with a number that is no verdict.
    pub errors: u64,
    pub error_example: Option<Example>,
}
