//! What `-h` shows of the commands with many options: those that most uses need. `--help` shows all.

use clap::{Arg, Command};

/// Options by their long names, or by their letters where they have none; arguments without either are always shown.
const SHOWN: [(&str, &[&str]); 5] = [
    (
        "trawl capture",
        &[
            "interface",
            "tap",
            "direction",
            "at",
            "verdict",
            "write",
            "snapshot-length",
            "count",
            "duration",
            "C",
            "W",
            "compress",
            "print",
            "n",
            "v",
            "json",
            "filter-file",
            "trigger",
            "on",
            "store",
        ],
    ),
    (
        "trawl read",
        &[
            "write",
            "count",
            "follow",
            "verdict",
            "at",
            "interface",
            "from",
            "to",
            "json",
            "q",
            "e",
            "n",
            "t",
            "x",
            "v",
            "compress",
        ],
    ),
    (
        "trawl query",
        &[
            "filter",
            "store",
            "from",
            "to",
            "host",
            "interface",
            "packets",
            "count",
            "csv",
            "json",
        ],
    ),
    (
        "trawl xdp load",
        &[
            "prog",
            "mode",
            "prio",
            "on",
            "replace",
            "keep-maps",
            "yes",
            "confirm",
            "tappable",
            "netns",
            "to",
        ],
    ),
    (
        "trawl gen replay",
        &[
            "interface",
            "speed",
            "loop",
            "merge",
            "src-ip",
            "dst-ip",
            "map-ip",
            "vlan",
            "rate",
            "count",
            "duration",
            "json",
        ],
    ),
];

/// Leaves the other options of the command with this path out of its short help.
pub fn shorten(command: Command, path: &str) -> Command {
    let Some((_, shown)) = SHOWN.iter().find(|(of, _)| *of == path) else {
        return command;
    };
    command.mut_args(|argument| {
        let is_shown = name(&argument).is_none_or(|name| shown.contains(&name.as_str()));
        argument.hide_short_help(!is_shown)
    })
}

fn name(argument: &Arg) -> Option<String> {
    let letter = || argument.get_short().map(String::from);
    argument.get_long().map(str::to_owned).or_else(letter)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    fn at(path: &str) -> Command {
        let mut command = Cli::command();
        for name in path.split(' ').skip(1) {
            command = command.find_subcommand(name).expect(path).clone();
        }
        command
    }

    #[test]
    fn what_is_shown_exists_and_fits_a_screen() {
        for (path, shown) in SHOWN {
            let command = at(path);
            let names: Vec<String> = command.get_arguments().filter_map(name).collect();
            for one in shown {
                assert!(names.iter().any(|name| name == one), "{path}: {one}");
            }
            let text = shorten(command, path).render_help().to_string();
            assert!(text.lines().count() <= 64, "{path}:\n{text}");
        }
    }
}
