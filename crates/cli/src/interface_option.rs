//! Accepts `-i IF` wherever the interface is an argument.

use std::ffi::OsString;

use clap::Command;

/// The words of a command line, with the interfaces that -i names as the first arguments where the command has no -i.
pub fn as_argument(command: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let (mut leaf, mut at) = (command, 1);
    while let Some(below) = (words.get(at)).and_then(|word| leaf.find_subcommand(word)) {
        (leaf, at) = (below, at + 1);
    }
    let has_option = |option: &clap::Arg| {
        option.get_short() == Some('i') || option.get_long() == Some("interface")
    };
    let is_interface = |argument: &clap::Arg| {
        let names = argument.get_value_names().unwrap_or_default();
        names.first().is_some_and(|name| name == "IF")
    };
    if leaf.get_arguments().any(has_option) || !leaf.get_positionals().any(is_interface) {
        return words;
    }
    let mut words = words.into_iter();
    let mut all: Vec<OsString> = words.by_ref().take(at).collect();
    let mut rest = Vec::new();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "--" {
            rest.push(word);
            rest.extend(words.by_ref());
        } else if text == "-i" || text == "--interface" {
            all.push(words.next().unwrap_or(word));
        } else if let Some(name) =
            (text.strip_prefix("--interface=")).or_else(|| text.strip_prefix("-i"))
        {
            all.push(name.into());
        } else {
            rest.push(word);
        }
    }
    all.extend(rest);
    all
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn an_interface_is_an_option_or_an_argument() {
        let command = Cli::command();
        for (typed, meant) in [
            ("xdp unload -i a:b", "xdp unload a:b"),
            ("xdp unload 17 -i a:b --yes", "xdp unload a:b 17 --yes"),
            (
                "guard load --default deny -ia -i b",
                "guard load a b --default deny",
            ),
            ("route load --interface=a --interface b", "route load a b"),
            ("xdp unload a -- -i", "xdp unload a -- -i"),
            ("capture -i a udp", "capture -i a udp"),
            ("xdp load -i a pass", "xdp load -i a pass"),
            ("lab exec lab a ip -i", "lab exec lab a ip -i"),
            ("xdp unload -i", "xdp unload -i"),
        ] {
            let words = |text: &str| -> Vec<OsString> {
                ["trawl"]
                    .into_iter()
                    .chain(text.split(' '))
                    .map(OsString::from)
                    .collect()
            };
            assert_eq!(as_argument(&command, words(typed)), words(meant), "{typed}");
        }
    }
}
