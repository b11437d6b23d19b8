//! The experiments by name: a declarative file and measuring code each. A new one is a file in `experiments/`, an entry
//! here, and a [`Measure`](super::Measure) if none of the existing ones fits.

use trawl_sys::{Error, Result};

use super::Measure;
use super::balance::Balance;
use super::capture::Capture;
use super::ddos::Ddos;
use super::definition::Definition;
use super::demands::Demand;
use super::disk::Disk;
use super::drops::Drops;
use super::generators::Generators;
use super::guard::Rules;
use super::pdump::Pdump;
use super::programs::Programs;
use super::read::Recordings;
use super::rfc2544::Rfc2544;
use super::store::Stored;

pub struct Entry {
    pub name: &'static str,
    text: &'static str,
    pub measure: &'static dyn Measure,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! entry {
    ($name:literal, $measure:expr) => {
        Entry {
            name: $name,
            text: include_str!(concat!("experiments/", $name, ".toml")),
            measure: &$measure,
        }
    };
}

/// All experiments, in the order of docs/STUDIES.md.
pub static ALL: &[Entry] = &[
    entry!("capture-bandwidth", Capture::Bandwidth),
    entry!("capture-size", Capture::Size),
    entry!("capture-buffers", Capture::Buffers),
    entry!("capture-filtered", Capture::Filtered),
    entry!("capture-disk", Disk),
    entry!("drop-cores", Programs::Cores),
    entry!("drop-cpu", Programs::CpuUse),
    entry!("forward", Programs::Cores),
    entry!("route", Programs::Route),
    entry!("ddos", Ddos),
    entry!("load-balance", Balance::Rate),
    entry!("load-balance-moves", Balance::Moves),
    entry!("rfc2544", Rfc2544),
    entry!("mechanism-efficiency", Capture::Efficiency),
    entry!("mechanism-elapsed", Capture::Elapsed),
    entry!("xdp-actions", Programs::Threads),
    entry!("xdp-offload", Programs::Offload),
    entry!("drop-iptables", Programs::Threads),
    entry!("generate", Generators),
    entry!("dpdk-pdump", Pdump),
    entry!("timestamp-accuracy", Demand::Timestamps),
    entry!("order", Demand::Order),
    entry!("merge", Demand::Merge),
    entry!("loss", Demand::Loss),
    entry!("store-capture", Stored::Capture),
    entry!("store-index", Stored::Index),
    entry!("store-search", Stored::Search),
    entry!("xdp-programs", Programs::Beside),
    entry!("guard-rules", Rules),
    entry!("drop-reasons", Drops),
    entry!("read", Recordings),
];

impl Entry {
    pub fn definition(&self) -> Result<Definition> {
        Definition::parse(self.text)
            .map_err(|why| Error::failed(format!("experiment {}", self.name), why))
    }
}

pub fn find(name: &str) -> Result<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|entry| entry.name).collect();
        Error::usage(
            format!("experiment {name:?}"),
            format!(
                "no experiment has this name; trawl bench list shows {}",
                names.join(", ")
            ),
        )
    })
}

/// Returns the experiments of a study, by its letter.
pub fn of_study(letter: &str) -> Result<Vec<&'static str>> {
    let mut names = Vec::new();
    for entry in ALL {
        if entry.definition()?.study.eq_ignore_ascii_case(letter) {
            names.push(entry.name);
        }
    }
    if names.is_empty() {
        return Err(Error::usage(
            format!("--study {letter}"),
            "the studies are A to G",
        ));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::peers::Peers;
    use crate::study::Bench;
    use crate::study::definition::Profile;

    #[test]
    fn every_definition_is_whole_and_has_cases_in_both_profiles() {
        let bench = Bench {
            trawl: "trawl".into(),
            scratch: "/tmp".into(),
            peers: Peers::find(&BTreeMap::new()).expect("nothing is chosen"),
            hosts: None,
            sender_cpu: 0,
            capture_cpu: 1,
        };
        for entry in ALL {
            let definition = entry.definition().expect(entry.name);
            assert_eq!(definition.name, entry.name);
            assert!(
                !definition.metrics.is_empty() && !definition.setup.is_empty(),
                "{}",
                entry.name
            );
            for published in &definition.published {
                assert!(
                    definition
                        .metrics
                        .iter()
                        .any(|one| one.name == published.metric),
                    "{}",
                    entry.name
                );
            }
            for profile in [Profile::Quick, Profile::Full] {
                let space = definition
                    .space(profile, &BTreeMap::new())
                    .expect(entry.name);
                assert!(space.number("repeat").expect(entry.name) >= 1.0);
                let cases = entry.measure.cases(&space, &bench).expect(entry.name);
                assert!(!cases.is_empty(), "{}", entry.name);
            }
        }
    }

    #[test]
    fn studies_are_found_by_their_letter() {
        assert!(
            of_study("a")
                .expect("there is one")
                .contains(&"capture-bandwidth")
        );
        assert!(of_study("Z").is_err());
        assert!(find("capture-bandwith").is_err());
    }
}
