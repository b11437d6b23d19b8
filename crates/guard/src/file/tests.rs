//! Valid and invalid rule files.

use super::*;
use crate::rule::On;
use crate::set::RuleSet;

fn parse(text: &str) -> Result<RuleFile> {
    RuleFile::parse(text, "x", |name| match name {
        "list" => Ok("# bad ones\n192.0.2.0/24\n2001:db8::/32 ; six\n\n192.0.2.0/24\n".to_owned()),
        _ => Err(Error::failed(format!("cannot read {name}"), "no such file")),
    })
}

fn shown(file: &RuleFile) -> Vec<String> {
    file.rules.iter().map(|rule| rule.draft.clone().numbered(0).to_string()).collect()
}

#[test]
fn every_key_of_a_rule_is_parsed() {
    let file = parse(
        r#"
        default = "deny"
        [[rule]]
        action = "allow"
        src = ["10.0.0.0/8", "192.168.0.0/16"]
        proto = "tcp"
        port = [22, "8000-8080"]
        [[rule]]
        action = "deny"
        src-file = "list"
        for = "10m"
        on = "eth0"
        [[rule]]
        action = "deny"
        icmp = "echo-request"
        rate = "1k"
        [[rule]]
        action = "deny"
        dst = "2001:db8::1"
        established = true
        [[preset]]
        name = "syn-flood"
        rate = 50
        "#,
    )
    .unwrap();
    assert_eq!(file.default, Some(Action::Deny));
    assert_eq!(
        shown(&file),
        [
            "deny --proto tcp --syn --rate 50",
            "allow --src 10.0.0.0/8 --proto tcp --port 22",
            "allow --src 10.0.0.0/8 --proto tcp --port 8000-8080",
            "allow --src 192.168.0.0/16 --proto tcp --port 22",
            "allow --src 192.168.0.0/16 --proto tcp --port 8000-8080",
            "deny --src 192.0.2.0/24",
            "deny --src 2001:db8::/32",
            "deny --icmp echo-request --rate 1000",
            "deny --dst 2001:db8::1 --proto tcp --established",
        ]
    );
    let listed = &file.rules[5];
    assert_eq!((listed.on.as_deref(), listed.lasts), (Some("eth0"), Some(Duration::from_secs(600))));
}

#[test]
fn byte_order_mark_is_ignored() {
    let list = |_: &str| Ok("\u{feff}192.0.2.0/24\n".to_owned());
    for (name, text) in [
        ("a.toml", "\u{feff}[[rule]]\naction = \"deny\"\nsrc-file = \"list\"\n"),
        ("a", "\u{feff}[[rule]]\naction = \"deny\"\nsrc-file = \"list\"\n"),
    ] {
        let file = RuleFile::parse(text, name, list).unwrap();
        assert_eq!(shown(&file), ["deny --src 192.0.2.0/24"], "{name}");
    }
}

/// Checks that a file is refused in one line, with the position and the reason.
#[track_caller]
fn refused(text: &str, position: &str, reason: &str) {
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains("rules in x") && error.contains(position) && error.contains(reason), "{text}: {error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn bare_string_entry_names_the_expected_form() {
    refused("preset = [\"syn-flood\"]\n", "line 1", "the preset's name, as in `name = \"syn-flood\"`");
    refused("rule = [\"deny\"]\n", "line 1", "names and values of a rule");
}

#[test]
fn errors_name_their_position() {
    for (text, position, words) in [
        ("default = \"maybe\"", "line 1, column 11", "maybe"),
        ("x = 1", "line 1, column 1", "x"),
        ("[[rule]]\naction = \"deny\"\nsrc = \"10.0.0.1/8\"", "line 3, column 7", "10.0.0.0/8"),
        ("[[rule]]\naction = \"deny\"\nsrc = [\"10.0.0.0/8\",\n  \"nonsense\"]", "line 4, column 3", "nonsense"),
        ("[[rule]]\naction = \"deny\"\nport = 70000", "line 3, column 8", "70000"),
        ("[[rule]]\naction = \"deny\"\nports = 7", "line 3, column 1", "ports"),
        ("[[rule]]\naction = \"deny\"\nsrc = []", "line 3, column 7", "empty"),
        ("[[rule]]\nsrc = \"::1\"", "line 1", "action"),
        ("\n[[rule]]\naction = \"deny\"\nproto = \"gre\"\nport = 7", "line 2", "no ports"),
        ("[[rule]]\naction = \"deny\"\nsrc-file = \"gone\"", "line 1", "no such file"),
        ("[[rule]]\naction = \"deny\"\nsyn = true\nestablished = true", "line 1", "exclude each other"),
        ("[[rule]]\naction = \"deny\"\nrate = 0", "line 3", "0"),
        ("[[preset]]\nname = \"flood\"", "line 2", "syn-flood"),
        ("[[rule]\n", "line 1", ""),
        ("[[rule]]\naction = \"deny\"\n[[rule]]\naction = \"allow\"", "line 3", "same packets"),
    ] {
        refused(text, position, words);
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}", at in 0..400usize, cut in 0..8usize) {
        let _ = parse(&text);
        let mut damaged: Vec<char> = SAMPLE.chars().collect();
        let at = at.min(damaged.len());
        let end = (at + cut).min(damaged.len());
        damaged.splice(at..end, text.chars().take(cut));
        let _ = parse(&damaged.into_iter().collect::<String>());
    }
}

const SAMPLE: &str = "default = \"deny\"\n[[preset]]\nname = \"syn-flood\"\nrate = 5\n[[rule]]\naction = \"deny\"\n\
    src = [\"10.0.0.0/8\"]\ndst = \"::1\"\nproto = 6\nport = [1, \"2-3\"]\nfor = \"10m\"\non = \"eth0\"\n\
    rate = \"1k\"\n[[rule]]\naction = \"allow\"\nicmp = \"echo-request\"\nsrc-file = \"list\"\n";

/// Time grows linearly with the number of rules.
#[test]
fn hundred_thousand_rules_are_parsed() {
    let address = |number: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
    let all = |rule: &dyn Fn(u32) -> String| (0..100_000).map(rule).collect::<String>();
    let toml = all(&|number| format!("[[rule]]\naction = \"deny\"\nsrc = \"{}\"\n", address(number)));
    let rules = parse(&toml).unwrap().rules;
    assert_eq!(rules.len(), 100_000);
}

#[test]
fn empty_file_gives_an_empty_set() {
    assert_eq!(parse("").unwrap(), RuleFile::default());
}

/// The number is checked before memory is allocated.
#[test]
fn more_combinations_than_a_file_may_have_are_refused() {
    let list = |prefix: &str| {
        let all: Vec<String> = (0..250).map(|n| format!("\"{prefix}.{n}.0/24\"")).collect();
        all.join(",")
    };
    let ports: Vec<String> = (1..=1000).map(|port| port.to_string()).collect();
    let text = format!(
        "[[rule]]\naction = \"deny\"\nsrc = [{}]\ndst = [{}]\nport = [{}]\n",
        list("10.0"),
        list("10.1"),
        ports.join(",")
    );
    refused(&text, "line 1", "250 sources, 250 destinations and 1000 ports");
}

#[test]
fn endless_devices_are_refused() {
    let error = RuleFile::read(Path::new("/dev/zero")).unwrap_err();
    assert!(error.to_string().contains("not a file"), "{error}");
    let text = "[[rule]]\naction = \"deny\"\nsrc-file = \"/dev/zero\"\n";
    let error = RuleFile::parse_in(text, "x", Path::new("")).unwrap_err();
    assert!(error.to_string().contains("not a file"), "{error}");
}

#[test]
fn rule_that_denies_everything_needs_all() {
    for (rest, is_refused) in [
        ("", true),
        ("on = \"eth0\"\n", true),
        ("for = \"10m\"\n", true),
        ("all = true\n", false),
        ("port = 9\n", false),
        ("rate = 9\n", false),
    ] {
        let file = parse(&format!("[[rule]]\naction = \"deny\"\n{rest}")).unwrap();
        let refused = file.refuse_rules_about_everything();
        assert_eq!(refused.is_err(), is_refused, "{rest}");
    }
}

#[test]
fn saved_rules_parse_to_the_same_set() {
    let file = parse(&format!(
        "{}[[rule]]\naction = \"deny\"\nall = true\n[[rule]]\naction = \"deny\"\nsyn = true\nport = 22\n\
         [[rule]]\naction = \"allow\"\nsrc-port = [53, \"1-9\"]\nsrc-mac = \"2:0:5e:0:0:0/24\"\ndst-mac = \"02:00:5e:00:53:01\"\n",
        SAMPLE.replace("\"::1\"", "\"10.1.0.1\"").replace("proto = 6", "proto = 17")
    ))
    .unwrap();
    let drafts = |file: &RuleFile| -> Vec<Draft> {
        let with_interface = |rule: &FileRule| {
            let mut draft = rule.draft.clone();
            draft.expires = None;
            draft.what.on = rule.on.clone().map(|name| On { index: 7, name });
            draft
        };
        file.rules.iter().map(with_interface).collect()
    };
    let mut set = RuleSet::default();
    set.replace_all(drafts(&file));
    let on = On { index: 7, name: "e\u{1b}\"th0".to_owned() };
    set.set_default(on.clone(), Action::Deny);
    let saved = parse(&text_of(&set)).unwrap();
    assert_eq!(saved.default, Some(Action::Deny));
    let sorted = |mut drafts: Vec<Draft>| {
        drafts.sort_by_key(|draft| draft.what.clone());
        drafts
    };
    assert_eq!(sorted(drafts(&saved)), sorted(drafts(&file)));
    assert!(saved.refuse_rules_about_everything().is_ok());
    set.set_default(On { index: 8, name: "b".to_owned() }, Action::Allow);
    let saved = parse(&text_of(&set)).unwrap();
    assert_eq!(saved.interfaces, [(on.name, Action::Deny), ("b".to_owned(), Action::Allow)]);
}
