//! A trial: recorded packets are run one after the other, by the tested program and by the one that it is compared with.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::os::fd::AsFd;
use std::time::Duration;

use trawl_bpf::loading;
use trawl_bpf::program::{self, LoadOptions};
use trawl_bpf::test_run::{Arrival, Runner};
use trawl_packet::net::ethertype;
use trawl_packet::verdict::VerdictKind;
use trawl_sys::{Error, Result, errno, process};

use crate::arrival::ArrivalInterface;
use crate::clock::{Moment, Replaced};
use crate::compare::{self, Description, Groups, Kind, MOST_GROUPS, Members};
use crate::coverage::{Path, Probes};
use crate::digest;
use crate::fuzz;
use crate::minimise::{self, SHORTEST};
use crate::packet::{Circumstance, LONGEST_AT_TC, Recorded, Unfit};
use crate::report::{
    Difference, Example, FileReport, Fuzzing, Group, LeftOut, MapDifference, Report, Timing, VerdictCount,
};
use crate::samples::{Sample, Samples};
use crate::side::{Left, Preparation, ProbeKind, Side};
use crate::state::{FirstContents, Newcomer};
use crate::subject::Subject;
use crate::timing::{self, Stopwatch, Trace};

/// Length of a frame without FCS, which every kernel accepts.
const SHORTEST_FRAME: usize = 60;

/// Memory for packets that a sequence may be made of.
const HISTORY: usize = 512 << 20;
/// Number of differences of which an example is made.
const MOST_EXAMPLES: usize = 20;
/// Multiplier that spreads the numbers of packets (the golden ratio's fraction).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Length from which a kernel may refuse a packet for its length, and its errors then.
const SHORTEST_REFUSED: usize = 3000;
const REFUSED: [Option<i32>; 2] = [Some(errno::EINVAL), Some(errno::E2BIG)];

/// Numbers of loads that are tried for a program that is too complex with all probes.
const LOADS: [usize; 2] = [2, 4];

/// A question about a packet.
pub type PacketTest = Box<dyn Fn(&[u8]) -> bool>;

/// A difference that is accepted.
pub struct Allowed {
    /// The rule, as the user wrote it.
    pub rule: String,
    /// Names of the verdicts.
    pub before: String,
    pub after: String,
    /// Returns true for the packets that the rule is about.
    pub matches: PacketTest,
}

impl std::fmt::Debug for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allowed").field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl Allowed {
    /// Returns the verdicts of a program of this kind.
    fn verdicts(&self, kind: VerdictKind) -> Result<(u32, u32)> {
        let verdict = |name: &str| {
            let found = kind.action(name).map(|action| action as u32);
            let why = || {
                format!(
                    "'{name}' is not a verdict of {} program",
                    if kind == VerdictKind::Tc { "a tc" } else { "an XDP" }
                )
            };
            found.ok_or_else(|| {
                Error::usage(format!("cannot allow '{}'", self.rule), why())
                    .fix("--allow 'pass>drop where udp port 53'")
            })
        };
        Ok((verdict(&self.before)?, verdict(&self.after)?))
    }
}

/// Options of a trial.
#[derive(Debug, Default)]
pub struct Plan {
    pub program: Subject,
    pub against: Option<Subject>,
    /// Names of the files of packets.
    pub files: Vec<String>,
    pub first_contents: FirstContents,
    /// The interface of the current namespace that packets arrive by; `None` for the loopback interface.
    pub arrives_by: Option<ArrivalInterface>,
    /// True if programs see the real clocks instead of the packets' times.
    pub real_time: bool,
    /// The beginning of each packet's random numbers.
    pub seed: u64,
    pub allowed: Vec<Allowed>,
    pub ignores_bytes: bool,
    /// Maps whose contents are not compared.
    pub ignored_maps: Vec<String>,
    /// Smallest share of lines that the packets have to reach, in percent.
    pub min_lines: Option<f64>,
    pub measures_time: bool,
    /// Time for packets that are made of the recorded ones.
    pub fuzz: Option<Duration>,
    /// Time by which the tested program may be slower than the other one, in percent.
    pub slower: Option<f64>,
}

impl Plan {
    /// Loads a program, and brings its maps into their first state. `running` is the program that may run now, whose
    /// loader may have set it up. A program that is too complex with probes is loaded several times, each time with a
    /// part of them, or else without them.
    fn load(&self, subject: &Subject, running: Option<&Subject>, preparation: Preparation) -> Result<Side> {
        let Preparation { calls, probes } = preparation;
        let refusal = match probes {
            ProbeKind::None => return self.load_once(subject, running, calls, None),
            _ => match self.load_often(subject, running, preparation, probes.loads()) {
                Ok(side) => return Ok(side),
                Err(refusal) => refusal,
            },
        };
        let mut plain = self.load_once(subject, running, calls, None).map_err(|_| refusal)?;
        let name = &plain.tested.name;
        for loads in LOADS {
            if let Ok(mut side) = self.load_often(subject, running, preparation, loads) {
                side.notes.push(format!(
                    "the coverage of {name} is measured in {loads} loads, which run each packet: the kernel refuses it with \
                     all probes in one"
                ));
                return Ok(side);
            }
        }
        plain.notes.push(format!("the coverage of {name} is not measured: the kernel refuses it with the probes"));
        Ok(plain)
    }

    /// Loads a program a number of times, each time with an equal part of the probes.
    fn load_often(
        &self,
        subject: &Subject,
        running: Option<&Subject>,
        preparation: Preparation,
        loads: usize,
    ) -> Result<Side> {
        let mut probes = Probes::new(preparation.probes.always_use_stack(), loads)?;
        let sides = (0..loads).map(|load| {
            probes.begin_load(load);
            self.load_once(subject, running, preparation.calls, Some(&mut probes))
        });
        let mut others = sides.collect::<Result<Vec<_>>>()?;
        let mut first = others.remove(0);
        (first.probes, first.others) = (Some(probes), others);
        Ok(first)
    }

    fn load_once(
        &self,
        subject: &Subject,
        running: Option<&Subject>,
        calls: Replaced,
        probes: Option<&mut Probes>,
    ) -> Result<Side> {
        let mut notes = Vec::new();
        let mut side = Side::load(subject, calls, probes, |source| {
            let running = running.map(Subject::open).transpose()?.map(|(source, _)| source);
            let is_running = subject.is_running();
            notes = self.first_contents.set_up(Newcomer { source, is_running, running: running.as_ref() })?;
            Ok(())
        })?;
        notes.extend(self.first_contents.fill(&mut side)?);
        side.notes.extend(notes);
        side.maps.note()?;
        Ok(side)
    }
}

/// A trial that gets its packets one by one.
pub struct Trial {
    plan: Plan,
    /// The verdicts of each rule.
    rules: Vec<(u32, u32)>,
    pub(crate) after: Side,
    pub(crate) before: Option<Side>,
    pub(crate) groups: Groups,
    history: VecDeque<Recorded>,
    /// Bytes of the packets in the history.
    kept: usize,
    /// Position of the history's first packet.
    dropped: u64,
    verdicts: BTreeMap<u32, (u64, u64)>,
    files: Vec<FileReport>,
    recorded: crate::report::Recorded,
    /// Offset of the wall clock from the monotonic clock, by file.
    offsets: BTreeMap<usize, u64>,
    /// The highest queue of the packets.
    last_queue: u32,
    /// The programs at which the packets were recorded: name and tag.
    recorded_at: BTreeSet<(String, String)>,
    /// Packets of each path, if something is done with them after all packets.
    samples: Option<Samples>,
    /// Shows a line about work that lasts.
    progress: Box<dyn FnMut(&str)>,
    /// Number for the outcomes of the tested program so far.
    digest: u64,
    notes: Vec<String>,
}

impl std::fmt::Debug for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial").field("program", &self.after.tested).finish_non_exhaustive()
    }
}

/// The paths of one packet in the other program and in the tested one. The other outcomes are noted at the sides.
type Paths = (Path, Path);

impl Trial {
    /// Loads the programs and brings their maps into their first state.
    pub fn begin(plan: Plan) -> Result<Self> {
        Self::begin_with(plan, [ProbeKind::Frugal; 2])
    }

    /// Begins a trial with these probes in the tested program and in the other one.
    pub(crate) fn begin_with(plan: Plan, probes: [ProbeKind; 2]) -> Result<Self> {
        check_kernel()?;
        // The values of each CPU can be compared if all packets are run on one.
        process::stay_on_this_cpu()?;
        let calls = if plan.real_time { Replaced::Chance } else { Replaced::Clocks };
        let [after, before] = probes.map(|probes| Preparation { calls, probes });
        let before = plan.against.as_ref().map(|against| plan.load(against, None, before)).transpose()?;
        let after = plan.load(&plan.program, plan.against.as_ref(), after)?;
        if let Some(before) = before.as_ref().filter(|before| before.kind != after.kind) {
            let what = format!("cannot compare {} with {}", after.tested.name, before.tested.name);
            return Err(Error::usage(what, "one of them is an XDP program, and the other one is a tc program"));
        }
        let rules = plan.allowed.iter().map(|rule| rule.verdicts(after.kind)).collect::<Result<_>>()?;
        let files = plan.files.iter().map(|name| FileReport { name: name.clone(), ..FileReport::default() });
        Ok(Self {
            files: files.collect(),
            samples: (plan.measures_time || plan.fuzz.is_some()).then(Samples::default),
            progress: Box::new(|_| ()),
            plan,
            rules,
            after,
            before,
            groups: Groups::default(),
            history: VecDeque::new(),
            kept: 0,
            dropped: 0,
            verdicts: BTreeMap::new(),
            recorded: crate::report::Recorded::default(),
            offsets: BTreeMap::new(),
            last_queue: 0,
            recorded_at: BTreeSet::new(),
            digest: digest::BASIS,
            notes: Vec::new(),
        })
    }

    /// Sets the offset of a file's times from the monotonic clock of the host that recorded it.
    pub fn set_clock_offset(&mut self, file: usize, offset: u64) {
        self.offsets.insert(file, offset);
    }

    /// Notes a program at which packets were recorded, by its name and the tag that it has in its file.
    pub fn set_recorded_at(&mut self, name: &str, tag: &str) {
        self.recorded_at.insert((name.to_owned(), tag.to_owned()));
    }

    /// Counts a packet that cannot be run.
    pub fn leave_out(&mut self, file: usize, reason: Unfit) {
        let Some(file) = self.files.get_mut(file) else {
            return;
        };
        match file.left_out.iter_mut().find(|one| one.why == reason.reason()) {
            Some(one) => one.packets += 1,
            None => file.left_out.push(LeftOut { why: reason.reason(), packets: 1 }),
        }
    }

    /// Notes a circumstance of the recording that the result depends on.
    pub fn note(&mut self, circumstance: Circumstance) {
        let is_at_its_place = circumstance == Circumstance::BehindXdp && self.after.kind == VerdictKind::Tc;
        if !is_at_its_place {
            self.notes.push(circumstance.sentence().to_owned());
        }
    }

    /// Sets a function that shows a line about work that lasts, several times a second.
    pub fn show_progress(&mut self, progress: impl FnMut(&str) + 'static) {
        self.progress = Box::new(progress);
    }

    /// Runs a packet.
    pub fn packet(&mut self, packet: Recorded) -> Result<()> {
        self.last_queue = self.last_queue.max(packet.queue);
        if self.plan.arrives_by.as_ref().is_some_and(|interface| packet.queue >= interface.queues) {
            self.leave_out(packet.file, Unfit::NoSuchQueue);
            return Ok(());
        }
        if self.after.kind == VerdictKind::Tc && packet.bytes.len() > LONGEST_AT_TC {
            self.leave_out(packet.file, Unfit::TooLong);
            return Ok(());
        }
        let position = self.dropped + self.history.len() as u64;
        let paths = match self.run(&packet, &packet.bytes, position, true) {
            // Kernels before 5.18 accept no packet that is longer than a page.
            Err(error) if packet.bytes.len() > SHORTEST_REFUSED && REFUSED.contains(&error.errno()) => {
                self.leave_out(packet.file, Unfit::TooLong);
                return Ok(());
            }
            Err(error) if self.refuses(&packet.bytes, &error) => {
                self.leave_out(packet.file, Unfit::ShortHeader);
                return Ok(());
            }
            paths => paths?,
        };
        if let Some(samples) = &mut self.samples {
            samples.add(paths.1, position, &packet);
        }
        let after = &self.after.left;
        self.digest = digest_of(self.digest, after);
        self.verdicts.entry(after.verdict).or_default().0 += 1;
        if let Some(before) = &self.before {
            self.verdicts.entry(before.left.verdict).or_default().1 += 1;
        }
        let recorded = self.verdict_of(&packet);
        if let Some(verdict) = recorded {
            self.recorded.packets += 1;
            self.recorded.reproduced += u64::from(verdict == after.verdict);
        }
        let kind = self.kind_of(paths, recorded);
        let allowed = kind.as_ref().and_then(|kind| self.allowed(kind, &packet.bytes));
        if let Some(file) = self.files.get_mut(packet.file) {
            file.packets += 1;
            file.differing += u64::from(kind.is_some() && allowed.is_none());
        }
        if let Some(kind) = kind {
            let (before, after) = (&self.before, &self.after);
            self.groups.add(kind, allowed, position, || describe(before.as_ref(), after));
        }
        self.keep(packet);
        Ok(())
    }

    /// Keeps a packet for examples, and returns its position.
    pub(crate) fn keep(&mut self, packet: Recorded) -> u64 {
        let position = self.dropped + self.history.len() as u64;
        self.kept += packet.bytes.len();
        self.history.push_back(packet);
        while self.kept > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.kept -= oldest.bytes.len();
            self.dropped += 1;
        }
        position
    }

    pub(crate) fn seed(&self) -> u64 {
        self.plan.seed
    }

    pub(crate) fn show(&mut self, progress: &str) {
        (self.progress)(progress);
    }

    pub(crate) fn is_allowed(&self, kind: &Kind, packet: &[u8]) -> bool {
        self.allowed(kind, packet).is_some()
    }

    /// Returns the fields and lines in which the last packet's outcomes differ.
    pub(crate) fn describe(&self) -> Description {
        describe(self.before.as_ref(), &self.after)
    }

    pub(crate) fn run(&mut self, packet: &Recorded, bytes: &[u8], position: u64, counts: bool) -> Result<Paths> {
        let offset = self.offsets.get(&packet.file).copied().unwrap_or(0);
        let moment = Moment { wall: packet.time, monotonic: packet.time.wrapping_sub(offset) };
        // One packet with more or fewer random numbers does not change those of the next.
        let position = if packet.file == fuzz::FILE { u64::MAX } else { position };
        let seed = (self.plan.seed ^ position).wrapping_mul(SPREAD);
        let arrives_by = self.plan.arrives_by.as_ref();
        let arrival =
            arrives_by.map_or_else(Arrival::default, |one| Arrival { interface: one.index, queue: packet.queue });
        let mut run = |side: &mut Side| {
            side.seed(seed);
            side.run(bytes, arrival, moment)?;
            Ok::<_, Error>(side.probes.as_mut().map_or(0, |probes| probes.collect(counts)))
        };
        let before = self.before.as_mut().map(&mut run).transpose()?;
        Ok((before.unwrap_or(0), run(&mut self.after)?))
    }

    /// Returns the recorded verdict of a packet, if a program of the tested kind gave it.
    fn verdict_of(&self, packet: &Recorded) -> Option<u32> {
        packet.verdict.filter(|(kind, _)| *kind == self.after.kind).map(|(_, verdict)| verdict)
    }

    /// Returns the difference of the last packet from the other program, or else from the recorded verdict.
    pub(crate) fn kind_of(&self, paths: Paths, recorded: Option<u32>) -> Option<Kind> {
        let after = self.after.left.verdict;
        let (before, differences) = match (&self.before, recorded) {
            (Some(before), _) => {
                (before.left.verdict, compare::differences(&before.left, &self.after.left, self.plan.ignores_bytes))
            }
            (None, Some(recorded)) if recorded != after => (recorded, vec![Difference::Verdict]),
            (None, _) => return None,
        };
        (!differences.is_empty()).then_some(Kind { before, after, differences, paths })
    }

    fn allowed(&self, kind: &Kind, packet: &[u8]) -> Option<usize> {
        let mut rules = self.rules.iter().zip(&self.plan.allowed);
        rules.position(|(verdicts, rule)| *verdicts == (kind.before, kind.after) && (rule.matches)(packet))
    }

    pub(crate) fn reset(&self) -> Result<()> {
        self.after.reset()?;
        self.before.iter().try_for_each(Side::reset)
    }

    /// Ends the trial: compares the maps, and makes examples of the differences.
    pub fn finish(mut self) -> Result<Report> {
        let mut maps = self.differing_maps()?;
        let fuzzing = self.fuzz(&mut maps)?;
        let others = self.groups.others;
        let members = std::mem::take(&mut self.groups).into_sorted();
        // Large maps take long to read, and without examples and times nothing is brought back.
        if !members.is_empty() || self.plan.measures_time {
            self.forget_unchanged()?;
        }
        let mut groups = Vec::new();
        for (number, members) in members.into_iter().enumerate() {
            let example = self.example(&members, number < MOST_EXAMPLES && members.allowed.is_none())?;
            groups.push(self.group(members, example));
        }
        let mut notes = self.notes();
        if others > 0 {
            notes.push(format!("{others} packets differ in ways beyond the first {MOST_GROUPS}, and are not shown"));
        }
        let coverage = self.after.probes.as_ref().map(Probes::coverage);
        let mut missed = Vec::new();
        if let (Some(least), Some(lines)) = (self.plan.min_lines, coverage.as_ref().map(|one| one.lines)) {
            let reached = lines.percent();
            if reached < least {
                missed.push(format!("the packets reach {reached:.1} % of the lines, and --min-lines wants {least} %"));
            }
        }
        let timing = if self.plan.measures_time { Some(self.timing()?) } else { None };
        if let (Some(limit), Some(timing)) = (self.plan.slower, &timing) {
            missed.extend(timing::missed(timing, limit));
        }
        let packets = self.files.iter().map(|file| file.packets).sum();
        let mut verdicts: Vec<VerdictCount> = self
            .verdicts
            .iter()
            .map(|(verdict, (after, before))| VerdictCount {
                verdict: name_of(self.after.kind, *verdict),
                packets: *after,
                against: self.before.as_ref().map(|_| *before),
            })
            .collect();
        verdicts.sort_by_key(|one| std::cmp::Reverse(one.packets));
        Ok(Report {
            program: self.after.tested,
            against: self.before.map(|side| side.tested),
            files: self.files,
            packets,
            outcomes: format!("{:016x}", self.digest),
            verdicts,
            recorded: (self.recorded.packets > 0).then_some(self.recorded),
            groups,
            maps,
            coverage,
            timing,
            fuzzing,
            notes,
            missed,
        })
    }

    /// Returns the maps whose present contents differ from the other program's.
    pub(crate) fn differing_maps(&self) -> Result<Vec<MapDifference>> {
        let before = self.before.as_ref();
        before.map_or(Ok(Vec::new()), |before| self.after.maps.compare(&before.maps, &self.plan.ignored_maps))
    }

    /// Forgets the first contents of maps that no packet has changed, so that they are not brought back.
    pub(crate) fn forget_unchanged(&mut self) -> Result<()> {
        self.after.forget_unchanged()?;
        self.before.as_mut().map_or(Ok(()), Side::forget_unchanged)
    }

    /// Runs packets that are made of the recorded ones, if requested. Adds maps that differ after them.
    fn fuzz(&mut self, maps: &mut Vec<MapDifference>) -> Result<Option<Fuzzing>> {
        let Some(time) = self.plan.fuzz else {
            return Ok(None);
        };
        let samples = self.samples.take().unwrap_or_default();
        if let Some(offset) = self.offsets.values().next().copied() {
            self.offsets.insert(fuzz::FILE, offset);
        }
        let fuzzing = fuzz::run(self, &samples, time, maps)?;
        self.samples = Some(samples);
        Ok(Some(fuzzing))
    }

    /// Times both programs without probes, on packets of each path.
    fn timing(&mut self) -> Result<Timing> {
        let preparation = Preparation { calls: Replaced::Needed, probes: ProbeKind::None };
        let Plan { program, against, .. } = &self.plan;
        let subjects = [(program, against.as_ref()); 2].into_iter().chain(against.iter().map(|one| (one, None)));
        let sides = subjects.map(|(subject, running)| self.plan.load(subject, running, preparation));
        let stopwatch = Stopwatch::new(self.after.kind, sides.collect::<Result<_>>()?)?;
        let samples = self.samples.take().unwrap_or_default();
        let mut progress = std::mem::replace(&mut self.progress, Box::new(|_| ()));
        stopwatch.measure(&samples, |sample| self.trace(sample), &mut progress)
    }

    /// Runs a packet from the maps' first state.
    fn trace(&mut self, sample: &Sample) -> Result<Trace> {
        self.reset()?;
        let (_, path) = self.run(&sample.packet, &sample.packet.bytes, sample.position, false)?;
        let last = self.after.probes.as_ref().and_then(|probes| probes.lines_of_path().pop());
        Ok((path, last))
    }

    fn group(&self, members: Members, example: Example) -> Group {
        let Members { kind, packets, allowed, fields, lines, .. } = members;
        Group {
            before: name_of(self.after.kind, kind.before),
            after: name_of(self.after.kind, kind.after),
            differences: kind.differences,
            fields,
            packets,
            allowed: allowed.and_then(|rule| Some(self.plan.allowed.get(rule)?.rule.clone())),
            line_before: lines.0,
            line_after: lines.1,
            example,
        }
    }

    /// Returns what the trial could not do as it was when the packets were recorded.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        let queues = u64::from(self.last_queue) + 1;
        match &self.plan.arrives_by {
            None if queues > 1 => notes.push(format!(
                "packets of all queues were run as packets of queue 0 of lo: --as IF:{queues} keeps their queues"
            )),
            Some(interface) if queues > u64::from(interface.queues) => {
                notes.push(format!("--as {}:{queues} has the queues of all packets", interface.name));
            }
            _ => {}
        }
        if let Some(interface) = self.plan.arrives_by.as_ref().filter(|interface| interface.is_renumbered) {
            notes.push(format!(
                "the packets arrive by interface number {}, since in new namespaces a tunnel has the number of {}",
                interface.index, interface.name
            ));
        }
        let sides = || std::iter::once(&self.after).chain(&self.before);
        let is_tested = |tag: &String| sides().any(|side| side.tested.tag.as_ref() == Some(tag));
        if let Some((name, tag)) = self.recorded_at.iter().next()
            && !self.recorded_at.iter().any(|(_, tag)| is_tested(tag))
        {
            notes.push(format!(
                "the packets were recorded at {name} (tag {tag}), which is none of these programs: the recorded verdicts are of another object file"
            ));
        }
        let opaque: BTreeSet<&String> = sides().flat_map(|side| &side.maps.opaque).collect();
        notes.extend(opaque.into_iter().cloned());
        notes.extend(sides().flat_map(|side| side.notes.iter().cloned()));
        let mut known = HashSet::new();
        notes.retain(|note| known.insert(note.clone()));
        notes
    }

    /// Makes an example of a group: its first packet, smaller if possible, or the sequence that it needs.
    fn example(&mut self, members: &Members, makes_smaller: bool) -> Result<Example> {
        let index = members.first.checked_sub(self.dropped).map(|index| index as usize);
        let Some((index, packet)) = index.and_then(|index| Some((index, self.history.get(index)?.clone()))) else {
            return Ok(Example {
                file: String::new(),
                number: members.first + 1,
                packets: Vec::new(),
                times: Vec::new(),
                is_confirmed: false,
            });
        };
        let mut example = Example {
            file: self.files.get(packet.file).map_or(fuzz::FILE_NAME, |file| &file.name).to_owned(),
            number: packet.number,
            packets: vec![packet.bytes.clone()],
            times: vec![packet.time],
            is_confirmed: false,
        };
        if !makes_smaller {
            return Ok(example);
        }
        let kind = &members.kind;
        if self.shows(kind, &packet, &packet.bytes, members.first, true)? {
            example.is_confirmed = true;
            // A recorded verdict is about these bytes alone.
            if self.before.is_none() {
                return Ok(example);
            }
            let quick = minimise::packet(&packet.bytes, |bytes| {
                self.shows(kind, &packet, bytes, members.first, false).unwrap_or(false)
            });
            let smallest = if self.shows(kind, &packet, &quick, members.first, true)? {
                quick
            } else {
                // The packets before it had changed the maps.
                minimise::packet(&packet.bytes, |bytes| {
                    self.shows(kind, &packet, bytes, members.first, true).unwrap_or(false)
                })
            };
            example.packets = vec![smallest];
            return Ok(example);
        }
        if self.dropped > 0 {
            return Ok(example);
        }
        let kept = minimise::sequence(index, |before| self.shows_after(kind, before, index).unwrap_or(false));
        if self.shows_after(kind, &kept, index)? {
            let packets = || kept.iter().chain([&index]).filter_map(|at| self.history.get(*at));
            example.packets = packets().map(|packet| packet.bytes.clone()).collect();
            example.times = packets().map(|packet| packet.time).collect();
            example.is_confirmed = true;
        }
        Ok(example)
    }

    /// Returns true if a packet with these bytes differs in this way.
    pub(crate) fn shows(
        &mut self,
        kind: &Kind,
        packet: &Recorded,
        bytes: &[u8],
        position: u64,
        resets: bool,
    ) -> Result<bool> {
        if resets {
            self.reset()?;
        }
        let paths = match self.run(packet, bytes, position, false) {
            Err(error) if self.refuses(bytes, &error) => return Ok(false),
            paths => paths?,
        };
        Ok(self.kind_of(paths, self.verdict_of(packet)).as_ref() == Some(kind))
    }

    /// Returns true if this is the kernel's answer to a packet whose IP header is not whole: newer ones run no tc program
    /// on it.
    pub(crate) fn refuses(&self, packet: &[u8], error: &Error) -> bool {
        let least = match packet.get(12..14) {
            Some(kind) if kind == ethertype::IPV4.to_be_bytes() => SHORTEST + 20,
            Some(kind) if kind == ethertype::IPV6.to_be_bytes() => SHORTEST + 40,
            _ => 0,
        };
        self.after.kind == VerdictKind::Tc && packet.len() < least && error.errno() == Some(errno::EINVAL)
    }

    /// Returns true if a packet of the history differs in this way after some of those before it, from the first state.
    fn shows_after(&mut self, kind: &Kind, before: &[usize], index: usize) -> Result<bool> {
        self.reset()?;
        let mut last = None;
        for at in before.iter().copied().chain([index]) {
            let Some(packet) = self.history.get(at).cloned() else {
                return Ok(false);
            };
            let paths = self.run(&packet, &packet.bytes, at as u64, false)?;
            last = self.kind_of(paths, self.verdict_of(&packet));
        }
        Ok(last.is_some_and(|found| found.is_like(kind)))
    }
}

/// Refuses a kernel whose test runs take no context: the length of a packet's metadata would not be known.
fn check_kernel() -> Result<()> {
    let failed = |error| Error::os("cannot test programs on packets", error);
    let program = loading::load(&program::returning(timing::PASS), &LoadOptions::new("trawl_trial", program::XDP))?;
    match Runner::default().xdp(program.as_fd(), &[0; SHORTEST_FRAME], Arrival::default()) {
        Err(error) if error.raw_os_error() == Some(errno::EINVAL) => Err(Error::failed(
            "cannot test programs on packets",
            "test runs of this kernel take no context, which they do since Linux 5.14",
        )
        .fix("run the test on Linux 5.15 or newer")),
        result => result.map(drop).map_err(failed),
    }
}

/// Returns the fields and lines in which the last packet's outcomes differ.
fn describe(before: Option<&Side>, after: &Side) -> Description {
    let lines = |side: &Side| side.probes.as_ref().map(Probes::lines_of_path).unwrap_or_default();
    match before {
        Some(before) if before.left.leaves() && after.left.leaves() => {
            (compare::fields(&before.left, &after.left), compare::parting(&lines(before), &lines(after)))
        }
        Some(before) => (Vec::new(), compare::parting(&lines(before), &lines(after))),
        // The last line that ran decided.
        None => (Vec::new(), (None, lines(after).pop())),
    }
}

/// Adds an outcome to a number for those before it. Nobody gets the bytes of a packet that does not leave.
fn digest_of(digest: u64, left: &Left) -> u64 {
    let bytes: &[u8] = if left.leaves() { &left.bytes } else { &[] };
    let key = left.target.as_ref().map_or(0, |target| target.key);
    let numbers = [left.verdict.into(), left.metadata.into(), key, bytes.len() as u64];
    let (words, rest) = bytes.as_chunks();
    let mut last = [0; size_of::<u64>()];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain(std::iter::once(&last)).map(|word| u64::from_le_bytes(*word));
    numbers.into_iter().chain(words).fold(digest, digest::add)
}

pub(crate) fn name_of(kind: VerdictKind, verdict: u32) -> String {
    kind.name(verdict.into()).map_or_else(|| verdict.to_string(), str::to_owned)
}
