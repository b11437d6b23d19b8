//! Recorded packets as the programs get them.

use std::collections::{BTreeSet, VecDeque};

use trawl_packet::pcapng::Verdict;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::verdict::VerdictKind;
use trawl_view::record::PacketView;

/// Shortest and longest packet that the kernel accepts for a test run: an Ethernet header, and all pages of a frame with
/// fragments.
const SHORTEST: usize = 14;
const LONGEST: usize = 73_152;

/// A recorded packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The position of its file.
    pub file: usize,
    /// Its number in the file, from 1.
    pub number: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
    pub queue: u32,
    /// The verdict of the program that saw it when it was recorded.
    pub verdict: Option<(VerdictKind, u32)>,
    pub bytes: Vec<u8>,
}

/// Reason why a recorded packet cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    NotEthernet,
    Cut,
    TooShort,
    TooLong,
    NoSuchQueue,
    ShortHeader,
}

/// Longest packet for a tc program, whose bytes the kernel puts into one page.
pub(crate) const LONGEST_AT_TC: usize = 3712;

impl Unfit {
    /// Returns the reason as a property of packets.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotEthernet => "without an Ethernet header",
            Self::Cut => "cut when they were recorded",
            Self::TooShort => "shorter than an Ethernet header",
            Self::ShortHeader => "without a whole IP header, for which this kernel runs no tc program",
            Self::NoSuchQueue => "of queues that the interface of --as lacks",
            Self::TooLong => "longer than the kernel accepts for a test run",
        }
    }
}

impl Recorded {
    /// Returns a packet of a file for a run, or the reason why there can be none.
    pub fn of(packet: &PacketView<'_>, file: usize, number: u64) -> Result<Self, Unfit> {
        if packet.link_type != LINKTYPE_ETHERNET {
            return Err(Unfit::NotEthernet);
        }
        if (packet.captured.len() as u64) < u64::from(packet.original_len) {
            return Err(Unfit::Cut);
        }
        match packet.captured.len() {
            ..SHORTEST => Err(Unfit::TooShort),
            SHORTEST..=LONGEST => Ok(Self {
                file,
                number,
                time: packet.timestamp_ns,
                queue: packet.queue.unwrap_or(0),
                verdict: match packet.verdict {
                    Some(Verdict::Xdp(verdict)) => Some((VerdictKind::Xdp, verdict as u32)),
                    Some(Verdict::Tc(verdict)) => Some((VerdictKind::Tc, verdict as u32)),
                    _ => None,
                },
                bytes: packet.captured.to_vec(),
            }),
            _ => Err(Unfit::TooLong),
        }
    }
}

/// Circumstance of a recording that a trial cannot undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Circumstance {
    /// The packets were recorded at the program's exit.
    AfterTheProgram,
    /// The packets were recorded behind XDP, where the tested program is not.
    BehindXdp,
}

impl Circumstance {
    /// Returns the circumstance as a sentence without a full stop, with its remedy.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::AfterTheProgram => {
                "the packets were recorded at a program's exit, with its changes: record with --at both"
            }
            Self::BehindXdp => {
                "the packets were recorded behind XDP, so packets that it dropped are missing: record with --tap xdp"
            }
        }
    }
}

const ENTRY: &str = "xdp entry";
const EXIT: &str = "xdp exit";
/// Number of packets at a program's entry that wait for their verdicts at its exit.
const MOST_WAITING: usize = 4096;

/// Turns the packets of files into packets for runs. A packet that was recorded at a program's entry and at its exit
/// becomes one: its bytes at the entry, and its verdict at the exit.
#[derive(Debug, Default)]
pub struct Intake {
    waiting: VecDeque<Waiting>,
    /// Number of packets of each file.
    numbers: Vec<u64>,
    pub circumstances: BTreeSet<Circumstance>,
}

/// A packet that waits for those before it.
#[derive(Debug)]
struct Waiting {
    packet: Result<Recorded, (usize, Unfit)>,
    /// The identifier with which its verdict comes.
    id: Option<u64>,
}

impl Intake {
    /// Takes a packet of a file.
    pub fn take(&mut self, view: &PacketView<'_>, file: usize) {
        if self.numbers.len() <= file {
            self.numbers.resize(file + 1, 0);
        }
        self.numbers[file] += 1;
        let recorded = Recorded::of(view, file, self.numbers[file]);
        let id = view.packet_id.filter(|_| view.hook == Some(ENTRY));
        match view.hook {
            Some(EXIT) => {
                let waiting = self.waiting.iter_mut().find(|one| one.id.is_some() && one.id == view.packet_id);
                if let Some(waiting) = waiting {
                    waiting.id = None;
                    if let (Ok(packet), Ok(exit)) = (&mut waiting.packet, recorded) {
                        packet.verdict = exit.verdict;
                    }
                    return;
                }
                self.circumstances.insert(Circumstance::AfterTheProgram);
            }
            Some(hook) if !hook.starts_with("xdp") && hook != "hook" => {
                self.circumstances.insert(Circumstance::BehindXdp);
            }
            _ => {}
        }
        self.waiting.push_back(Waiting { packet: recorded.map_err(|unfit| (file, unfit)), id });
    }

    /// Returns the next packet for a run, or the file and the reason for a packet that cannot be run. At the end of the
    /// files, packets no longer wait for their verdicts.
    pub fn next(&mut self, at_end: bool) -> Option<Result<Recorded, (usize, Unfit)>> {
        let first = self.waiting.front()?;
        let is_ready = first.id.is_none() || at_end || self.waiting.len() > MOST_WAITING;
        is_ready.then(|| self.waiting.pop_front())?.map(|one| one.packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(captured: &'a [u8], hook: Option<&'a str>, id: Option<u64>, verdict: Option<u64>) -> PacketView<'a> {
        PacketView {
            timestamp_ns: 7,
            link_type: LINKTYPE_ETHERNET,
            captured,
            original_len: captured.len() as u32,
            interface: None,
            direction: None,
            hook,
            verdict: verdict.map(Verdict::Xdp),
            queue: Some(3),
            packet_id: id,
            process: None,
            dropped_before: None,
            comment: None,
        }
    }

    #[test]
    fn entry_and_exit_are_one_packet() {
        let mut intake = Intake::default();
        intake.take(&view(&[1; 60], Some(ENTRY), Some(1), None), 0);
        intake.take(&view(&[2; 60], Some(ENTRY), Some(2), None), 0);
        assert_eq!(intake.next(false), None);
        intake.take(&view(&[9; 60], Some(EXIT), Some(1), Some(1)), 0);
        let first = intake.next(false).expect("its verdict is known").expect("it is fit");
        let verdict = first.verdict.map(|(_, verdict)| verdict);
        assert_eq!((first.bytes[0], verdict, first.number, first.queue), (1, Some(1), 1, 3));
        assert_eq!(intake.next(false), None);
        let last = intake.next(true).expect("the end").expect("it is fit");
        assert_eq!((last.bytes[0], last.verdict), (2, None));
        assert!(intake.circumstances.is_empty());
    }

    #[test]
    fn circumstances_are_noticed() {
        let mut intake = Intake::default();
        intake.take(&view(&[1; 60], Some(EXIT), Some(1), Some(2)), 0);
        intake.take(&view(&[1; 60], Some("tc ingress"), None, None), 0);
        assert_eq!(intake.circumstances.len(), 2);
    }

    #[test]
    fn packets_that_cannot_be_run_have_a_reason() {
        let mut intake = Intake::default();
        let cut = PacketView { original_len: 61, ..view(&[1; 60], None, None, None) };
        let other = PacketView { link_type: 0, ..view(&[1; 60], None, None, None) };
        for view in [cut, other, view(&[1; 13], None, None, None)] {
            intake.take(&view, 0);
        }
        let reasons: Vec<_> = std::iter::from_fn(|| intake.next(true)).map(|one| one.expect_err("unfit").1).collect();
        assert_eq!(reasons, [Unfit::Cut, Unfit::NotEthernet, Unfit::TooShort]);
    }
}
