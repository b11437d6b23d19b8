//! Changes for a time: a program with hooks in the place of the one that runs while a capture lasts, and what takes a
//! change back that nobody confirmed.

use serde::Serialize;
use trawl_sys::netlink::XdpAttachment;

use crate::snapshot::{Kind, Snapshot};

/// Why a program with hooks cannot take the place of the one that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum LoanRefusal {
    NothingAttached,
    /// In the driver and on the card.
    SeveralModes {
        programs: usize,
    },
    /// A chain has no single program to be exchanged.
    Chain,
    /// Links of several namespaces may be the one that attaches it.
    SeveralLinks {
        links: usize,
    },
    /// The object file is another program than the one that runs.
    OtherProgram,
    /// It cannot be told whether it is that program.
    UnknownProgram,
    /// These maps of the program fit none of the object file's.
    MapsWithoutMatch {
        maps: Vec<String>,
    },
}

/// What the snapshot does not say of a program that is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// It has hooks for captures.
    pub hooks: bool,
    /// How many programs it jumps on to.
    pub jumps: usize,
    /// How many links may attach it.
    pub links: usize,
}

/// The program that one with hooks takes the place of; `None` where it has hooks itself.
pub fn lend(
    now: &Snapshot,
    facts: impl Fn(XdpAttachment) -> Facts,
) -> Result<Option<XdpAttachment>, LoanRefusal> {
    let only = match now.present.as_slice() {
        [] => return Err(LoanRefusal::NothingAttached),
        [only] => only,
        several => {
            let programs = several.len();
            return Err(LoanRefusal::SeveralModes { programs });
        }
    };
    let old = only.attachment();
    let Facts {
        hooks,
        jumps,
        links,
    } = facts(old);
    if matches!(only.kind, Kind::Dispatcher { .. }) || jumps > 0 {
        return Err(LoanRefusal::Chain);
    }
    match (hooks, links) {
        (true, _) => Ok(None),
        (false, 2..) => Err(LoanRefusal::SeveralLinks { links }),
        (false, _) => Ok(Some(old)),
    }
}

/// A capture changes nothing of what a program does: the same instructions, with all of its maps.
pub fn check_loan(same_program: Option<bool>, without_match: &[String]) -> Result<(), LoanRefusal> {
    match same_program {
        None => Err(LoanRefusal::UnknownProgram),
        Some(false) => Err(LoanRefusal::OtherProgram),
        Some(true) if without_match.is_empty() => Ok(()),
        Some(true) => Err(LoanRefusal::MapsWithoutMatch {
            maps: without_match.to_vec(),
        }),
    }
}

/// One step of taking a change back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackStep {
    /// Unloads a program that trawl installed since.
    Unload { program_id: u32 },
    /// Attaches a program that was there before.
    Attach { old: XdpAttachment },
}

/// From what is attached, and what trawl installed, back to what was attached before the change.
pub fn take_back(
    before: &[XdpAttachment],
    now: &[XdpAttachment],
    installed: &[u32],
) -> Vec<BackStep> {
    let was_there = |id: u32| before.iter().any(|old| old.program_id == id);
    let is_there = |id: u32| now.iter().any(|one| one.program_id == id);
    let new = installed.iter().filter(|id| !was_there(**id));
    let gone = before.iter().filter(|old| !is_there(old.program_id));
    new.map(|id| BackStep::Unload { program_id: *id })
        .chain(gone.map(|old| BackStep::Attach { old: *old }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Hold, Present};
    use trawl_sys::netlink::XdpMode::{self, Native, Offload, Skb};

    fn at(mode: XdpMode, program_id: u32) -> XdpAttachment {
        XdpAttachment { mode, program_id }
    }

    fn with(all: &[(XdpMode, Kind)]) -> Snapshot {
        let present = (7..).zip(all).map(|(program_id, (mode, kind))| Present {
            mode: *mode,
            program_id,
            hold: Hold::Netlink,
            kind: kind.clone(),
        });
        Snapshot {
            present: present.collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn one_program_by_itself_is_exchanged_for_a_time() {
        let other = Kind::Other { name: None };
        let one = with(&[(Skb, other.clone())]);
        let planned = |now: &Snapshot, hooks, jumps, links| {
            lend(now, |_| Facts {
                hooks,
                jumps,
                links,
            })
        };
        for links in [0, 1] {
            assert_eq!(planned(&one, false, 0, links), Ok(Some(at(Skb, 7))));
        }
        assert_eq!(planned(&one, true, 0, 2), Ok(None), "it has hooks");
        let refused = |now: &Snapshot, jumps, links| planned(now, false, jumps, links).unwrap_err();
        assert_eq!(refused(&with(&[]), 0, 0), LoanRefusal::NothingAttached);
        assert_eq!(refused(&one, 1, 0), LoanRefusal::Chain);
        assert_eq!(refused(&one, 0, 2), LoanRefusal::SeveralLinks { links: 2 });
        let dispatcher = Kind::Dispatcher { programs: 1 };
        let chain = with(&[(Native, dispatcher)]);
        assert_eq!(refused(&chain, 0, 0), LoanRefusal::Chain);
        let two = with(&[(Native, other.clone()), (Offload, other)]);
        let several = LoanRefusal::SeveralModes { programs: 2 };
        assert_eq!(refused(&two, 0, 0), several);
    }

    #[test]
    fn only_the_program_itself_is_lent() {
        assert_eq!(check_loan(Some(true), &[]), Ok(()));
        assert_eq!(check_loan(Some(false), &[]), Err(LoanRefusal::OtherProgram));
        assert_eq!(check_loan(None, &[]), Err(LoanRefusal::UnknownProgram));
        let maps = vec!["table (hash, id 3)".to_owned()];
        let lost = LoanRefusal::MapsWithoutMatch { maps: maps.clone() };
        assert_eq!(check_loan(Some(true), &maps), Err(lost));
    }

    #[test]
    fn what_nobody_confirmed_is_taken_back() {
        let unload = |program_id| BackStep::Unload { program_id };
        let attach = |old| BackStep::Attach { old };
        // Loaded where nothing was.
        assert_eq!(take_back(&[], &[at(Native, 8)], &[8]), [unload(8)]);
        // Replaced.
        let back = take_back(&[at(Skb, 7)], &[at(Native, 8)], &[8]);
        assert_eq!(back, [unload(8), attach(at(Skb, 7))]);
        // Unloaded.
        assert_eq!(
            take_back(&[at(Native, 7)], &[], &[]),
            [attach(at(Native, 7))]
        );
        // Added to the one that is there.
        assert_eq!(
            take_back(&[at(Native, 7)], &[at(Native, 7)], &[7, 8]),
            [unload(8)]
        );
        // Refused, or taken back already.
        assert_eq!(take_back(&[at(Native, 7)], &[at(Native, 7)], &[7]), []);
        // What another tool attached since stays, and the kernel refuses the old one then.
        let back = take_back(&[at(Native, 7)], &[at(Native, 9)], &[]);
        assert_eq!(back, [attach(at(Native, 7))]);
    }
}
