//! Fuzzing: packets like the recorded ones, of which those that reach something new are changed again.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use trawl_ebpf::{Insn, op, starts};
use trawl_packet::verdict::VerdictKind;
use trawl_sys::Result;

use crate::compare::{Kind, Members};
use crate::coverage::Path;
use crate::maps::Maps;
use crate::minimise;
use crate::mutate::{Mutator, Random};
use crate::packet::Recorded;
use crate::report::{Example, Fuzzing, MapDifference};
use crate::samples::Samples;
use crate::side::Side;
use crate::trial::Trial;

/// Position of the file of packets that fuzzing made.
pub(crate) const FILE: usize = usize::MAX;
/// Its name in examples.
pub(crate) const FILE_NAME: &str = "fuzz";

/// Number of packets that are changed further.
const MOST_PACKETS: usize = 1 << 14;
/// Number of newest packets of which every other one is made.
const NEWEST: usize = 256;
/// Numbers of paths and of kinds of differences that are remembered.
const MOST_PATHS: usize = 1 << 20;
const MOST_KINDS: usize = 1 << 13;
/// Runs after which the maps are brought back into their first state, unless that would take more than a part of the
/// time: 1 of this many parts.
const RESET_AFTER: u64 = 1 << 20;
const RESETTING: u32 = 10;
/// Runs between two looks at the clock.
const RUNS: u64 = 1 << 9;
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Number of packets of each group that are run again alone until one differs, and time for that.
const CANDIDATES: usize = 4;
const CONFIRMING: Duration = Duration::from_secs(10);
/// Number of keys of each map that get into packets, and the longest.
const MOST_KEYS: usize = 256;
const LONGEST_KEY: usize = 16;

/// The place of a kind of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// The recorded packets differ in the same way, or a rule accepts it.
    Known,
    /// A group of its own, by its position.
    Group(usize),
}

/// Packets that differ in the same way, of which none has been run alone yet.
#[derive(Debug)]
struct Candidates {
    members: Members,
    packets: Vec<(Kind, Recorded)>,
}

/// Fuzzing under way.
struct Fuzzer<'t> {
    trial: &'t mut Trial,
    mutator: Mutator,
    corpus: Vec<Recorded>,
    /// Paths of both programs.
    paths: HashSet<(Path, Path)>,
    findings: HashMap<Kind, Finding>,
    groups: Vec<Candidates>,
    result: Fuzzing,
    /// Maps that differ, though no packet does.
    maps: &'t mut Vec<MapDifference>,
    /// True if packets have differed since the maps were in their first state, so that maps may differ for this reason.
    has_differed: bool,
    /// First packet whose verdict is an error.
    faulty: Option<Recorded>,
    begun: Instant,
    resetting: Duration,
}

/// Runs changed packets for a time. Differences join the trial's groups and these maps.
pub(crate) fn run(
    trial: &mut Trial,
    samples: &Samples,
    time: Duration,
    maps: &mut Vec<MapDifference>,
) -> Result<Fuzzing> {
    let fields = std::iter::once(&trial.after).chain(&trial.before).flat_map(fields).collect();
    let mutator = Mutator { random: Random::new(trial.seed()), fields };
    let mut fuzzer = Fuzzer {
        trial,
        mutator,
        corpus: Vec::new(),
        paths: HashSet::new(),
        findings: HashMap::new(),
        groups: Vec::new(),
        result: Fuzzing::default(),
        maps,
        has_differed: false,
        faulty: None,
        begun: Instant::now(),
        resetting: Duration::ZERO,
    };
    fuzzer.begin(samples)?;
    fuzzer.fuzz(time)?;
    fuzzer.finish()
}

impl Fuzzer<'_> {
    /// Takes packets of each recorded path as the first ones.
    fn begin(&mut self, samples: &Samples) -> Result<()> {
        self.reset()?;
        for sample in samples.sorted().into_iter().flat_map(|(_, one)| &one.samples) {
            let packet = Recorded { file: FILE, number: 0, ..sample.packet.clone() };
            let paths = self.trial.run(&packet, &packet.bytes, 0, false)?;
            self.has_differed |= self.trial.kind_of(paths, None).is_some();
            if self.paths.insert(paths) {
                self.corpus.push(packet);
            }
        }
        if self.corpus.is_empty() {
            let bytes = vec![0; minimise::SHORTEST];
            self.corpus.push(Recorded { file: FILE, number: 0, time: 0, queue: 0, verdict: None, bytes });
        }
        Ok(())
    }

    fn fuzz(&mut self, time: Duration) -> Result<()> {
        let mut packet = self.corpus[0].clone();
        let mut shown = self.begun;
        while self.begun.elapsed() < time {
            for _ in 0..RUNS {
                self.make(&mut packet);
                self.packet(&packet)?;
            }
            if shown.elapsed() >= PROGRESS_EVERY {
                shown = Instant::now();
                let text = self.progress(time);
                self.trial.show(&text);
            }
        }
        self.result.seconds = self.begun.elapsed().as_secs_f64();
        self.compare_maps()
    }

    fn progress(&self, time: Duration) -> String {
        let Fuzzing { runs, new_blocks, .. } = self.result;
        let seconds = self.begun.elapsed().as_secs_f64();
        let rate = runs as f64 / seconds;
        let paths = self.paths.len();
        format!(
            "fuzzing {seconds:.0} of {:.0} s: {runs} runs, {rate:.0} a second, {new_blocks} new blocks, {paths} paths",
            time.as_secs_f64()
        )
    }

    /// Makes the next packet.
    fn make(&mut self, packet: &mut Recorded) {
        let random = &mut self.mutator.random;
        let count = self.corpus.len();
        let is_new = random.below(2) == 0;
        let parent = if is_new { count - 1 - random.below(count.min(NEWEST)) } else { random.below(count) };
        let other = random.below(count);
        packet.bytes.clone_from(&self.corpus[parent].bytes);
        packet.time = self.corpus[parent].time;
        self.mutator.change(&mut packet.bytes, &self.corpus[other].bytes);
        packet.number = self.result.runs + 1;
    }

    fn packet(&mut self, packet: &Recorded) -> Result<()> {
        self.result.runs += 1;
        if self.result.runs.is_multiple_of(RESET_AFTER) && self.resetting * RESETTING < self.begun.elapsed() {
            self.compare_maps()?;
            self.reset()?;
        }
        let paths = match self.trial.run(packet, &packet.bytes, 0, false) {
            Err(error) if self.trial.refuses(&packet.bytes, &error) => return Ok(()),
            paths => paths?,
        };
        if self.paths.len() < MOST_PATHS && self.paths.insert(paths) {
            self.result.new_blocks += self.trial.after.probes.as_mut().map_or(0, |probes| probes.count_path());
            self.keep(packet.clone());
        }
        if is_error(&self.trial.after) {
            self.result.errors += 1;
            self.faulty.get_or_insert_with(|| packet.clone());
        }
        if let Some(kind) = self.trial.kind_of(paths, None) {
            self.difference(kind, packet);
        }
        Ok(())
    }

    /// Notes maps that differ, unless a packet that differs may be the reason.
    fn compare_maps(&mut self) -> Result<()> {
        if self.has_differed {
            return Ok(());
        }
        for found in self.trial.differing_maps()? {
            if !self.maps.iter().any(|known| known.name == found.name) {
                self.maps.push(MapDifference { is_fuzzed: true, ..found });
            }
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        let begun = Instant::now();
        self.has_differed = false;
        self.trial.reset()?;
        self.resetting += begun.elapsed();
        Ok(())
    }

    fn keep(&mut self, packet: Recorded) {
        if self.corpus.len() < MOST_PACKETS {
            self.corpus.push(packet);
        } else {
            let at = self.mutator.random.below(MOST_PACKETS);
            self.corpus[at] = packet;
        }
    }

    fn difference(&mut self, kind: Kind, packet: &Recorded) {
        self.result.differing += 1;
        self.has_differed = true;
        let finding = match self.findings.get(&kind) {
            Some(known) => *known,
            None if self.findings.len() >= MOST_KINDS => Finding::Known,
            None => {
                let found = self.place(&kind, packet);
                self.findings.insert(kind, found);
                found
            }
        };
        if let Finding::Group(group) = finding {
            self.groups[group].members.packets += 1;
        }
    }

    /// Finds the group of a kind of difference. Kinds whose paths part at the same lines have one group.
    fn place(&mut self, kind: &Kind, packet: &Recorded) -> Finding {
        if self.trial.is_allowed(kind, &packet.bytes) {
            return Finding::Known;
        }
        let (fields, lines) = self.trial.describe();
        let is_alike = |other: &Members| other.kind.is_like(kind) && other.lines == lines;
        if self.trial.groups.iter().any(is_alike) {
            return Finding::Known;
        }
        let packet = || (kind.clone(), packet.clone());
        let known = self.groups.iter().position(|group| is_alike(&group.members));
        let Some(group) = known else {
            let members = Members { kind: kind.clone(), packets: 0, first: 0, allowed: None, fields, lines };
            self.groups.push(Candidates { members, packets: vec![packet()] });
            return Finding::Group(self.groups.len() - 1);
        };
        if self.groups[group].packets.len() < CANDIDATES {
            self.groups[group].packets.push(packet());
        }
        Finding::Group(group)
    }

    fn finish(mut self) -> Result<Fuzzing> {
        self.result.corpus = self.corpus.len() as u64;
        self.result.paths = self.paths.len() as u64;
        if let Some(packet) = self.faulty.take() {
            self.result.error_example = Some(self.smallest_error(&packet)?);
        }
        self.trial.forget_unchanged()?;
        let begun = Instant::now();
        for Candidates { members, packets } in std::mem::take(&mut self.groups) {
            let mut confirmed = None;
            for (kind, packet) in packets {
                if begun.elapsed() < CONFIRMING && self.trial.shows(&kind, &packet, &packet.bytes, 0, true)? {
                    confirmed = Some((kind, packet));
                    break;
                }
            }
            match confirmed {
                Some((kind, packet)) => {
                    let first = self.trial.keep(packet);
                    self.trial.groups.push(Members { kind, first, ..members });
                }
                None => self.result.unconfirmed += members.packets,
            }
        }
        Ok(self.result)
    }

    fn smallest_error(&mut self, packet: &Recorded) -> Result<Example> {
        let trial = &mut self.trial;
        let mut shows = |bytes: &[u8]| trial.run(packet, bytes, 0, false).is_ok() && is_error(&trial.after);
        let smallest = minimise::packet(&packet.bytes, &mut shows);
        self.trial.reset()?;
        self.trial.run(packet, &smallest, 0, false)?;
        Ok(Example {
            file: FILE_NAME.to_owned(),
            number: packet.number,
            packets: vec![smallest],
            times: vec![packet.time],
            is_confirmed: is_error(&self.trial.after),
        })
    }
}

/// Returns true for `XDP_ABORTED`, with which programs report errors of their own, and for numbers that are no verdict.
fn is_error(side: &Side) -> bool {
    match side.kind {
        VerdictKind::Xdp => !matches!(side.left.verdict, 1..=4),
        VerdictKind::Tc => side.kind.name(side.left.verdict.into()).is_none(),
    }
}

/// Returns byte strings that a program compares with parts of packets.
fn fields(side: &Side) -> Vec<Vec<u8>> {
    let constants = side.constants.iter().flat_map(|constant| forms(*constant));
    let mut fields: Vec<Vec<u8>> = constants.chain(keys(&side.maps)).collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

/// Returns the bytes of a constant in both orders, in as few bytes as it needs and in two.
fn forms(constant: i32) -> Vec<Vec<u8>> {
    let (little, big) = (constant.to_le_bytes(), constant.to_be_bytes());
    match constant {
        0..=0xff => vec![little[..1].to_vec(), little[..2].to_vec(), big[2..].to_vec()],
        0x100..=0xffff => vec![little[..2].to_vec(), big[2..].to_vec()],
        _ => vec![little.to_vec(), big.to_vec()],
    }
}

/// Returns the keys of hash tables and tries, whole and in parts: a key may be made of an address, a port and more.
fn keys(maps: &Maps) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    for key in maps.keys(MOST_KEYS) {
        let sizes = [2, 4, LONGEST_KEY].into_iter().filter(|size| *size < key.len());
        parts.extend(sizes.flat_map(|size| key.chunks_exact(size).map(<[u8]>::to_vec)));
        if key.len() <= LONGEST_KEY {
            parts.push(key);
        }
    }
    parts.retain(|part| part.iter().any(|byte| *byte != 0));
    parts
}

/// Returns the constants with which a program compares.
pub(crate) fn constants(program: &[Insn]) -> impl Iterator<Item = i32> {
    starts(program).map(|at| program[at]).filter(|one| is_comparison(one.code)).map(|one| one.imm)
}

/// Returns true for a jump that depends on a constant.
fn is_comparison(code: u8) -> bool {
    let (class, condition) = (code & 0x07, code & 0xf0);
    let is_jump = class == op::JMP || class == op::JMP32;
    let is_other = [op::JA, op::CALL_CODE & 0xf0, op::exit().code & 0xf0].contains(&condition);
    is_jump && !is_other && code & op::X == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_comparisons_are_found() {
        let program = [
            op::jump_if(op::JEQ, 2, 0x0608, 1),
            op::alu_imm(op::MOV, 0, 77),
            Insn::new(op::JMP | op::JEQ | op::X, 2, 3, 0, 0),
            op::exit(),
        ];
        assert_eq!(constants(&program).collect::<Vec<_>>(), [0x0608]);
    }

    #[test]
    fn constants_have_both_orders() {
        assert_eq!(forms(6), [vec![6], vec![6, 0], vec![0, 6]]);
        assert_eq!(forms(0x0608), [vec![8, 6], vec![6, 8]]);
        assert_eq!(forms(-1), [vec![0xff; 4], vec![0xff; 4]]);
    }
}
