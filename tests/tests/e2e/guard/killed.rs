//! Commands that are killed while they apply many rules.

use trawl_tests::strace;
use trawl_tests::{amount, args, tools_or_skip};

use super::*;

/// Number of moments of a kill, spread over the whole command.
const MOMENTS: usize = 6;
/// Number of last calls at each of which the command is killed, too.
const LAST: usize = 6;
/// System calls that the command makes throughout: while it parses and compiles rules, and while it applies them.
const CALLS: &str = "bpf,brk,mmap,munmap,mremap";

fn numbered(network: u32, number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((network << 24) + number)
}

/// Returns a file with a number of rules for a network, and the rule that all files share.
fn rules(lab: &Lab, network: u32, count: u32) -> String {
    let list: String = (0..count).map(|number| format!("{}\n", numbered(network, number))).collect();
    let name = format!("list-{network}");
    std::fs::write(lab.path(&name), list).expect("a file");
    let file = lab.file(&format!("rules-{network}.toml"));
    let text = format!(
        "[[rule]]\naction = \"deny\"\nsrc = \"{STRANGER}\"\n\
         [[rule]]\naction = \"deny\"\nsrc-file = \"{name}\"\n"
    );
    std::fs::write(&file, text).expect("a file");
    file
}

/// Returns the set of rules in force: all of one, and none of the other.
#[track_caller]
fn in_force(guarded: &Guarded<'_>, count: u32) -> u32 {
    let list = guarded.list();
    let rules = list["rules"].as_array().expect("rules");
    assert_eq!(rules.len() as u32, count + 1);
    let text = |rule: &Value| rule["src"].as_str().expect("a prefix").to_owned();
    let texts: std::collections::HashSet<String> = rules.iter().map(text).collect();
    let holds = |network: u32, number| texts.contains(&numbered(network, number).to_string());
    let network = if holds(10, 0) { 10 } else { 11 };
    assert!((0..count).all(|number| holds(network, number)));
    // The program enforces the same set.
    let denied = || guarded.figures(&["rule_denied", "default_allowed"]);
    let before = denied();
    let from = |network| udp_from(numbered(network, count - 1), 9);
    guarded.send(&[from(10), from(11)], 2);
    let after = denied();
    assert_eq!([after[0] - before[0], after[1] - before[1]], [1, 1]);
    network
}

#[test]
#[ignore = "make test-long runs it"]
fn many_rules_hold_as_a_whole_or_not_at_all() {
    if !tools_or_skip(&["strace"]) {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let count = u32::try_from(amount(10_000)).expect("a number");
    let files = [10, 11].map(|network| rules(&lab, network, count));
    let file_of = |network: u32| files[network as usize - 10].as_str();
    guarded.well(&["apply", file_of(10)]);
    let trawl = binary::path().to_str().expect("plain");
    let apply = |network: u32, strace: &[&str]| {
        let place = ["--netns", &lab.pair.b.name];
        let command = [trawl, "guard", "apply", file_of(network)];
        output("strace", &[strace, &command, &place].concat())
    };
    let (trace, traced) = (lab.file("trace"), format!("trace={CALLS}"));
    let whole = apply(11, &["-qq", "-e", &traced, "-o", &trace]);
    assert!(whole.status.success());
    let text = std::fs::read_to_string(&trace).expect("strace wrote it");
    let calls = strace::calls(&text);
    // Most calls precede any change, and the ones that apply it are among the last.
    let early = (1..MOMENTS).map(|moment| calls.len() * moment / MOMENTS);
    let late = (1..=LAST).rev().map(|from_end| calls.len() - from_end);
    let mut holds = in_force(&guarded, count);
    assert_eq!(holds, 11);
    let mut hits = 0;
    for call in early.chain(late).map(|at| &calls[at]) {
        // All rule sets must keep these hits.
        guarded.send(&[udp_from(STRANGER, 9)], 1);
        hits += 1;
        let wanted = 21 - holds;
        let killed = apply(wanted, &args!("-qq -e {traced} -e {} -o /dev/null", call.killing()));
        let holds_now = in_force(&guarded, count);
        assert!(!killed.status.success() || holds_now == wanted);
        holds = holds_now;
        let list = guarded.list();
        let rules = list["rules"].as_array().expect("rules");
        let stranger = rules.iter().find(|rule| rule["src"].as_str() == Some(&STRANGER.to_string()));
        assert_eq!(stranger.expect("it stays")["hits"], hits, "{}", call.text);
    }
    guarded.well(&["apply", file_of(21 - holds)]);
    assert_eq!(in_force(&guarded, count), 21 - holds);
    guarded.well(&["unload", guarded.interface()]);
    assert!(!guarded.directory().exists());
    trawl_tests::xdp::all_gone(&lab, &[], &[]);
}
