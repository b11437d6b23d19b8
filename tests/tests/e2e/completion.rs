//! Completions by the tab key in a bash with a terminal, as users see them.

use std::io::Write as _;
use std::process::{Command, Stdio};

use trawl_tests::{Lab, args, binary, trawl};

/// Returns each of these lines as completed by the tab key.
fn completed(lab: &Lab, lines: &[&str]) -> Vec<String> {
    let script = lab.file("trawl.bash");
    let registration = trawl(&["completions", "bash"]);
    std::fs::write(&script, registration.stdout).expect("a file");
    let directory = binary::path().parent().expect("a directory").display().to_string();
    // `script` gives bash a terminal.
    let mut child = Command::new("timeout")
        .args(args!("60 script -qec 'bash --norc --noprofile -i' /dev/null"))
        .current_dir(lab.path(""))
        .env("INPUTRC", "/dev/null")
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs");
    let mut keys = child.stdin.take().expect("a pipe");
    let path = format!("PATH={directory}:$PATH; source {script}");
    writeln!(keys, "{path}; bind 'set enable-bracketed-paste off'").expect("bash reads");
    for line in lines {
        // Cursor keys add `echo` before the line, so that the completed words are printed and not run.
        writeln!(keys, "{line}\t\u{1}echo \"==\u{5}==\"").expect("bash reads");
    }
    writeln!(keys, "exit").expect("bash reads");
    drop(keys);
    let output = child.wait_with_output().expect("bash ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let shown = text.lines().filter_map(|line| line.strip_prefix("=="));
    let shown = shown.filter_map(|line| line.trim_end().strip_suffix("=="));
    let last_word = |line: &str| line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    let words: Vec<String> = shown.map(last_word).collect();
    assert_eq!(words.len(), lines.len(), "{text}");
    words
}

#[test]
fn bash_completes_names_of_this_machine() {
    let Some(lab) = Lab::open() else { return };
    std::fs::write(lab.path("packets.pcapng"), "").expect("a file");
    let name = &lab.pair.b.name;
    let (begun, whole) = (format!("{name}:ve"), format!("{name}:veth0"));
    let cases = [
        (format!("trawl capture -i {begun}"), whole.as_str()),
        (format!("trawl capture --interface {begun}"), &whole),
        (format!("trawl xdp load {begun}"), &whole),
        (format!("trawl guard load {begun}"), &whole),
        (format!("trawl capture --netns {}", &name[..name.len() - 1]), ""),
        (format!("trawl capture --netns {name} -i ve"), "veth0"),
        (format!("trawl capture --netns={name} -i ve"), "veth0"),
        ("trawl xdp unload l".to_owned(), "lo"),
        ("trawl capture --verdict drop,ab".to_owned(), "drop,aborted"),
        ("trawl guard deny --proto u".to_owned(), "udp"),
        ("trawl guard preset pi".to_owned(), "ping-flood"),
        ("trawl read pac".to_owned(), "packets.pcapng"),
        ("trawl bench run load-b".to_owned(), "load-balance"),
        ("trawl stand".to_owned(), "stand"),
    ];
    let lines: Vec<&str> = cases.iter().map(|(line, _)| line.as_str()).collect();
    for ((line, wanted), got) in cases.iter().zip(completed(&lab, &lines)) {
        if wanted.is_empty() {
            assert!(name.starts_with(&got), "{line}: {got}");
        } else {
            assert_eq!(got, *wanted, "{line}");
        }
    }
}
