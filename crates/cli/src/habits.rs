//! Command lines of other tools, and the trawl command to type instead.

use std::borrow::Cow;
use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use strsim::osa_distance;
use trawl_sys::netlink::Netlink;
use trawl_sys::words::word;

/// Returns true for the name of an interface in this namespace or, as NAMESPACE:NAME, in another.
pub fn is_interface(text: &str) -> bool {
    if let Some((_, name)) = text.split_once(':') {
        return !name.is_empty() && trawl_capture::capture_site::CaptureSite::find(text, None).is_ok();
    }
    Netlink::current().is_ok_and(|mut netlink| netlink.link(text).is_ok())
}

/// Adds the command to type to an error about a command line.
pub fn improve(error: &mut clap::Error, command: &Command, words: &[OsString]) {
    match error.kind() {
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => {
            let typed: Vec<&str> = words.iter().skip(1).filter_map(|word| word.to_str()).collect();
            if let Some(instead) = instead_of(&typed, command, &is_interface) {
                let tip = format!("type: {instead}").into();
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
                error.remove(ContextKind::SuggestedSubcommand);
                error.remove(ContextKind::SuggestedArg);
            }
        }
        ErrorKind::InvalidValue => {
            let typed = match error.get(ContextKind::InvalidValue) {
                Some(ContextValue::String(typed)) => typed.clone(),
                _ => return,
            };
            let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue) else {
                return;
            };
            // clap's own measure misses exchanged letters, and suggests values that are far off.
            let distances = valid.iter().map(|value| (osa_distance(&typed, value), value));
            match distances.min() {
                Some((0..=2, value)) => {
                    let value = ContextValue::String(value.clone());
                    error.insert(ContextKind::SuggestedValue, value);
                }
                _ => {
                    error.remove(ContextKind::SuggestedValue);
                }
            }
        }
        ErrorKind::ValueValidation => {
            let text = error.render().to_string();
            let plain = INTERNAL.iter().fold(text.clone(), |text, (phrase, instead)| text.replace(phrase, instead));
            if plain != text {
                let plain = plain.strip_prefix("error: ").unwrap_or(&plain).to_owned();
                *error = clap::Error::raw(ErrorKind::ValueValidation, plain);
            }
        }
        _ => {}
    }
}

/// Messages of the number parser, and their meaning for a person.
const INTERNAL: [(&str, &str); 5] = [
    ("invalid digit found in string", "it is not a whole number"),
    ("cannot parse integer from empty string", "it is empty"),
    ("cannot parse float from empty string", "it is empty"),
    ("invalid float literal", "it is not a number"),
    ("number too large to fit in target type", "the number is too large"),
];

/// Returns the command to type for a line in tcpdump's syntax, or with an interface instead of a command.
fn instead_of(typed: &[&str], command: &Command, is_interface: &dyn Fn(&str) -> bool) -> Option<String> {
    let first = *typed.first()?;
    if command.find_subcommand(first).is_some() {
        return None;
    }
    let quoted: Vec<Cow<'_, str>> = typed.iter().map(|one| word(one)).collect();
    let rest = quoted.join(" ");
    if is_interface(first) {
        return Some(format!("trawl capture -i {rest}"));
    }
    if !first.starts_with('-') {
        return None;
    }
    let reads = typed.iter().position(|word| *word == "-r" || word.starts_with("--read-file"));
    let Some(at) = reads else {
        return Some(format!("trawl capture {rest}"));
    };
    let mut others = quoted;
    others.remove(at);
    Some(format!("trawl read {}", others.join(" ")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn command_lines_of_other_tools_name_the_command_to_type() {
        let is_interface = |name: &str| name == "eth0";
        let command = Cli::command();
        for (typed, instead) in [
            ("-i eth0 port 80", Some("trawl capture -i eth0 port 80")),
            ("eth0", Some("trawl capture -i eth0")),
            ("eth0 port 80", Some("trawl capture -i eth0 port 80")),
            ("-nn -r file.pcap tcp", Some("trawl read -nn file.pcap tcp")),
            ("-r file.pcap", Some("trawl read file.pcap")),
            ("captrue -i eth0", None),
            ("capture -i eth0", None),
        ] {
            let words: Vec<&str> = typed.split(' ').collect();
            let found = instead_of(&words, &command, &is_interface);
            assert_eq!(found.as_deref(), instead, "{typed}");
        }
        let words = ["eth0", "tcp[13] & 2"];
        let found = instead_of(&words, &command, &is_interface);
        assert_eq!(found.as_deref(), Some("trawl capture -i eth0 'tcp[13] & 2'"));
    }

    #[test]
    fn numbers_are_refused_in_plain_english() {
        for (value, reason) in [("x", "not a whole number"), ("", "empty"), ("99999999999999999999", "too large")] {
            let words = ["trawl", "capture", "-i", "eth0", "-c", value].map(OsString::from);
            let command = Cli::command();
            let mut error = command.clone().try_get_matches_from(&words).expect_err("no number");
            improve(&mut error, &command, &words);
            let text = error.render().to_string();
            assert!(text.contains(reason) && text.contains("--count"), "{text}");
            assert!(!text.contains("digit") && !text.contains("integer"), "{text}");
        }
    }
}
