//! Rule files as people write them, right and wrong.

use super::*;

fn parse(text: &str) -> Result<RuleFile> {
    RuleFile::parse(text, "x", |name| match name {
        "list" => Ok("# bad ones\n192.0.2.0/24\n2001:db8::/32 ; six\n\n192.0.2.0/24\n".to_owned()),
        _ => Err(Error::failed(format!("cannot read {name}"), "no such file")),
    })
}

fn shown(file: &RuleFile) -> Vec<String> {
    file.rules
        .iter()
        .map(|rule| rule.draft.clone().numbered(0).to_string())
        .collect()
}

#[test]
fn everything_that_a_rule_can_say() {
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
    assert_eq!(
        (listed.on.as_deref(), listed.lasts),
        (Some("eth0"), Some(Duration::from_secs(600)))
    );
}

#[test]
fn yaml_says_the_same() {
    let toml = "default = \"deny\"\n[[preset]]\nname = \"syn-flood\"\nrate = 50\n\
        [[rule]]\naction = \"allow\"\nsrc = [\"10.0.0.0/8\", \"2001:db8::5\", \"::1\"]\nproto = \"tcp\"\nport = [22, \"8000-8080\"]\n\
        [[rule]]\naction = \"deny\"\nsrc-file = \"list\"\nfor = \"10m\"\non = \"eth0\"\n\
        [[rule]]\naction = \"deny\"\nicmp = 8\nrate = \"1k\"\n\
        [[rule]]\naction = \"deny\"\ndst = \"2001:db8::1\"\nproto = 6\nestablished = true\n";
    let yaml = "---\n# all of it\ndefault: deny\npresets:\n- name: syn-flood\n  rate: 50\nrules:\n\
        - action: allow\n  src: [10.0.0.0/8, 2001:db8::5, '::1']\n  proto: tcp\n  port: [22, 8000-8080]\n\
        - {action: deny, src-file: list, for: 10m, on: eth0}\n\
        - action: deny\n  icmp: 8\n  rate: 1k\n\
        - action: deny\n  dst: 2001:db8::1\n  proto: 6\n  established: true\n";
    let (toml, yaml) = (parse(toml).unwrap(), parse(yaml).unwrap());
    assert_eq!(shown(&yaml), shown(&toml));
    let rest = |file: &RuleFile| {
        let rules = file.rules.iter();
        let rest = rules.map(|rule| (rule.on.clone(), rule.lasts));
        (file.default, rest.collect::<Vec<_>>())
    };
    assert_eq!(rest(&yaml), rest(&toml));
    assert_eq!(yaml.default, Some(Action::Deny));
    for nothing in ["---\n", "rules: []\n", "# nothing\n---\n"] {
        assert_eq!(parse(nothing).unwrap(), RuleFile::default(), "{nothing}");
    }
}

#[test]
fn a_mark_in_front_is_no_part_of_the_text() {
    let list = |_: &str| Ok("\u{feff}192.0.2.0/24\n".to_owned());
    for (name, text) in [
        (
            "a.yaml",
            "\u{feff}rules:\n- action: deny\n  src-file: list\n",
        ),
        (
            "a.toml",
            "\u{feff}[[rule]]\naction = \"deny\"\nsrc-file = \"list\"\n",
        ),
        (
            "a",
            "\u{feff}[[rule]]\naction = \"deny\"\nsrc-file = \"list\"\n",
        ),
    ] {
        let file = RuleFile::parse(text, name, list).unwrap();
        assert_eq!(shown(&file), ["deny --src 192.0.2.0/24"], "{name}");
    }
}

/// A file is refused in one line, with the place and the reason.
#[track_caller]
fn told(text: &str, place: &str, words: &str) {
    let error = parse(text).unwrap_err().to_string();
    assert!(
        error.contains("rules in x") && error.contains(place) && error.contains(words),
        "{text}: {error}"
    );
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn what_is_wrong_in_yaml_is_told_with_its_place() {
    for (text, place, words) in [
        ("default: maybe", "line 1, column 10", "maybe"),
        ("x: 1", "line 1", "x"),
        (
            "rules:\n- action: deny\n  src: 10.0.0.1/8",
            "line 3, column 8",
            "10.0.0.0/8",
        ),
        (
            "rules:\n- action: deny\n  src: [10.0.0.0/8,\n    nonsense]",
            "line",
            "nonsense",
        ),
        (
            "rules:\n- action: deny\n  port: 70000",
            "line 3, column 9",
            "70000",
        ),
        ("rules:\n- action: deny\n  ports: 7", "line 3", "ports"),
        ("rules:\n- action: deny\n  src: []", "line 3", "empty"),
        (
            "rules:\n- action: deny\n  src:",
            "line 3",
            "a value or a list",
        ),
        ("rules:\n- src: ::1", "line 2", "action"),
        (
            "rules:\n- action: deny\n  proto: gre\n  port: 7",
            "rule 1",
            "no ports",
        ),
        (
            "rules:\n- action: deny\n- action: allow",
            "rule 2",
            "same packets",
        ),
        (
            "rules:\n- action: deny\n  src-file: gone",
            "rule 1",
            "no such file",
        ),
        (
            "rules:\n- action: deny\n- action: deny\n  port: 1\n  rate: 0",
            "line 5",
            "0",
        ),
        ("rules:\n- action: [", "line", ""),
        ("rules:\n\t- action: deny", "line 2", ""),
        ("rules: &a [*a]", "", ""),
        ("- action: deny", "line 1", "rules and presets"),
    ] {
        told(&format!("{text}\n"), place, words);
    }
}

/// Or the rule would be about more packets than was meant, or have no end.
#[test]
fn a_name_without_a_value_is_wrong() {
    for name in ["src", "src-file", "dst", "proto", "port", "icmp", "syn"]
        .into_iter()
        .chain(["established", "on", "rate", "for"])
    {
        for nothing in ["", " ~", " null"] {
            told(
                &format!("rules:\n- action: deny\n  {name}:{nothing}\n"),
                "line 3",
                "unit value",
            );
        }
    }
    told("default:\n", "line 1", "");
    told(
        "presets:\n- name: syn-flood\n  rate:\n",
        "line 3",
        "unit value",
    );
}

#[test]
fn an_entry_that_is_but_a_word_is_told_what_is_wanted() {
    told(
        "presets: [syn-flood]\n",
        "line 1",
        "the preset's name, as in `name: syn-flood`",
    );
    told("rules: [deny]\n", "line 1", "names and values of a rule");
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (text, place, words) in [
        ("default = \"maybe\"", "line 1, column 11", "maybe"),
        ("x = 1", "line 1, column 1", "x"),
        (
            "[[rule]]\naction = \"deny\"\nsrc = \"10.0.0.1/8\"",
            "line 3, column 7",
            "10.0.0.0/8",
        ),
        (
            "[[rule]]\naction = \"deny\"\nsrc = [\"10.0.0.0/8\",\n  \"nonsense\"]",
            "line 4, column 3",
            "nonsense",
        ),
        (
            "[[rule]]\naction = \"deny\"\nport = 70000",
            "line 3, column 8",
            "70000",
        ),
        (
            "[[rule]]\naction = \"deny\"\nports = 7",
            "line 3, column 1",
            "ports",
        ),
        (
            "[[rule]]\naction = \"deny\"\nsrc = []",
            "line 3, column 7",
            "empty",
        ),
        ("[[rule]]\nsrc = \"::1\"", "line 1", "action"),
        (
            "\n[[rule]]\naction = \"deny\"\nproto = \"gre\"\nport = 7",
            "line 2",
            "no ports",
        ),
        (
            "[[rule]]\naction = \"deny\"\nsrc-file = \"gone\"",
            "line 1",
            "no such file",
        ),
        (
            "[[rule]]\naction = \"deny\"\nsyn = true\nestablished = true",
            "line 1",
            "both",
        ),
        ("[[rule]]\naction = \"deny\"\nrate = 0", "line 3", "0"),
        ("[[preset]]\nname = \"flood\"", "line 2", "syn-flood"),
        ("[[rule]\n", "line 1", ""),
        (
            "[[rule]]\naction = \"deny\"\n[[rule]]\naction = \"allow\"",
            "line 3",
            "same packets",
        ),
    ] {
        told(text, place, words);
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}", at in 0..400usize, cut in 0..8usize) {
        let _ = parse(&text);
        for sound in [SAMPLE, YAML] {
            let mut damaged: Vec<char> = sound.chars().collect();
            let at = at.min(damaged.len());
            let end = (at + cut).min(damaged.len());
            damaged.splice(at..end, text.chars().take(cut));
            let _ = parse(&damaged.into_iter().collect::<String>());
        }
    }
}

const YAML: &str = "default: deny\npreset:\n- {name: syn-flood, rate: 5}\nrule:\n- action: deny\n  src: [10.0.0.0/8]\n  \
    dst: ::1\n  proto: 6\n  port: [1, 2-3]\n  for: 10m\n  on: eth0\n- &a\n  action: allow\n  icmp: 'echo-request'\n";
const SAMPLE: &str = "default = \"deny\"\n[[preset]]\nname = \"syn-flood\"\nrate = 5\n[[rule]]\naction = \"deny\"\n\
    src = [\"10.0.0.0/8\"]\ndst = \"::1\"\nproto = 6\nport = [1, \"2-3\"]\nfor = \"10m\"\non = \"eth0\"\n\
    rate = \"1k\"\n[[rule]]\naction = \"allow\"\nicmp = \"echo-request\"\nsrc-file = \"list\"\n";

/// In time that grows with their number only.
#[test]
fn a_hundred_thousand_rules_in_either_form() {
    let address = |number: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
    let all = |rule: &dyn Fn(u32) -> String| (0..100_000).map(rule).collect::<String>();
    let toml = all(&|number| {
        format!(
            "[[rule]]\naction = \"deny\"\nsrc = \"{}\"\n",
            address(number)
        )
    });
    let yaml = all(&|number| format!("- {{action: deny, src: {}}}\n", address(number)));
    for text in [toml, format!("rules:\n{yaml}")] {
        let rules = parse(&text).unwrap().rules;
        assert_eq!(rules.len(), 100_000);
    }
}

#[test]
fn an_empty_file_is_an_empty_set() {
    assert_eq!(parse("").unwrap(), RuleFile::default());
}
