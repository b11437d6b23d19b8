//! `trawl lab lesson`: pages of text and commands, shown as they are, or run in namespaces of their own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use trawl_sys::process::{self, own_binary};
use trawl_sys::{Error, Result, files::text_file};

use crate::terminal::write_out;

/// Reads commands from standard input, one in a line, and ends each one's output with a line of [`END`] and its status.
const SHELL: &str = include_str!("lesson.sh");
/// Begins the line after a command's output.
const END: u8 = 0x1e;
const WHAT: &str = "cannot run the lesson";

/// A page of the program's own.
#[derive(Debug)]
struct Lesson {
    name: &'static str,
    page: &'static str,
}

macro_rules! lessons {
    ($($name:literal),* $(,)?) => {
        &[$(Lesson { name: $name, page: include_str!(concat!("../../../../docs/lessons/", $name, ".md")) }),*]
    };
}

const LESSONS: &[Lesson] = lessons![
    "first-capture",
    "verdicts",
    "filter",
    "hooks",
    "why",
    "follow",
    "processes",
    "flood",
    "loss",
    "incident",
];

/// Shows a lesson with its commands, or runs it in network namespaces of its own
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The lesson's number or name, or a page FILE.md; without it, the lessons are listed
    #[arg(value_name = "LESSON", add = crate::completion::lessons())]
    lesson: Option<String>,
    /// Run the commands, and show their output here; the namespaces disappear at the end
    #[arg(long, requires = "lesson")]
    run: bool,
}

/// Names of all lessons, in their order.
pub fn names() -> impl Iterator<Item = &'static str> {
    LESSONS.iter().map(|lesson| lesson.name)
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let Some(lesson) = &args.lesson else {
        write_out(&list())?;
        return Ok(ExitCode::SUCCESS);
    };
    let page = find(lesson)?;
    if !args.run {
        write_out(&page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let missing: Vec<&str> = needs(&page).filter(|program| !is_installed(program)).collect();
    if !missing.is_empty() {
        return Err(Error::failed(WHAT, format!("it needs {}, not found in PATH", missing.join(", "))));
    }
    perform(&page)
}

fn list() -> String {
    let line = |(at, lesson): (usize, &Lesson)| format!("{:>2}  {:<14}  {}\n", at + 1, lesson.name, title(lesson.page));
    let lines: String = LESSONS.iter().enumerate().map(line).collect();
    format!("{lines}show one: trawl lab lesson 1\nrun it:   trawl lab lesson 1 --run\n")
}

/// Returns the heading of a page, without its number.
fn title(page: &str) -> &str {
    let heading = page.lines().next().unwrap_or_default().trim_start_matches("# ");
    heading.split_once(": ").map_or(heading, |(_, title)| title)
}

/// Returns the page of a lesson, or of a file.
fn find(lesson: &str) -> Result<String> {
    if lesson.ends_with(".md") {
        return text_file::read(Path::new(lesson));
    }
    let by_number = lesson.parse().ok().and_then(|number: usize| LESSONS.get(number.checked_sub(1)?));
    let found = by_number.or_else(|| LESSONS.iter().find(|one| one.name == lesson));
    match found {
        Some(lesson) => Ok(lesson.page.to_owned()),
        None => Err(Error::usage(
            format!("no lesson {lesson}"),
            format!("the lessons are 1 to {}: {}", LESSONS.len(), names().collect::<Vec<_>>().join(", ")),
        )),
    }
}

/// Returns the programs that the page's line `Needs: …` names.
fn needs(page: &str) -> impl Iterator<Item = &str> {
    let line = page.lines().find_map(|line| line.strip_prefix("Needs: "));
    line.into_iter().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Returns true for a program in PATH. Debian's packages install clang as `clang-19`, which the lesson's shell finds.
fn is_installed(program: &str) -> bool {
    const VERSIONS: std::ops::Range<u32> = 12..40;
    process::is_program(program)
        || program == "clang" && VERSIONS.map(|version| format!("clang-{version}")).any(|one| process::is_program(&one))
}

/// A part of a page.
#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    /// Lines that are shown as they are.
    Text(&'a str),
    /// A file that the commands use, with its name.
    File(&'a str, String),
    /// A command, in several lines if all but the last end with a backslash.
    Command(String),
}

/// Returns the parts of a page, without the output of its commands.
fn parts(page: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut fence: Option<&str> = None;
    let mut file: Option<(&str, String)> = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        match fence {
            None => {
                fence = line.strip_prefix("```");
                parts.push(Part::Text(line));
            }
            Some(_) if line == "```" => {
                fence = None;
                parts.extend(file.take().map(|(name, text)| Part::File(name, text)));
                parts.push(Part::Text(line));
            }
            Some("console") => {
                let Some(first) = line.strip_prefix("# ") else { continue };
                let mut command = first.to_owned();
                while command.ends_with('\\')
                    && let Some(next) = lines.next()
                {
                    command = format!("{command}\n{next}");
                }
                parts.push(Part::Command(command));
            }
            Some(language) => {
                if file.is_none() {
                    file = name_of_file(language, line).map(|name| (name, String::new()));
                }
                if let Some((_, text)) = &mut file {
                    text.push_str(line);
                    text.push('\n');
                }
                parts.push(Part::Text(line));
            }
        }
    }
    parts
}

/// Returns the name in the first line of a file of a language: a comment with only this name.
fn name_of_file<'a>(language: &str, line: &'a str) -> Option<&'a str> {
    let name = match language {
        "c" => line.strip_prefix("/* ")?.strip_suffix(" */")?,
        "toml" | "python" => line.strip_prefix("# ")?,
        _ => return None,
    };
    (!name.contains([' ', '/'])).then_some(name)
}

/// Runs the commands of a page; prints the page with their output.
fn perform(page: &str) -> Result<ExitCode> {
    let mut shell = Shell::start()?;
    let mut failed = None;
    for part in parts(page) {
        match part {
            Part::Text(line) => write_out(&format!("{line}\n"))?,
            Part::File(name, text) => shell.write_file(name, &text)?,
            Part::Command(command) => {
                write_out(&format!("# {command}\n"))?;
                let status = shell.run(&command.replace("\\\n", ""))?;
                if status != "0" {
                    failed = Some((command, status));
                    break;
                }
            }
        }
    }
    shell.end()?;
    match failed {
        None => Ok(ExitCode::SUCCESS),
        Some((command, status)) => Err(Error::failed(WHAT, format!("status {status} of: {command}"))),
    }
}

/// A shell in mount and network namespaces of its own. It ends its processes when its standard input ends, or with the
/// signal that it gets if this process is killed.
struct Shell {
    child: Child,
    commands: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start() -> Result<Self> {
        let trawl = own_binary()?;
        let directory = trawl.parent().map(|one| one.display().to_string()).unwrap_or_default();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "unshare", "--mount", "--net", "--propagation", "private"]);
        command.args(["bash", "-c", SHELL]);
        command.env("PATH", format!("{directory}:{path}")).env("LC_ALL", "C.UTF-8").env("TERM", "dumb");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Error::os(format!("{WHAT}: setpriv"), e))?;
        let taken = child.stdin.take().zip(child.stdout.take());
        let Some((commands, output)) = taken else {
            return Err(Error::failed(WHAT, "its shell has no pipes"));
        };
        let mut shell = Self { child, commands, output: BufReader::new(output) };
        match shell.output_of_one()?.as_str() {
            "0" => Ok(shell),
            _ => Err(Error::failed(WHAT, "its namespaces cannot be made; it requires root")),
        }
    }

    fn send(&mut self, line: &str) -> Result<()> {
        writeln!(self.commands, "{line}").map_err(|e| Error::os(WHAT, e))
    }

    /// Runs a command, and prints its output; returns its status.
    fn run(&mut self, command: &str) -> Result<String> {
        self.send(command)?;
        self.output_of_one()
    }

    fn write_file(&mut self, name: &str, text: &str) -> Result<()> {
        let quoted = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n").replace('\t', "\\t");
        match self.run(&format!("printf %s $'{quoted}' > {name}"))?.as_str() {
            "0" => Ok(()),
            status => Err(Error::failed(WHAT, format!("status {status} of writing {name}"))),
        }
    }

    /// Prints the lines up to the end of the command's output; returns its status, which is empty if the shell ended.
    fn output_of_one(&mut self) -> Result<String> {
        loop {
            let mut line = Vec::new();
            let length = self.output.read_until(b'\n', &mut line).map_err(|e| Error::os(WHAT, e))?;
            let end = line.iter().position(|byte| *byte == END);
            let text = String::from_utf8_lossy(&line[..end.unwrap_or(line.len())]).into_owned();
            if !text.is_empty() {
                write_out(&format!("{}\n", text.trim_end()))?;
            }
            match end {
                Some(end) => return Ok(String::from_utf8_lossy(&line[end + 1..]).trim().to_owned()),
                None if length == 0 => return Ok(String::new()),
                None => {}
            }
        }
    }

    fn end(self) -> Result<()> {
        let Self { mut child, commands, output } = self;
        drop((commands, output));
        child.wait().map(drop).map_err(|e| Error::os(WHAT, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_text_files_and_commands_without_their_output() {
        let page =
            "# Page\nNeeds: `nft`, `curl`.\n```toml\n# lab.toml\nx = 1\n```\n```console\n# trawl lab up\nold\n```\n";
        let text = Part::Text;
        assert_eq!(
            parts(page),
            [
                text("# Page"),
                text("Needs: `nft`, `curl`."),
                text("```toml"),
                text("# lab.toml"),
                text("x = 1"),
                Part::File("lab.toml", "# lab.toml\nx = 1\n".to_owned()),
                text("```"),
                text("```console"),
                Part::Command("trawl lab up".to_owned()),
                text("```"),
            ]
        );
        assert_eq!(needs(page).collect::<Vec<_>>(), ["nft", "curl"]);
    }

    #[test]
    fn command_continues_after_a_backslash() {
        let page = "```console\n# echo \\\n    one\none\n```\n";
        assert_eq!(parts(page)[1], Part::Command("echo \\\n    one".to_owned()));
    }

    #[test]
    fn numbers_and_names_find_the_same_page() {
        for (at, name) in names().enumerate() {
            let page = find(name).expect("a lesson");
            assert_eq!(find(&(at + 1).to_string()).expect("a lesson"), page);
            assert!(page.starts_with(&format!("# Lesson {}: ", at + 1)), "{name}");
            assert!(parts(&page).iter().any(|part| matches!(part, Part::Command(_))), "{name} has no commands");
        }
        assert!(find("0").is_err() && find("eleven").is_err());
    }
}
