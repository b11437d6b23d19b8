//! Runs every command in README and guide as written, and compares what it prints with the lines below it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use trawl_tests::{binary, programs, root_or_skip, skip};

/// Commands that need more than a test's machine has, with the reason.
const NOT_RUN: [(&str, &str); 18] = [
    ("trawl fleet", "it needs a NATS server; tests of its own start one"),
    ("trawl store serve", "it needs a store; tests of its own serve some"),
    ("--hosts ", "it needs hosts that keep packets"),
    ("--incident ", "it needs an incident; tests of its own make some"),
    ("--tap dpdk", "it needs a DPDK application; tests of its own start one"),
    ("trawl balance check", "it fails where no backend answers, and none is there"),
    ("--cgroup ", "it needs a service; tests make cgroups"),
    ("--container ", "it needs a container"),
    ("--pod ", "it needs a container runtime; tests of its own have a script for it"),
    ("--program all", "it requires tracing programs"),
    ("--program filter", "it requires tracing programs"),
    ("wireshark", "it opens a window"),
    ("client-ca=", "it needs certificates; a test of its own makes them"),
    ("https://", "it asks a server on the Internet"),
    ("--on root@", "it needs other hosts; tests of its own capture at two"),
    ("make ", "it runs these tests"),
    ("trawl demo", "a test of its own runs it"),
    ("trawl bench", "it measures for minutes; tests of their own run experiments"),
];

/// Words of lines that are not compared, with the reason.
const CHANGING: [(&str, &str); 2] =
    [("…", "the line is shortened"), ("        20000          0", "the number of a stream is hexadecimal")];

/// Commands whose output is not compared, with the reason.
const NOT_COMPARED: [(&str, &str); 3] = [
    ("trawl why --netns pb", "nothing is dropped there now; tests of why compare its tables"),
    ("--tap drop -i pb:b0", "nothing is dropped there now; tests of this tap compare its lines"),
    ("trawl follow -c 1", "no such packet is sent now; tests of follow compare its lines"),
];

/// The commands of a fenced block, and the lines that they print.
#[derive(Default)]
struct Block {
    commands: Vec<String>,
    output: Vec<String>,
}

/// Returns the fenced blocks, with the lines that call trawl.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut block: Option<Vec<String>> = None;
    for line in text.lines() {
        if line.starts_with("```") {
            match block.take() {
                Some(lines) => blocks.push(lines),
                None => block = Some(Vec::new()),
            }
        } else if let Some(lines) = &mut block {
            lines.push(line.to_owned());
        }
    }
    blocks.into_iter().map(commands_and_output).collect()
}

fn commands_and_output(lines: Vec<String>) -> Block {
    const INTERRUPTED: &str = "^C";
    // In a block with prompts, all other lines are output.
    if !lines.iter().any(|line| line.starts_with("# trawl")) {
        let is_command = |line: &String| line.starts_with("trawl ") && !line.ends_with(':');
        return Block { commands: lines.into_iter().filter(is_command).collect(), output: Vec::new() };
    }
    let mut block = Block::default();
    for line in lines {
        match line.strip_prefix("# ") {
            Some(command) => block.commands.push(command.to_owned()),
            None if line.trim().is_empty() || line == INTERRUPTED => {}
            None => block.output.push(line),
        }
    }
    block
}

/// Units of quantities, which differ between machines like the numbers.
const UNITS: [&str; 15] =
    ["ns", "us", "ms", "s", "pps", "kpps", "Mpps", "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "KiB", "MiB", "GiB", "MB/s"];

/// Returns a word with `#` for each number, decimal or after 0x, also with full stops and colons between them.
fn numbers_replaced(word: &str) -> String {
    let mut shape = String::new();
    let mut rest = word;
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_digit()) {
        shape.push_str(&rest[..start]);
        shape.push('#');
        let number = &rest[start..];
        let end = number.find(|letter: char| !letter.is_ascii_digit() && !".:".contains(letter));
        let number = &number[..end.unwrap_or(number.len())];
        let number = number.trim_end_matches(['.', ':']);
        rest = &rest[start + number.len()..];
        if let Some(digits) = rest.strip_prefix('x').filter(|_| number == "0") {
            rest = digits.trim_start_matches(|letter: char| letter.is_ascii_hexdigit());
        }
    }
    shape + rest
}

/// Returns the words of a line, with `#` for numbers, addresses and times, and `unit` for units after them.
pub(crate) fn shape(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let mut shape = numbers_replaced(word);
        let bare = word.trim_matches(['(', ')', ',', ';']);
        let follows_number = words.last().is_some_and(|last| last.ends_with('#'));
        if follows_number && UNITS.contains(&bare) {
            shape = shape.replace(bare, "unit");
        }
        words.push(shape);
    }
    words
}

/// Returns the TOML and C blocks of the guide, by the name in their first line: `# mix.toml` or `/* filter.c */`.
fn files(text: &str) -> Vec<(String, String)> {
    let block = |part: &str, comment: &str| {
        let body = part.split("```").next().unwrap_or_default();
        let name = body.lines().next()?.strip_prefix(comment)?;
        let name = name.split_whitespace().next()?;
        Some((name.to_owned(), body.to_owned()))
    };
    let kinds = [("```toml\n", "# "), ("```c\n", "/* ")].into_iter();
    kinds.flat_map(|(fence, comment)| text.split(fence).skip(1).filter_map(move |part| block(part, comment))).collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).expect("a part of the source")
}

/// Returns a pcap file with four ARP requests, a millisecond apart.
fn recording() -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.resize(60, 0);
    for number in 0..4u32 {
        let length = frame.len() as u32;
        for word in [1_700_000_000, number * 1000, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&frame);
    }
    file
}

/// A directory with the files that the commands name.
struct Desk(PathBuf);

impl Desk {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trawl-docs-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory of the test's own");
        let objects = [
            ("filter.o", "filter"),
            ("first.o", "state"),
            ("second.o", "filter"),
            ("old.o", "filter"),
            ("new.o", "filter"),
        ];
        for (file, object) in objects {
            std::fs::write(path.join(file), programs::object(object)).expect("an object file");
        }
        for (file, body) in files(&read("docs/GUIDE.md")) {
            std::fs::write(path.join(file), body).expect("a file of the guide");
        }
        std::fs::write(path.join("key"), "0123456789abcdef".repeat(4)).expect("a key");
        std::fs::write(path.join("blocklist.txt"), "203.0.113.0/24\n").expect("a list");
        for file in [
            "yesterday.pcapng",
            "small.pcap",
            "a.pcap",
            "b.pcap",
            "left.pcap",
            "right.pcap",
            "out.pcapng",
            "a.pcapng",
            "b.pcapng",
        ] {
            std::fs::write(path.join(file), recording()).expect("a recording");
        }
        // Earlier results of `trawl xdp test --save differences`.
        std::fs::create_dir(path.join("differences")).expect("a directory");
        std::fs::write(path.join("differences/1-pass-drop.pcapng"), recording()).expect("a recording");
        std::os::unix::fs::symlink(binary::path(), path.join("trawl")).expect("the binary");
        // Debian's package installs no other name. A compiler called clang is found later in PATH.
        std::os::unix::fs::symlink("/usr/bin/clang-19", path.join("clang")).expect("a link");
        Self(path)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(document: &str, part: usize, parts: usize) {
    if !root_or_skip() {
        return;
    }
    let all = blocks(&read(document));
    assert!(all.iter().any(|block| !block.commands.is_empty()), "{document} has no commands");
    let mut failures = String::new();
    for (number, block) in all.into_iter().enumerate() {
        if number % parts != part || block.commands.is_empty() {
            continue;
        }
        let (left_out, run): (Vec<String>, Vec<String>) =
            block.commands.into_iter().partition(|line| NOT_RUN.iter().any(|(words, _)| line.contains(words)));
        // The output is compared only if all commands of the block run, because any of them may print a line.
        let is_compared = |line: &String| !NOT_COMPARED.iter().any(|(words, _)| line.contains(words));
        let expected = if left_out.is_empty() && run.iter().all(is_compared) { block.output } else { Vec::new() };
        for line in left_out {
            let reason = NOT_RUN.iter().find(|(words, _)| line.contains(words));
            skip(&format!("{line}: {}", reason.map_or("", |(_, why)| why)));
        }
        let name = document.rsplit('/').next().unwrap_or(document);
        failures += &run_block(&format!("{name}-{number}"), &run, &expected);
    }
    assert!(failures.is_empty(), "{document}:\n{failures}");
}

/// Returns the failures of a block's commands, and the lines that they should print and do not.
fn run_block(name: &str, lines: &[String], expected: &[String]) -> String {
    let desk = Desk::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("unshare")
        .args(["--mount", "--net", "--propagation", "private", "bash"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/documentation.sh"))
        .current_dir(&desk.0)
        .env("PATH", format!("{}:{path}", desk.0.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare runs");
    let mut commands = lines.join("\n");
    commands.push('\n');
    let mut pipe = shell.stdin.take().expect("a pipe");
    pipe.write_all(commands.as_bytes()).expect("the commands");
    drop(pipe);
    let output = shell.wait_with_output().expect("the shell ends");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let Some((failed, printed)) = report.split_once("OUTPUT\n") else {
        return report + &String::from_utf8_lossy(&output.stderr);
    };
    let shapes: Vec<Vec<String>> = printed.lines().map(shape).collect();
    let is_missing = |line: &&String| !shapes.contains(&shape(line)) && !is_changing(line);
    let missing: Vec<&String> = expected.iter().filter(is_missing).collect();
    if missing.is_empty() {
        return failed.to_owned();
    }
    format!("{failed}{name}: not printed: {missing:#?}, but:\n{printed}")
}

/// Returns true if a line of the documentation depends on more than its command.
fn is_changing(line: &str) -> bool {
    CHANGING.iter().any(|(words, _)| line.contains(words))
}

/// The comparison finds a sample that differs from trawl's output by its words.
#[test]
fn samples_differ_by_words_and_not_by_figures() {
    assert_eq!(shape("id=0x0001, seq=1/256"), shape("id=0x74eb, seq=41/10496"));
    let sample = "web:eth0: 1000 packets in 2.004 s; 498.953 kpps (335 Mbit/s)";
    assert_eq!(shape(sample), shape("web:eth1: 7 packets in 900 ms; 1 Mpps (2.5 Gbit/s)"));
    assert_ne!(shape(sample), shape("web:eth0: 1000 frames in 2.004 s; 498.953 kpps (335 Mbit/s)"));
    let block = "# trawl taps\nxdp available\n^C\n# ls\nfile";
    let block = commands_and_output(block.lines().map(str::to_owned).collect());
    assert_eq!(block.commands, ["trawl taps", "ls"]);
    assert_eq!(block.output, ["xdp available", "file"]);
    if root_or_skip() {
        let failures = run_block("sample", &["trawl -V".to_owned()], &["trawl cries".to_owned()]);
        assert!(failures.contains("not printed"), "{failures}");
    }
}

#[test]
fn commands_of_the_readme_run() {
    run("README.md", 0, 1);
}

#[test]
fn commands_of_the_guide_run_1() {
    run("docs/GUIDE.md", 0, 3);
}

#[test]
fn commands_of_the_guide_run_2() {
    run("docs/GUIDE.md", 1, 3);
}

#[test]
fn commands_of_the_guide_run_3() {
    run("docs/GUIDE.md", 2, 3);
}

/// Guards the rule of ARCHITECTURE.md that system calls and `unsafe` are in `crates/kernel` alone.
#[test]
fn only_kernel_crates_may_use_unsafe_code_and_system_calls() {
    let crates = repository().join("crates");
    let crates = std::fs::read_dir(crates).expect("the crates are part of the source");
    let crates = crates.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir());
    for directory in crates.chain(["bench", "fleet"].map(|one| repository().join(one))) {
        if directory.ends_with("kernel") {
            continue;
        }
        let path = directory.join("Cargo.toml");
        let manifest = std::fs::read_to_string(&path).expect("each crate has a manifest");
        let depends = |on: &str| {
            let mut lines = manifest.lines();
            lines.any(|line| line.starts_with(&format!("{on} =")) || line.starts_with(&format!("{on}.")))
        };
        for library in ["rustix", "libc", "nix", "libbpf-rs", "libbpf-sys", "io-uring"] {
            assert!(!depends(library), "{} depends on {library}", path.display());
        }
        let forbids = ["[lints]\nworkspace = true", "unsafe_code = \"forbid\""];
        assert!(forbids.iter().any(|text| manifest.contains(text)), "{} does not forbid unsafe code", path.display());
    }
}
