//! The guard's rule files and the values in them, from any text.

use trawl_guard::compile::compile;
use trawl_guard::file::RuleFile;
use trawl_guard::rule::Preset;
use trawl_guard::rule::{IcmpType, Ports, TcpState};
use trawl_guard::values::MacPrefix;
use trawl_guard::{Draft, Match, Prefix, RuleSet, values};

/// Maximum number of rules to compile. More would be too slow for a fuzzer.
const MAX_COMPILED: usize = 200;
const CPUS: u32 = 2;

/// Parses a rule file. A list that the file may name follows after a zero byte.
pub fn rule_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (rules, list) = text.split_once('\0').unwrap_or((text, ""));
    rules.lines().for_each(values);
    if let Ok(file) = RuleFile::parse(rules, "rules", |_| Ok(list.to_owned())) {
        compile_rules(file);
    }
}

/// Compiles the rules of a file, each of which parses again from its displayed form.
fn compile_rules(file: RuleFile) {
    let drafts: Vec<Draft> = file.rules.into_iter().map(|rule| rule.draft).collect();
    for draft in &drafts {
        let shown = draft.what.to_string();
        assert_eq!(parse_options(&shown), draft.what, "{shown}");
    }
    if drafts.len() <= MAX_COMPILED {
        let mut set = RuleSet::default();
        set.replace_all(drafts);
        compile(&set, CPUS, 0).expect("so few rules fit");
    }
}

/// Parses a text as each kind of value. An accepted value parses again from its displayed form.
fn values(word: &str) {
    let _ = values::rate(word);
    if let Ok(time) = values::duration(word) {
        assert!(!time.is_zero(), "{word}");
        let _ = values::short_duration(time);
    }
    if let Ok(prefix) = word.parse::<Prefix>() {
        assert_eq!(prefix.to_string().parse(), Ok(prefix));
    }
    if let Ok(ports) = word.parse::<Ports>() {
        assert_eq!(ports.to_string().parse(), Ok(ports));
    }
    if let Ok(mac) = word.parse::<MacPrefix>() {
        assert_eq!(mac.to_string().parse(), Ok(mac));
    }
    if let Ok(preset) = word.parse::<Preset>() {
        assert_eq!(preset.name(), word);
    }
    if let Ok(protocol) = values::protocol(word) {
        let name = values::protocol_name(protocol);
        assert_eq!(values::protocol(&name), Ok(protocol));
    }
    if let Ok((v4, v6)) = values::icmp_type(word) {
        let name = values::icmp_type_name(v4, v6);
        assert_eq!(values::icmp_type(&name), Ok((v4, v6)));
    }
}

/// Parses the options in the displayed form of a rule.
fn parse_options(shown: &str) -> Match {
    let mut what = Match::default();
    let mut words = shown.split_whitespace();
    while let Some(option) = words.next() {
        let mut value = || words.next().expect("the option has a value");
        match option {
            "--src" => what.source = value().parse().ok(),
            "--dst" => what.destination = value().parse().ok(),
            "--proto" => what.protocol = values::protocol(value()).ok(),
            "--port" => what.ports = value().parse().ok(),
            "--src-port" => what.source_ports = value().parse().ok(),
            "--src-mac" => what.source_mac = value().parse().ok(),
            "--dst-mac" => what.destination_mac = value().parse().ok(),
            "--icmp" => {
                let icmp = values::icmp_type(value()).ok();
                what.icmp = icmp.map(|(v4, v6)| IcmpType { v4, v6 });
            }
            "--syn" => what.tcp = Some(TcpState::Syn),
            "--established" => what.tcp = Some(TcpState::Established),
            other => panic!("{other} in{shown}"),
        }
    }
    what.complete().expect("the options of a valid rule")
}
