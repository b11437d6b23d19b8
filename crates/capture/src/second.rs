//! The second filter, in user space. If the kernel refuses a filter (the verifier rejects the program, or it is too
//! long), the tap is attached without it, and non-matching packets are removed and counted here.

use std::collections::{HashMap, VecDeque};

use trawl_bpf::layout::{RECORD_MAX_CAPTURED, TRACE_COPY};
use trawl_filter::expression;
use trawl_filter::select::{PacketKind, Question, SelectError, Selector};
use trawl_packet::pcapng::block::{ByteOrder, EnhancedPacket, LINKTYPE_ETHERNET, blocks, push_cut};
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::walk::headers_len;
use trawl_pipeline::report::StageReport;
use trawl_pipeline::{Blocks, Counts, Pressure, Stage, WriteOutcome, Writer};
use trawl_sys::{Error, Result};

use crate::capture_site::CaptureSite;
use crate::filter::{Compile, ethernet};
use crate::point::Point;
use crate::sampling::{Sampled, Sampling};
use crate::taps::drop::as_frame;
use trawl_plan::filter::Filter;
use trawl_plan::options::{At, CaptureOptions, SNAPLEN, TapChoice};

/// The packets to be filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// All packets: the kernel did not filter.
    All,
    /// Packets that the kernel's filter could not follow to the end, and passed.
    Unfinished,
}

#[derive(Debug)]
pub(crate) struct SecondLook {
    which: Which,
    /// Selectors by site, with the link type of its packets.
    selectors: Vec<(Selector, u16)>,
    /// Site of each interface block.
    sites: Vec<usize>,
    most: Option<u64>,
    /// Sampling of the matching packets, if the kernel cannot sample.
    sampling: Option<Sampling>,
    /// Length to which packets are cut after filtering.
    snaplen: u32,
    /// Set if packets are cut after their headers, once filtered.
    headers: bool,
    /// Decisions at entry, if both ends of programs are recorded.
    entries: Option<Entries>,
    /// By interface block, true if its packets were seen at their exit.
    exits: Vec<bool>,
    passed: u64,
    report: StageReport,
    /// Packets not handed on because of an error.
    unwritten: Counts,
}

/// Returns why a filter on recorded packets would decide differently from one in the kernel, and the alternative.
fn obstacle(options: &CaptureOptions) -> Option<(&'static str, &'static str)> {
    if options.follows() {
        return Some((
            "a packet is followed from the point at which the kernel's filter first matches it",
            "use a shorter filter, or record what matches with trawl capture, which filters in user space",
        ));
    }
    (options.filter_at == Some(At::Entry) && options.at != Some(At::Both)).then_some((
        "the record at the exit does not contain the packet as it was at the entry",
        "use --at both instead of --filter-at entry: trawl then filters both records by the entry's",
    ))
}

/// Returns true if the filter has loops at one of these sites: the kernel limits the number of turns.
fn has_loops(filter: &Filter, sites: &[CaptureSite], options: &CaptureOptions) -> Result<bool> {
    let loops = |compiler: &expression::CompilerOptions| {
        let program = filter.classic(compiler)?;
        Ok(program.has_backward_jumps())
    };
    if sites.is_empty() || options.drops.is_some() {
        return loops(&ethernet(options.snaplen));
    }
    for site in sites {
        if loops(&site.compiler_options(options.snaplen)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Decisions on packets at their entry, which apply to their exit too.
#[derive(Debug, Default)]
struct Entries {
    choices: HashMap<u64, Sampled>,
    /// Identifiers in the order of arrival.
    order: VecDeque<u64>,
}

impl Entries {
    /// Maximum number of packets. Each CPU has only a few in programs at a time; the exit of older ones was lost.
    const MOST: usize = 1 << 16;

    fn remember(&mut self, id: u64, choice: Sampled) {
        if self.choices.insert(id, choice).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > Self::MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.choices.remove(&oldest);
        }
    }
}

impl SecondLook {
    /// Creates the filter that replaces a refused one; `None` if the error has another cause. Fails if it could not
    /// decide like the kernel's filter.
    pub fn instead_of(error: &Error, sites: &[CaptureSite], options: &CaptureOptions) -> Result<Option<Self>> {
        if error.refusal().is_none() || options.filter.is_none() {
            return Ok(None);
        }
        if let Some((why, fix)) = obstacle(options) {
            return Err(Error::failed(
                "cannot use this filter here",
                format!("the kernel refuses it ({}), and {why}", error.why()),
            )
            .fix(fix));
        }
        let Some(mut look) = Self::new(Which::All, sites, options)? else {
            return Ok(None);
        };
        look.sampling = Some(Sampling::new(options));
        look.snaplen = options.snaplen;
        look.headers = options.headers;
        Ok(Some(look))
    }

    /// Creates the filter after a kernel filter that does not follow every packet to its end.
    pub fn after_kernel(sites: &[CaptureSite], options: &CaptureOptions) -> Result<Option<Self>> {
        let loops = match &options.filter {
            Some(filter) if options.tap != TapChoice::Pcap && obstacle(options).is_none() => {
                has_loops(filter, sites, options)?
            }
            _ => false,
        };
        if loops { Self::new(Which::Unfinished, sites, options) } else { Ok(None) }
    }

    /// Returns the options without the parts done in user space.
    pub fn in_kernel(&self, options: &CaptureOptions) -> CaptureOptions {
        let all = CaptureOptions {
            // Merged records are counted after this stage.
            count: options.count.filter(|_| options.merges()),
            ..options.clone()
        };
        match self.which {
            Which::Unfinished => all,
            Which::All => {
                CaptureOptions { filter: None, sample: None, rate_limit: None, snaplen: SNAPLEN, headers: false, ..all }
            }
        }
    }

    fn new(which: Which, sites: &[CaptureSite], options: &CaptureOptions) -> Result<Option<Self>> {
        let Some(filter) = &options.filter else {
            return Ok(None);
        };
        let question = match filter {
            Filter::Expression(text) => Question::Expression(text.clone()),
            Filter::Inner(text) => Question::Inner(text.clone()),
            Filter::Classic(text) => Question::Classic(text.clone()),
        };
        let compilers = match (sites, &options.drops) {
            ([], _) | (_, Some(_)) => vec![(ethernet(options.snaplen), LINKTYPE_ETHERNET)],
            (sites, None) => sites
                .iter()
                .map(|site| {
                    let compiler = site.compiler_options(options.snaplen)?;
                    Ok((compiler, site.interface.link_type))
                })
                .collect::<Result<_>>()?,
        };
        let mut selectors = Vec::new();
        for (compiler, link_type) in compilers {
            let mut selector = Selector::new(question.clone(), compiler);
            // Errors in the filter itself were already reported.
            if selector.prepare((link_type, ByteOrder::Little)).is_err() {
                return Ok(None);
            }
            selectors.push((selector, link_type));
        }
        Ok(Some(Self {
            which,
            selectors,
            sites: Vec::new(),
            most: options.record_limit(),
            sampling: None,
            snaplen: u32::MAX,
            headers: false,
            entries: (options.at == Some(At::Both)).then(Entries::default),
            exits: Vec::new(),
            passed: 0,
            report: StageReport::default(),
            unwritten: Counts::default(),
        }))
    }

    /// Sets the interface blocks, once they are known.
    pub fn begin(&mut self, points: &[Point], interfaces: usize) {
        self.sites = vec![0; interfaces];
        self.exits = vec![false; interfaces];
        for point in points {
            for interface in &point.interfaces {
                self.sites[*interface as usize] = point.site.unwrap_or_default();
                self.exits[*interface as usize] = point.hook.starts_with("xdp exit");
            }
        }
    }

    fn wants(&mut self, packet: &EnhancedPacket<'_>) -> Result<bool> {
        let interface = packet.interface_id;
        let site = self.sites.get(interface as usize).copied().unwrap_or_default();
        if self.most.is_some_and(|most| self.passed >= most) {
            self.report.beyond.add(interface, 1);
            return Ok(false);
        }
        let id = match &self.entries {
            Some(_) => PacketOptions::parse(packet.options()).packet_id,
            None => None,
        };
        let is_exit = self.exits.get(interface as usize) == Some(&true);
        let decided = (self.entries.as_ref().zip(id).filter(|_| is_exit))
            .and_then(|(entries, id)| entries.choices.get(&id).copied());
        let choice = match decided {
            Some(choice) => choice,
            None => {
                let matches = match self.selectors.get_mut(site) {
                    Some((selector, link_type)) => judge(self.which, selector, (*link_type, ByteOrder::Little), packet)
                        .map_err(|e| Error::failed("cannot use this filter", e))?,
                    None => true,
                };
                match (&mut self.sampling, matches) {
                    (Some(sampling), true) => sampling.choose_at(packet.timestamp),
                    (None, true) => Sampled::Wanted,
                    (_, false) => Sampled::NotInSample,
                }
            }
        };
        if let (Some(entries), Some(id), false) = (&mut self.entries, id, is_exit) {
            entries.remember(id, choice);
        }
        match choice {
            Sampled::Wanted => self.passed += 1,
            Sampled::NotInSample => self.report.filtered_out.add(interface, 1),
            Sampled::OverRate => self.report.over_rate.add(interface, 1),
        }
        Ok(choice == Sampled::Wanted)
    }
}

fn judge(
    which: Which,
    selector: &mut Selector,
    kind: PacketKind,
    packet: &EnhancedPacket<'_>,
) -> Result<bool, SelectError> {
    let (captured, length) = as_frame(packet);
    let captured = &*captured;
    if which == Which::Unfinished
        && length as usize <= TRACE_COPY
        && !selector.exceeds_kernel(kind, captured, length)?
    {
        return Ok(true);
    }
    let is_cut = (captured.len() as u32) < length;
    // A cut packet might have matched: it is kept.
    Ok(selector.matches(kind, captured, length)? || which == Which::Unfinished && is_cut)
}

impl SecondLook {
    /// Hands on runs of matching blocks, unchanged. An error comes with the number of bytes already decided on.
    fn push_whole(&mut self, bytes: &[u8], next: &mut dyn Writer) -> std::result::Result<Pressure, (usize, Error)> {
        let mut pressure = Pressure::Idle;
        let (mut from, mut to) = (0, 0);
        for block in blocks(bytes) {
            let end = to + block.bytes.len();
            let wanted = match block.enhanced_packet() {
                Some(packet) => self.wants(&packet).map_err(|error| (from, error))?,
                None => true,
            };
            if !wanted {
                if from < to {
                    let run = Blocks::Bytes(&bytes[from..to]);
                    pressure = next.write(run).map_err(|error| (end, error))?;
                }
                from = end;
            }
            to = end;
        }
        if from < to { next.write(Blocks::Bytes(&bytes[from..to])).map_err(|error| (to, error)) } else { Ok(pressure) }
    }

    /// Returns the maximum number of bytes that are kept of a packet.
    fn extent(&self, packet: &EnhancedPacket<'_>) -> u32 {
        if !self.headers {
            return self.snaplen;
        }
        let site = self.sites.get(packet.interface_id as usize);
        let selector = self.selectors.get(site.copied().unwrap_or_default());
        let link_type = selector.map_or(LINKTYPE_ETHERNET, |(_, link_type)| *link_type);
        let (frame, _) = as_frame(packet);
        let added = frame.len() - packet.captured.len();
        let headers = headers_len(link_type, &frame).saturating_sub(added);
        self.snaplen.min(headers as u32)
    }

    /// Hands on matching packets, cut to the snap length.
    fn push_cut(&mut self, bytes: &[u8], next: &mut dyn Writer) -> std::result::Result<Pressure, (usize, Error)> {
        let mut cut = Vec::with_capacity(bytes.len());
        for block in blocks(bytes) {
            match block.enhanced_packet() {
                Some(packet) if !self.wants(&packet).map_err(|error| (0, error))? => {}
                Some(packet) => push_cut(block.bytes, self.extent(&packet), &mut cut),
                None => cut.extend_from_slice(block.bytes),
            }
        }
        if cut.is_empty() {
            Ok(Pressure::Idle)
        } else {
            next.write(Blocks::Bytes(&cut)).map_err(|error| (bytes.len(), error))
        }
    }
}

impl Stage for SecondLook {
    fn push(&mut self, blocks: Blocks<'_>, next: &mut dyn Writer) -> Result<Pressure> {
        let bytes = blocks.bytes();
        let pushed = if self.snaplen as usize >= RECORD_MAX_CAPTURED && !self.headers {
            self.push_whole(bytes, next)
        } else {
            self.push_cut(bytes, next)
        };
        pushed.map_err(|(decided, error)| {
            self.unwritten.add_blocks(&bytes[decided..]);
            error
        })
    }

    fn account(&mut self, outcome: &mut WriteOutcome) {
        outcome.unwritten.add_all(&self.unwritten);
    }

    fn report(&mut self) -> StageReport {
        StageReport { handed_on: Some(self.passed), ..self.report.clone() }
    }
}
