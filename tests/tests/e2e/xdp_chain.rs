//! Chains by libxdp's protocol: libxdp's own tools find, change and keep trawl's chains, and vice versa. They need
//! programs that replace functions of others, which some kernels refuse even to root.

use serde_json::Value;
use trawl_lab::PairOptions;
use trawl_tests::bundled::Counts;
use trawl_tests::programs::object_file;
use trawl_tests::witness::{number_at, run, wait_unloaded};
use trawl_tests::xdp::{CleanUp, all_gone, fails, programs_on, status_of, succeeds, xdp_loader};
use trawl_tests::{Lab, args, frames, tools_or_skip, tracing_or_skip, wait_until};

/// A lab with the objects of this file's tests.
struct Chain {
    lab: Lab,
    place: String,
    members: String,
    /// Directory of the members' common pinned map.
    maps: String,
    _clean: CleanUp,
}

impl Chain {
    fn open(options: PairOptions) -> Option<Self> {
        if !tracing_or_skip() {
            return None;
        }
        let lab = Lab::with(options)?;
        Some(Self {
            place: lab.receiver(),
            members: object_file(&lab, "members"),
            maps: format!("/sys/fs/bpf/{}-chain", lab.pair.b.name),
            _clean: CleanUp::of(&lab),
            lab,
        })
    }

    #[track_caller]
    fn load(&self, program: &str, more: &[&str]) {
        let arguments = args!("xdp load {} {} --prog {program} --pin-maps {}", self.place, self.members, self.maps);
        succeeds(&[&arguments[..], more].concat());
    }

    /// Checks the members that a packet meets, in order.
    #[track_caller]
    fn way_of_a_packet(&self, expected: u64) {
        let trail = || number_at(&format!("{}/trail", self.maps));
        let before = trail();
        self.lab.send(&[frames::silent(64)], 1);
        let digits = expected.to_string().len() as u32;
        let after = before * 10u64.pow(digits) + expected;
        wait_until(&format!("the trail {before} becomes {after}"), || trail() == after);
    }

    /// Returns the output of libxdp's own tool.
    fn xdp_loader(&self, arguments: &[&str]) -> String {
        xdp_loader(&self.lab.pair.b.name, arguments)
    }

    fn interface(&self) -> &str {
        &self.lab.pair.b.interface
    }
}

fn names(programs: &[Value]) -> Vec<&str> {
    programs.iter().filter_map(|one| one["name"].as_str()).collect()
}

fn id_of(programs: &[Value], name: &str) -> u64 {
    let found = programs.iter().find(|one| one["name"] == name);
    found.and_then(|one| one["id"].as_u64()).unwrap_or_else(|| panic!("{name} is not among {programs:?}"))
}

#[test]
fn members_run_by_priority_until_a_verdict_ends_the_chain() {
    let Some(chain) = Chain::open(PairOptions::default()) else {
        return;
    };
    chain.load("drops", &["--prio", "30"]);
    chain.way_of_a_packet(3);
    chain.load("copes_with_fragments", &["--prio", "40"]);
    chain.load("passes", &["--prio", "20"]);
    // The file of this program sets an early priority, and continues the chain after a drop.
    chain.load("drops_and_goes_on", &[]);
    let members = programs_on(&chain.place);
    assert_eq!(names(&members), ["drops_and_goes_on", "passes", "drops", "copes_with_fragments"]);
    let priorities: Vec<_> = members.iter().map(|one| one["priority"].as_u64()).collect();
    assert_eq!(priorities, [Some(10), Some(20), Some(30), Some(40)]);
    assert_eq!(members[0]["chain_actions"], serde_json::json!(["drop", "pass"]));
    assert_eq!(members[1]["chain_actions"], serde_json::json!(["pass"]));
    assert_eq!(status_of(&chain.place)["programs"][0]["kind"], "dispatcher");
    chain.way_of_a_packet(123);
    let drops = id_of(&members, "drops");
    succeeds(&["xdp", "unload", &chain.place, &drops.to_string()]);
    wait_unloaded(drops);
    chain.way_of_a_packet(124);
    fails(&["xdp", "unload", &chain.place], 1, &["several", "--all"]);
    succeeds(&["xdp", "unload", &chain.place, "--all"]);
    let ids: Vec<u64> = members.iter().filter_map(|one| one["id"].as_u64()).collect();
    all_gone(&chain.lab, &ids, &[]);
    assert!(!std::path::Path::new(&chain.maps).exists());
}

#[test]
fn libxdp_loader_sees_joins_and_unloads_chains_of_trawl() {
    let Some(chain) = Chain::open(PairOptions::default()) else {
        return;
    };
    if !tools_or_skip(&["xdp-loader"]) {
        return;
    }
    chain.load("passes", &["--prio", "20"]);
    let interface = chain.interface();
    chain.xdp_loader(&args!("load -m native {interface} {} -n drops_and_goes_on", chain.members));
    let shown = chain.xdp_loader(&["status", interface]);
    let line = |name: &str| {
        let found = shown.lines().find(|line| line.contains(name));
        found.unwrap_or_else(|| panic!("{name} is not in {shown}")).to_owned()
    };
    let theirs: Vec<_> = line("drops_and_goes").split_whitespace().map(str::to_owned).collect();
    assert_eq!(theirs[1], "10", "{shown}");
    assert!(line("drops_and_goes").contains("XDP_DROP,XDP_PASS"), "{shown}");
    assert!(line("passes").contains("20") && line("passes").contains("XDP_PASS"), "{shown}");
    let members = programs_on(&chain.place);
    assert_eq!(names(&members), ["drops_and_goes_on", "passes"]);
    assert_eq!(members[0]["source"], Value::Null);
    assert_eq!(members[1]["source"], chain.members.as_str());
    // libxdp's program has a map of its own.
    chain.way_of_a_packet(2);
    let ours = id_of(&members, "passes");
    chain.xdp_loader(&["unload", interface, "-i", &ours.to_string()]);
    wait_unloaded(ours);
    let left = programs_on(&chain.place);
    assert_eq!(names(&left), ["drops_and_goes_on"]);
    // The next command that changes something removes the pins that trawl kept for its program.
    succeeds(&["doctor", "--clean"]);
    assert!(!std::path::Path::new(&chain.maps).exists());
    fails(&["xdp", "unload", &chain.place], 1, &["were not loaded by trawl"]);
    let theirs = id_of(&left, "drops_and_goes_on");
    succeeds(&["xdp", "unload", &chain.place, &theirs.to_string()]);
    assert!(chain.xdp_loader(&["status", interface]).contains("No XDP program"));
    all_gone(&chain.lab, &[ours, theirs], &[]);
}

#[test]
fn trawl_joins_and_leaves_chains_of_the_libxdp_loader() {
    let Some(chain) = Chain::open(PairOptions::default()) else {
        return;
    };
    if !tools_or_skip(&["xdp-loader"]) {
        return;
    }
    let interface = chain.interface();
    chain.xdp_loader(&args!("load -m native {interface} {} -n passes", chain.members));
    let theirs = id_of(&programs_on(&chain.place), "passes");
    chain.load("drops", &["--prio", "60"]);
    let members = programs_on(&chain.place);
    assert_eq!(names(&members), ["passes", "drops"]);
    assert_eq!(id_of(&members, "passes"), theirs);
    assert_eq!(members[0]["priority"], 50);
    chain.way_of_a_packet(3);
    let shown = chain.xdp_loader(&["status", interface]);
    assert!(shown.contains("drops") && shown.contains("passes"), "{shown}");
    succeeds(&["xdp", "unload", &chain.place]);
    assert_eq!(names(&programs_on(&chain.place)), ["passes"]);
    assert!(chain.xdp_loader(&["status", interface]).contains(&theirs.to_string()));
    chain.xdp_loader(&["unload", interface, "--all"]);
    all_gone(&chain.lab, &[theirs], &[]);
}

#[test]
fn packets_in_pieces_need_support_by_every_member() {
    let options = PairOptions { mtu: 9000, ..PairOptions::default() };
    let Some(chain) = Chain::open(options) else {
        return;
    };
    chain.load("copes_with_fragments", &[]);
    chain.load("copes_with_fragments_too", &[]);
    chain.way_of_a_packet(45);
    let file = chain.members.as_str();
    fails(&["xdp", "load", &chain.place, file, "--prog", "passes"], 1, &["MTU", "xdp.frags", "--mode skb"]);
    // The chain is unchanged.
    assert_eq!(names(&programs_on(&chain.place)), ["copes_with_fragments", "copes_with_fragments_too"]);
    chain.way_of_a_packet(45);
}

#[test]
fn chain_has_at_most_ten_members() {
    let Some(chain) = Chain::open(PairOptions::default()) else {
        return;
    };
    for _ in 0..10 {
        chain.load("passes", &[]);
    }
    chain.way_of_a_packet(2_222_222_222);
    fails(&args!("xdp load {} {} --prog drops", chain.place, chain.members), 1, &["10 programs", "trawl xdp unload"]);
    let before = programs_on(&chain.place);
    assert_eq!(before.len(), 10);
    // One program can replace all members.
    chain.load("drops", &["--replace"]);
    chain.way_of_a_packet(3);
    for one in &before {
        wait_unloaded(one["id"].as_u64().expect("a number"));
    }
    assert_eq!(programs_on(&chain.place).len(), 1);
}

#[test]
fn packets_never_miss_a_changing_chain() {
    let Some(chain) = Chain::open(PairOptions::default()) else {
        return;
    };
    let several = object_file(&chain.lab, "several");
    succeeds(&args!("xdp load {} {several} --prog several_third --prio 1", chain.place));
    let counter = programs_on(&chain.place)[0]["maps"][0].as_u64().expect("a map");
    let pin = format!("/sys/fs/bpf/{}-counter", chain.lab.pair.b.name);
    run("bpftool", &["map", "pin", "id", &counter.to_string(), &pin]);
    let mut sent = 0;
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for _ in 0..4 {
                chain.load("passes", &[]);
                let id = id_of(&programs_on(&chain.place), "passes");
                succeeds(&["xdp", "unload", &chain.place, &id.to_string()]);
            }
        });
        while !changes.is_finished() {
            chain.lab.send(&[frames::silent(64)], 200);
            sent += 200;
        }
        changes.join().expect("all changes are made");
    });
    let counted = || number_at(&pin);
    wait_until(&format!("{sent} packets are counted"), || counted() >= sent);
    assert_eq!(counted(), sent);
    std::fs::remove_file(&pin).expect("the pin");
}

/// Returns the pins in a dispatcher's directory.
fn dispatcher_pins(chain: &Chain) -> Vec<std::path::PathBuf> {
    let begins = format!("dispatch-{}-", chain.lab.pair.b.index);
    let own = status_of(&chain.place)["programs"][0]["id"].to_string();
    let entries = std::fs::read_dir("/sys/fs/bpf/xdp").into_iter().flatten();
    let named = |path: &std::path::PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name == format!("{begins}{own}"))
    };
    entries.flatten().map(|entry| entry.path()).filter(named).collect()
}

#[test]
fn bundled_programs_join_a_chain_by_priority() {
    let Some(chain) = Chain::open(PairOptions::default()) else {
        return;
    };
    let place = chain.place.as_str();
    chain.load("passes", &["--prio", "20"]);
    // Without a priority, the bundled programs require an interface without other programs.
    let said = ["libxdp's protocol", "--prio N", "--replace"];
    fails(&["xdp", "load", place, "drop"], 1, &said);
    let hooks = ["hooks cannot join", "without hooks", "--program NAME", "--replace"];
    let tappable = ["xdp", "load", place, "drop", "--prio", "90", "--tappable"];
    fails(&tappable, 1, &hooks);
    succeeds(&["xdp", "load", place, "drop", "--prio", "90", "--touch", "parse"]);
    chain.load("drops_and_goes_on", &[]);
    let members = programs_on(place);
    assert_eq!(names(&members), ["drops_and_goes_on", "passes", "trawl_drop"]);
    chain.way_of_a_packet(12);
    let counts = Counts::wait(|| Counts::of(place), 1);
    assert_eq!(counts.bytes(), 64, "{counts:?}");
    if tools_or_skip(&["xdp-loader"]) {
        let shown = chain.xdp_loader(&["status", chain.interface()]);
        assert!(shown.contains("trawl_drop"), "{shown}");
    }
    let drops = id_of(&members, "trawl_drop");
    succeeds(&["xdp", "unload", place, &drops.to_string()]);
    wait_unloaded(drops);
    chain.way_of_a_packet(12);
    // The map of targets is filled before the program gets a packet.
    let to = chain.interface();
    succeeds(&["xdp", "load", place, "redirect", "--to", to, "--by", "devmap", "--prio", "95"]);
    chain.way_of_a_packet(12);
    let counts = Counts::wait(|| Counts::of(place), 1);
    assert_eq!(counts.outcome("dropped: the target is gone"), 0, "{counts:?}");
    succeeds(&["xdp", "unload", place, "--all"]);
    let ids: Vec<u64> = members.iter().filter_map(|one| one["id"].as_u64()).collect();
    all_gone(&chain.lab, &ids, &[]);
    assert!(!std::path::Path::new(&chain.maps).exists());
}

/// Programs after the guard and the balancer in a chain, or before both, whose priorities are 10 and 20.
const MIXED: [(&str, &str); 7] = [
    ("trawl_pass", "pass"),
    // This program adds metadata.
    ("metadata", "FILE --prog metadata"),
    ("trawl_drop", "drop"),
    ("trawl_aborted", "aborted"),
    ("trawl_tx", "tx"),
    ("trawl_redirect", "redirect --to IF"),
    ("trawl_redir_map", "redirect --to IF --by devmap"),
];

#[test]
fn each_bundled_program_joins_before_and_after_the_others() {
    let Some(chain) = Chain::open(PairOptions::default()) else {
        return;
    };
    let place = chain.place.as_str();
    let file = object_file(&chain.lab, "adjust");
    for first in [1, 31] {
        chain.load("passes", &["--prio", "0"]);
        let mut expected = vec!["passes"];
        for (number, (name, what)) in MIXED.iter().enumerate() {
            let what = what.replace("IF", chain.interface()).replace("FILE", &file);
            let prio = first + number;
            succeeds(&args!("xdp load {place} {what} --prio {prio}"));
            expected.push(name);
        }
        succeeds(&["guard", "load", place]);
        succeeds(&["balance", "load", place, "--flows", "10000"]);
        let at = if first == 1 { expected.len() } else { 1 };
        expected.splice(at..at, ["trawl_guard", "trawl_balance"]);
        let members = programs_on(place);
        assert_eq!(names(&members), expected);
        chain.way_of_a_packet(2);
        succeeds(&["xdp", "unload", place, "--all", "--yes"]);
        let ids: Vec<u64> = members.iter().filter_map(|one| one["id"].as_u64()).collect();
        all_gone(&chain.lab, &ids, &[]);
    }
}

#[test]
fn program_that_replaces_a_chain_leaves_nothing_of_it() {
    let Some(chain) = Chain::open(PairOptions::default()) else {
        return;
    };
    let place = chain.place.as_str();
    for more in [&[][..], &["--tappable"], &["--mode", "skb"]] {
        chain.load("passes", &["--prio", "20"]);
        chain.load("drops", &["--prio", "30"]);
        let ids: Vec<u64> = programs_on(place).iter().filter_map(|one| one["id"].as_u64()).collect();
        let pins = dispatcher_pins(&chain);
        assert_eq!((ids.len(), pins.len()), (2, 1));
        succeeds(&[&["xdp", "load", place, "drop", "--replace"][..], more].concat());
        assert_eq!(names(&programs_on(place)), ["trawl_drop"]);
        for id in ids {
            wait_unloaded(id);
        }
        assert!(pins.iter().all(|path| !path.exists()), "{pins:?}");
        succeeds(&["xdp", "unload", place]);
        all_gone(&chain.lab, &[], &[]);
        assert!(!std::path::Path::new(&chain.maps).exists());
    }
}
