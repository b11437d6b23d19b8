//! Rules that are added, replaced, read from files, and expire.

use super::*;
use trawl_tests::args;

#[test]
fn rule_expires_on_its_own() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", &STRANGER.to_string(), "--for", "1h"]);
    guarded.well(&args!("deny --src {STRANGER} --proto udp --for 400ms"));
    let left = guarded.rule(1).expect("it is there")["expires_in"].as_f64().expect("a number");
    assert!(left > 3_000.0 && left <= 3_600.0, "{left}");
    wait_until("the rule is over", || guarded.rule(2).is_none());
    guarded.send(&[udp_from(STRANGER, 9)], 1000);
    assert_eq!(guarded.hits(1), 1000);
    // The program in the kernel checks the time, so that no command is needed.
    guarded.well(&["deny", "--src", "192.0.2.67", "--for", "100ms"]);
    wait_until("the rule is over in the kernel", || {
        let before = guarded.figures(&["default_allowed"])[0];
        guarded.send(&[udp_from(Ipv4Addr::new(192, 0, 2, 67), 9)], 10);
        guarded.figures(&["default_allowed"])[0] == before + 10
    });
}

#[test]
fn file_is_applied_as_a_whole_or_not_at_all() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let by_source = "[[rule]]\naction = \"deny\"\nsrc = \"192.0.2.0/24\"\n";
    let by_port = "[[rule]]\naction = \"deny\"\nproto = \"udp\"\nport = 9\n";
    assert!(guarded.apply(by_source).status.success());
    let before = guarded.list();
    for (bad, place) in [
        ("[[rule]]\naction = \"deny\"\n[[rule]]\naction = \"allow\"\nsrc = \"300.0.0.1\"\n", "line 5, column 7"),
        (
            "default = \"deny\"\n[[rule]]\naction = \"deny\"\nport = 9\non = \"nowhere\"\n",
            "line 2, column 1: interface nowhere",
        ),
        ("nonsense", "line 1"),
    ] {
        let output = guarded.apply(bad);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(place), "{said}");
        assert_eq!(guarded.list(), before);
    }
    // Either set of rules drops each of these frames, while halves of both would let some pass.
    const FLOOD: u64 = 1_000_000;
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| guarded.send(&[udp_from(STRANGER, 9)], FLOOD));
        let mut applied = 0;
        while !flood.is_finished() || applied == 0 {
            let rules = if applied % 2 == 0 { by_port } else { by_source };
            assert!(guarded.apply(rules).status.success());
            applied += 1;
        }
        flood.join().expect("no panic");
    });
    assert_eq!(guarded.figures(&["seen", "rule_denied", "passed"]), [FLOOD, FLOOD, 0]);
}

#[test]
fn hits_are_kept_through_changes() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    const FLOOD: u64 = 600_000;
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| guarded.send(&[udp_from(STRANGER, 9)], FLOOD));
        let mut other = 1;
        while !flood.is_finished() && other < 200 {
            guarded.well(&["deny", "--src", &format!("10.1.1.{other}")]);
            other += 1;
        }
        flood.join().expect("no panic");
    });
    assert_eq!(guarded.hits(1), FLOOD);
    assert_eq!(
        guarded.well(&["deny", "--src", &STRANGER.to_string(), "--for", "1h"]),
        format!("rule 1: deny --src {STRANGER} (replaces the rule for the same packets)\n")
    );
    assert_eq!(guarded.hits(1), FLOOD);
}

#[test]
fn hundred_thousand_prefixes_are_in_force() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let list: String =
        (0..100_000u32).map(|number| format!("{}\n", Ipv4Addr::from_bits(0x0b00_0000 + number * 3))).collect();
    std::fs::write(lab.path("list"), list).expect("a file");
    let applied = guarded.apply("[[rule]]\naction = \"deny\"\nsrc-file = \"list\"\n");
    assert_eq!(String::from_utf8_lossy(&applied.stdout), "100000 rules in force\n");
    for number in [0u32, 3, 6, 150_000, 299_997] {
        for offset in 0..3 {
            guarded.send(&[udp_from(Ipv4Addr::from_bits(0x0b00_0000 + number + offset), 9)], 10);
        }
    }
    assert_eq!(guarded.figures(&["rule_denied", "default_allowed"]), [50, 100]);
    assert_eq!(guarded.list()["rules"].as_array().map(Vec::len), Some(100_000));
    assert_eq!(guarded.well(&["remove", "--all"]), "removed 100000 rules\n");
}

#[test]
fn wrong_rules_are_wrong_usage() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    for (arguments, words) in [
        (vec!["deny", "--src", "10.0.0.1/8"], "10.0.0.0/8"),
        (vec!["deny", "--proto", "gre", "--port", "5"], "no ports"),
        (vec!["deny", "--proto", "tpc"], "protocol"),
        (vec!["deny", "--port", "9-8"], "ends before"),
        (vec!["deny", "--icmp", "echo"], "echo-request"),
        (vec!["deny", "--rate", "0"], "rate"),
        (vec!["deny", "--for", "soon"], "time"),
        (vec!["deny", "--src", "::1", "--dst", "10.0.0.1"], "IP version"),
        (vec!["preset", "flood"], "syn-flood"),
        (vec!["remove"], "ID"),
    ] {
        let said = guarded.refused(2, &arguments);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    let said = guarded.refused(1, &["deny", "--on", "nowhere"]);
    assert!(said.contains("nowhere"), "{said}");
    let said = guarded.refused(1, &["remove", "7"]);
    assert!(said.contains("no rules exist"), "{said}");
    guarded.refused(1, &["stats"]);
    assert!(!guarded.directory().exists());
    // Another tool's program stays.
    let held = output("ip", &["-n", &lab.pair.b.name, "link", "show", "veth0"]);
    assert!(held.status.success());
}

/// Source ports and MAC addresses, from the command line and from a file.
#[test]
fn source_ports_and_macs_match() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let other = [2, 0, 0x5e, 0, 0x53, 9];
    let frame = |mac, port| {
        let frame = Template::new().ethernet(mac, TO).ipv4(STRANGER, B4);
        frame.udp(port, 9).payload([0; 22]).build()
    };
    let all = [frame(FROM, 389), frame(FROM, 390), frame(other, 389), frame(other, 390)];
    // The numbers of packets that each rule decides depend on the order: rules with MAC addresses are evaluated first.
    let rules = [
        vec!["deny", "--proto", "udp", "--src-port", "389"],
        vec!["allow", "--src-mac", "02:00:5e:00:00:00/24"],
        args!("deny --src-mac 02:00:5e:00:53:09 --src-port 1-389"),
        vec!["deny", "--dst-mac", "02:00:5e:00:53:77"],
    ];
    for rule in &rules {
        guarded.well(rule);
    }
    let hits = || [1, 2, 3, 4].map(|id| guarded.hits(id));
    guarded.send(&all, 400);
    assert_eq!(hits(), [100, 100, 100, 0]);
    let third = guarded.rule(3).expect("it is there");
    assert_eq!(third["src_port"], "1-389");
    assert_eq!(third["src_mac"], "02:00:5e:00:53:09");
    // Saved and applied rules are equal, and keep their hits.
    let before = guarded.list();
    let saved = guarded.well(&["save"]);
    assert!(guarded.apply(&saved).status.success(), "{saved}");
    assert_eq!(guarded.list(), before);
    guarded.send(&all, 400);
    assert_eq!(hits(), [200, 200, 200, 0]);
    for (words, why) in [
        (vec!["deny", "--src-port", "70000"], "is not a port"),
        (vec!["deny", "--src-mac", "10.0.0.1"], "is not a MAC address"),
        (vec!["deny", "--src-mac", "02:00:5e:00:53:09/24"], "did you mean 02:00:5e:00:00:00/24"),
        (vec!["deny", "--proto", "gre", "--src-port", "1"], "gre has no ports"),
    ] {
        let said = guarded.refused(2, &words);
        assert!(said.contains(why), "{said}");
    }
}

/// Control characters in names of a rule file do not reach the terminal.
#[test]
fn names_in_rule_files_do_not_steer_the_terminal() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let (name, in_toml) = ("a\u{1b}[31mb", "a\\u001b[31mb");
    let link = ["-n", &lab.pair.b.name, "link", "add", name, "type", "veth"];
    run("ip", &[&link[..], &["peer", "name", "other"]].concat());
    let is_plain = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    let plain = |arguments: &[&str]| {
        let output = guarded.run(arguments);
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            assert!(text.chars().all(is_plain), "{arguments:?}: {text:?}");
        }
        output.status.code()
    };
    let (file, strange) = (lab.file("rules.toml"), lab.file(name));
    for (text, status) in [
        (format!("[[rule]]\naction = \"deny\"\nport = 9\non = \"{in_toml}\"\n"), 0),
        (format!("[[interface]]\nname = \"{in_toml}\"\ndefault = \"deny\"\n"), 0),
        (format!("[[rule]]\naction = \"deny\"\nport = 9\non = \"{in_toml}c\"\n"), 1),
        (format!("[[rule]]\naction = \"deny\"\nsrc-file = \"{in_toml}\"\n"), 1),
        (format!("[[rule]]\naction = \"deny\"\nsrc = \"{in_toml}\"\n"), 1),
        (format!("[[rule]]\naction = \"{in_toml}\"\n"), 1),
        (format!("[[rule]]\n\"{in_toml}\" = 1\n"), 1),
        (format!("[[preset]]\nname = \"{in_toml}\"\n"), 1),
        (format!("{name}\n"), 1),
    ] {
        for path in [&file, &strange] {
            std::fs::write(path, &text).expect("a file");
            assert_eq!(plain(&["apply", "--check", path]), Some(status), "{text:?}");
            assert_eq!(plain(&["apply", path]), Some(status), "{text:?}");
        }
        assert_eq!(plain(&["list"]), Some(0));
        assert_eq!(plain(&["save"]), Some(0));
        assert_eq!(plain(&["list", "--json"]), Some(0));
    }
}

/// Nearly the maximum number of rules uses memory in proportion; more are refused before any is allocated.
#[test]
#[ignore = "make test-long runs it"]
fn memory_for_rules_is_bounded() {
    let Some(lab) = Lab::open() else { return };
    let list = |count: u32, each: &dyn Fn(u32) -> String| {
        let all: Vec<String> = (0..count).map(each).collect();
        all.join(",")
    };
    let address = |n: u32| format!("\"{}\"", Ipv4Addr::from_bits(0x0b00_0000 + n));
    for (sources, limit, status, words) in [
        (999, 2 << 20, 0, "999000 rules, no errors"),
        (1_001, 1 << 20, 1, "more than the 1000000 rules"),
        (1 << 21, 1 << 20, 1, "more than the 1000000 rules"),
    ] {
        let (sources, ports) = (list(sources, &address), list(1_000, &|n| (n + 1).to_string()));
        let text = format!("[[rule]]\naction = \"deny\"\nsrc = [{sources}]\nport = [{ports}]\n");
        let file = lab.file("rules.toml");
        std::fs::write(&file, text).expect("a file");
        let limited = format!("ulimit -v {limit}; exec \"$@\"");
        let output = Command::new("bash")
            .args(["-c", &limited, "bash"])
            .arg(binary::path())
            .args(args!("guard apply --check {file} --netns {}", lab.pair.b.name))
            .output()
            .expect("bash runs");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
