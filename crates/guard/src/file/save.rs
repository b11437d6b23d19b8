//! The rules that hold, written as a file that can be applied.

use std::fmt::Write as _;
use std::time::Duration;

use trawl_sys::clock;

use crate::names;
use crate::rule::{Action, Rule, TcpState};
use crate::set::RuleSet;

/// The file. Rules with a time get what is left of it.
pub fn text_of(set: &RuleSet) -> String {
    let mut text = "# Rules of trawl guard: trawl guard apply FILE\n".to_owned();
    let mut actions = set.defaults.iter().map(|default| default.action);
    let first = actions.next();
    match first {
        Some(action) if actions.all(|other| other == action) => {
            let _ = writeln!(text, "default = \"{}\"", action.name());
        }
        _ => {
            for default in &set.defaults {
                let _ = writeln!(
                    text,
                    "\n[[interface]]\nname = {}\ndefault = \"{}\"",
                    quoted(&default.on.name),
                    default.action.name()
                );
            }
        }
    }
    for rule in &set.rules {
        write_rule(&mut text, rule);
    }
    text
}

fn write_rule(text: &mut String, rule: &Rule) {
    let what = &rule.what;
    let _ = writeln!(text, "\n[[rule]]\naction = \"{}\"", rule.action.name());
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{name} = {value}");
        }
    };
    line("src", what.source.map(|one| quoted(&one.to_string())));
    line("dst", what.destination.map(|one| quoted(&one.to_string())));
    line(
        "proto",
        what.protocol.map(|one| quoted(&names::protocol_name(one))),
    );
    line("port", what.ports.map(|one| quoted(&one.to_string())));
    line(
        "src-port",
        what.source_ports.map(|one| quoted(&one.to_string())),
    );
    line(
        "src-mac",
        what.source_mac.map(|one| quoted(&one.to_string())),
    );
    line(
        "dst-mac",
        what.destination_mac.map(|one| quoted(&one.to_string())),
    );
    line(
        "icmp",
        what.icmp
            .map(|one| quoted(&names::icmp_type_name(one.v4, one.v6))),
    );
    let is = |state| (what.tcp == Some(state)).then(|| "true".to_owned());
    line("syn", is(TcpState::Syn));
    line("established", is(TcpState::Established));
    line("on", what.on.as_ref().map(|on| quoted(&on.name)));
    line("rate", rule.rate.map(|rate| rate.to_string()));
    let left = |end: u64| Duration::from_nanos(end.saturating_sub(clock::monotonic()));
    line(
        "for",
        rule.expires
            .map(|end| quoted(&format!("{}s", left(end).as_secs().max(1)))),
    );
    let is_all = rule.action == Action::Deny && rule.rate.is_none() && what.is_about_everything();
    line("all", is_all.then(|| "true".to_owned()));
}

/// A text in TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(letter));
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
