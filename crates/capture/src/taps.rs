//! The taps, a file or folder each, and their table: what each sees, provides and needs. The table is the source of the
//! refusals of a capture, of `trawl taps` and of the guide's matrix.

pub mod dpdk;
pub mod drop;
pub mod facts;
pub mod hook;
pub mod packet;
pub mod pcap;
pub mod select;
pub mod tap;
pub mod tc;
mod threads;
pub mod trace;
pub mod watch;
pub mod xdp;

use trawl_plan::options::CaptureOptions;
use trawl_sys::Result;

use crate::Tap;
use crate::capture_site::CaptureSite;
use crate::event::TapReason;
use crate::taps::dpdk::Dpdk;
use crate::taps::facts::{Facts, Gives};
use crate::taps::hook::Hook;
use crate::taps::packet::Packet;
use crate::taps::pcap::Pcap;
use crate::taps::tap::SiteTaps;
use crate::taps::tc::Tc;

/// One row of the table.
struct Row {
    facts: &'static Facts,
    /// Returns the taps to attach at a site for the value of `--tap`.
    taps: fn(&CaptureSite, &CaptureOptions) -> Result<SiteTaps>,
}

const fn row(facts: &'static Facts, taps: fn(&CaptureSite, &CaptureOptions) -> Result<SiteTaps>) -> Row {
    Row { facts, taps }
}

/// All taps, in the order for display.
const ROWS: [Row; 8] = [
    row(&xdp::FACTS, select::at_xdp),
    row(&trace::FACTS, select::at_xdp),
    row(&hook::FACTS, |_, options| Ok(select::with_sent(Box::new(Hook), options))),
    row(&tc::FACTS, |_, _| one(Tc::Asked)),
    row(&packet::FACTS, |_, _| one(Packet)),
    row(&pcap::FACTS, |_, _| one(Pcap)),
    row(&dpdk::FACTS, |_, _| one(Dpdk)),
    row(&drop::FACTS, |site, options| Ok(select::of_drops(site, options))),
];

/// Returns the facts of all taps, in the order for display.
pub fn all() -> impl Iterator<Item = &'static Facts> {
    ROWS.iter().map(|row| row.facts)
}

/// Returns the taps to attach at a site, and the reason if trawl chose.
pub fn for_site(site: &CaptureSite, options: &CaptureOptions) -> Result<(SiteTaps, Option<TapReason>)> {
    // Of the two rows of `xdp`, the first one decides; `auto` has none.
    let (taps, why) = match ROWS.iter().find(|row| row.facts.choice == options.tap) {
        Some(row) => ((row.taps)(site, options)?, None),
        None => {
            let (taps, why) = select::automatic(site, options)?;
            (taps, Some(why))
        }
    };
    if let Some(tap) = taps.first() {
        tap.facts().check(options)?;
    }
    Ok((taps, why))
}

fn one(tap: impl Tap + 'static) -> Result<SiteTaps> {
    Ok(vec![Box::new(tap)])
}

/// Returns the table as Markdown, for the guide.
pub fn markdown() -> String {
    let mut text = String::from(
        "| `--tap` | sees | received | sent | entry | verdict | hardware time | needs |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mark = |has: bool| if has { "yes" } else { "no" };
    for facts in all() {
        let Gives { received, sent, entry, verdict, hardware_time, .. } = facts.gives;
        text.push_str(&format!(
            "| `{}` | {} | {} | {} | {} | {} | {} | {} |\n",
            facts.name(),
            facts.sees,
            mark(received),
            mark(sent),
            mark(entry),
            mark(verdict),
            mark(hardware_time),
            facts.needs
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_plan::TapChoice;
    use trawl_plan::options::{Memory, TimeSource};

    #[test]
    fn each_choice_but_auto_has_a_row() {
        for (.., choice) in TapChoice::ALL {
            let has_row = all().any(|facts| facts.choice == choice);
            assert_ne!(has_row, choice == TapChoice::Auto, "{choice}");
        }
    }

    /// The matrix in the docs is made from the table (`trawl taps --markdown`).
    #[test]
    fn guide_contains_the_table() {
        let guide = include_str!("../../../docs/GUIDE.md");
        assert!(guide.contains(&markdown()), "docs/GUIDE.md differs from trawl taps --markdown:\n{}", markdown());
    }

    /// Each tap has a reason of its own.
    #[test]
    fn hardware_time_is_refused_for_the_taps_own_reason() {
        let mut options = CaptureOptions::new(TapChoice::Auto, Memory::default());
        options.time = TimeSource::Hardware;
        for facts in all() {
            let refusal = facts.check(&options).err().map(|error| error.to_string());
            assert_eq!(refusal.is_some(), !facts.gives.hardware_time);
            if let Some(message) = refusal {
                let named = format!("with the {} tap", facts.name());
                assert!(message.contains(&named), "{message}");
                assert_eq!(message.contains("processor's counter"), facts.name() == "dpdk");
            }
        }
    }

    #[test]
    fn missing_requirements_are_features_of_the_tap() {
        for facts in all() {
            for missing in facts.missing() {
                assert!(
                    facts.features.iter().any(|feature| feature.name() == missing.feature)
                        || ["libpcap", trawl_io::dpdk::PROGRAM].contains(&missing.feature)
                );
                assert!(!missing.why.is_empty());
            }
        }
    }
}
