//! The experiments by name: a declarative file and measuring code each. A new one is a file in `experiments/` and an
//! entry here, with functions of its own if none of the existing ones fits.

use trawl_sys::{Error, Result};

use super::definition::{Definition, Space};
use super::{
    Case, balance, capture, complete, ddos, demands, disk, drops, frames, generators, guard, idle, owners, pdump,
    program_tests, programs, read, rfc2544, slow, store,
};
use crate::model::{Experiment, Finding};

/// An experiment.
pub struct Entry {
    pub name: &'static str,
    text: &'static str,
    /// Returns what is measured.
    pub cases: fn(&Space) -> Result<Vec<Case>>,
    /// Compares the results with the study's.
    pub judge: fn(&Experiment) -> Finding,
}

macro_rules! entry {
    ($name:literal, $cases:expr, $judge:expr) => {
        Entry { name: $name, text: include_str!(concat!("experiments/", $name, ".toml")), cases: $cases, judge: $judge }
    };
}

/// All experiments, in the order of docs/STUDIES.md.
pub static ALL: &[Entry] = &[
    entry!("capture-bandwidth", capture::rates, capture::judge_complete),
    entry!("capture-size", capture::sizes, capture::judge_complete),
    entry!("capture-buffers", capture::buffers, capture::judge_buffers),
    entry!("capture-filtered", capture::filtered, capture::judge_complete),
    entry!("capture-complete", complete::cases, complete::judge),
    entry!("capture-disk", disk::cases, disk::judge),
    entry!("drop-cores", programs::cores, programs::judge_cores),
    entry!("drop-cpu", programs::cpu_uses, programs::judge_cpu_use),
    entry!("forward", programs::cores, programs::judge_cores),
    entry!("route", programs::routes, programs::judge_route),
    entry!("ddos", ddos::cases, ddos::judge),
    entry!("load-balance", balance::rates, balance::judge_rate),
    entry!("load-balance-moves", balance::all_moves, balance::judge_moves),
    entry!("rfc2544", rfc2544::cases, rfc2544::judge),
    entry!("mechanism-efficiency", capture::efficiency, capture::judge_complete),
    entry!("mechanism-elapsed", capture::elapsed, capture::judge_elapsed),
    entry!("xdp-actions", programs::threads, programs::judge_threads),
    entry!("xdp-offload", programs::threads, |_| Finding::default()),
    entry!("drop-iptables", programs::threads, programs::judge_threads),
    entry!("generate", generators::cases, generators::judge),
    entry!("dpdk-pdump", pdump::cases, pdump::judge),
    entry!("timestamp-accuracy", demands::timestamps, demands::judge_timestamps),
    entry!("order", demands::orders, demands::judge_order),
    entry!("merge", demands::merges, demands::judge_merge),
    entry!("loss", demands::losses, demands::judge_loss),
    entry!("store-capture", store::captures, store::judge_capture),
    entry!("store-index", store::indexes, store::judge_index),
    entry!("store-search", store::searches, store::judge_search),
    entry!("xdp-programs", programs::threads, programs::judge_with_peers),
    entry!("guard-rules", guard::cases, guard::judge),
    entry!("process", owners::rates, owners::judge_rates),
    entry!("process-connections", owners::connections, owners::judge_connections),
    entry!("slow", slow::cases, slow::judge),
    entry!("drop-reasons", drops::cases, drops::judge),
    entry!("read", read::cases, read::judge),
    entry!("idle", idle::cases, idle::judge),
    entry!("frame-size", frames::cases, frames::judge),
    entry!("program-test", program_tests::rates, program_tests::judge_rates),
    entry!("program-test-objects", program_tests::objects, program_tests::judge_objects),
];

impl Entry {
    pub fn definition(&self) -> Result<Definition> {
        Definition::parse(self.text).map_err(|why| Error::failed(format!("experiment {}", self.name), why))
    }
}

pub fn find(name: &str) -> Result<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|entry| entry.name).collect();
        Error::usage(
            format!("experiment {name:?}"),
            format!("no experiment has this name; trawl bench list shows {}", names.join(", ")),
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
        return Err(Error::usage(format!("--study {letter}"), "the studies are A to G"));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::study::definition::Profile;

    #[test]
    fn every_definition_is_whole_and_has_cases_in_both_profiles() {
        for entry in ALL {
            let definition = entry.definition().expect(entry.name);
            assert_eq!(definition.name, entry.name);
            assert!(!definition.metrics.is_empty() && !definition.setup.is_empty(), "{}", entry.name);
            for published in &definition.published {
                assert!(definition.metrics.iter().any(|one| one.name == published.metric), "{}", entry.name);
            }
            for profile in [Profile::Quick, Profile::Full] {
                let space = definition.space(profile, &BTreeMap::new()).expect(entry.name);
                assert!(space.number("repeat").expect(entry.name) >= 1.0);
                let cases = (entry.cases)(&space).expect(entry.name);
                assert!(!cases.is_empty(), "{}", entry.name);
            }
        }
    }

    #[test]
    fn studies_are_found_by_their_letter() {
        assert!(of_study("a").expect("there is one").contains(&"capture-bandwidth"));
        assert!(of_study("Z").is_err());
        assert!(find("capture-bandwith").is_err());
    }
}
