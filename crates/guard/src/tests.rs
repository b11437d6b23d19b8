//! Compares the program with the model: random rules, random packets, and the kernel's verdict on each.

mod generated;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use generated::{draft, sent, set, v4, v6};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use trawl_bpf::loader::{LoadedFile, ObjectFile};
use trawl_bpf::probe::KernelFeature;
use trawl_bpf::test_run;
use trawl_packet::build::Template;
use trawl_sys::clock;

use crate::live::Store;
use crate::model::{self, Packet};
use crate::rule::{Action, Draft, Match, Rule};
use crate::set::{Hits, RuleSet};

/// Interface that packets of test runs arrive on.
const LOOPBACK: u32 = 1;
const DROP: u32 = 1;
const PASS: u32 = 2;
const GRE: u8 = 47;
const SCTP: u8 = 132;

/// The guard's program and its rules, not attached to an interface.
pub struct Bench {
    program: LoadedFile,
    store: Store,
}

impl Bench {
    /// Returns a bench for each store that this kernel supports; none, after a note, if the test has to be skipped.
    pub fn all() -> Vec<Self> {
        if !trawl_bpf::probe::missing_capabilities(&trawl_bpf::probe::Capability::FOR_BPF).is_empty() {
            eprintln!("SKIPPED: requires root");
            return Vec::new();
        }
        let slot = Store::new_slot().expect("all kernels have arrays of maps");
        let arena = KernelFeature::Arena.probe().is_supported().then(|| {
            static SEED: AtomicU64 = AtomicU64::new(0);
            Store::new_arena(SEED.fetch_add(1, Ordering::Relaxed)).expect("there are arenas")
        });
        std::iter::once(slot).chain(arena).map(Self::with).collect()
    }

    fn with(store: Store) -> Self {
        let mut file = ObjectFile::open("guard", store.object()).expect("an object");
        file.want(&["trawl_guard"]);
        file.reuse("guard_set", store.as_fd()).expect("it has the map");
        file.set_variable("guard_ifindex", &LOOPBACK.to_ne_bytes()).expect("it has the constant");
        let program = file.load().expect("the guard loads");
        Self { program, store }
    }

    pub fn publish(&self, set: &RuleSet) {
        self.store.publish(set).expect("the rules are put in force");
    }

    pub fn read(&self) -> RuleSet {
        self.store.read().expect("the rules are read")
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn verdict(&self, frame: &[u8], linear: Option<usize>) -> u32 {
        let program = self.program.program("trawl_guard").expect("it is loaded");
        let answer = test_run::xdp(program, frame, linear, 1);
        answer.expect("the program runs").value
    }
}

pub fn udp_from(source: [u8; 4]) -> Vec<u8> {
    let frame = Template::new().ethernet([2; 6], [4; 6]);
    frame.ipv4(source, v4(0, 1)).udp(1, 2).payload([0; 22]).build()
}

/// The number of 32.1.13.184 has the leading bits of 2001:db8::/64.
#[test]
fn sources_of_each_ip_version_have_their_own_rates() {
    for bench in Bench::all() {
        let mut set = RuleSet::default();
        set.add(Draft { action: Action::Allow, what: Match::default(), rate: Some(1), expires: None });
        bench.publish(&set);
        let ipv6 = Template::new().ethernet([2; 6], [4; 6]).ipv6(v6(0, 5), v6(0, 1)).udp(1, 2).build();
        let ipv4 = udp_from([0x20, 0x01, 0x0d, 0xb8]);
        let verdicts = [ipv4, ipv6].map(|frame| bench.verdict(&frame, None));
        assert_eq!(verdicts, [PASS, PASS]);
    }
}

/// Returns the verdict that the model expects, with the rule that counts it.
fn expected(set: &RuleSet, packet: &Packet) -> (u32, Option<u32>) {
    let (action, rule): (Action, Option<&Rule>) = model::judge(set, packet, clock::monotonic());
    let verdict = if action == Action::Allow { PASS } else { DROP };
    (verdict, rule.map(|rule| rule.id))
}

#[test]
fn program_and_model_agree() {
    for bench in Bench::all() {
        compare(&bench);
    }
}

fn compare(bench: &Bench) {
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let default = prop_oneof![Just(Action::Deny), Just(Action::Allow)];
    let cases = (proptest::collection::vec(draft(), 0..40), default, proptest::collection::vec(sent(), 1..60));
    let result = runner.run(&cases, |(drafts, default, all)| {
        let set = set(drafts, default);
        bench.publish(&RuleSet::default());
        bench.publish(&set);
        let mut hits = std::collections::HashMap::new();
        let mut by_default = 0;
        for one in &all {
            let (verdict, rule) = expected(&set, &one.packet);
            let frame = one.frame();
            prop_assert_eq!(bench.verdict(&frame, None), verdict, "{:?} by {:?}", one, rule);
            match rule {
                Some(id) => *hits.entry(id).or_insert(0) += 1,
                None => by_default += 1,
            }
        }
        let after = bench.read();
        prop_assert_eq!(&after.rules, &set.rules);
        for rule in &set.rules {
            let decided = hits.get(&rule.id).copied().unwrap_or(0);
            prop_assert_eq!(after.hits_of(rule.id), Hits { decided, limited: 0 }, "{}", rule);
        }
        prop_assert_eq!(after.defaults[0].hits, by_default);
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}
