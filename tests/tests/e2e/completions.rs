//! Completions in each shell, typed in a terminal.

use std::process::{Command, Stdio};

use trawl_tests::tmux::Tmux;
use trawl_tests::xdp::{CleanUp, succeeds};
use trawl_tests::{Lab, args, binary, skip, wait_until};

/// Opens an interactive shell with trawl's completions and none of the user's settings.
fn shell(name: &str, lab: &Lab) -> Option<Tmux> {
    let found = Command::new(name).arg("--version").stdout(Stdio::null()).status();
    if found.is_err() {
        skip(&format!("{name} is not installed"));
        return None;
    }
    let trawl = binary::path();
    let script = lab.file(&format!("completions.{name}"));
    let text = succeeds(&["completions", name]);
    std::fs::write(&script, text).expect("a file");
    let start = match name {
        "bash" => "exec bash --norc --noprofile -i",
        "zsh" => "exec zsh -f -i",
        _ => "exec fish --no-config -i",
    };
    let folder = trawl.parent().expect("a folder").display();
    let home = lab.file("");
    let tmux = Tmux::start(name, &format!("PATH={folder}:$PATH HOME={home} {start}"))?;
    let type_line = |line: &str| {
        tmux.run(&["send-keys", "-l", line]);
        tmux.run(&["send-keys", "Enter"]);
    };
    if name == "zsh" {
        type_line("autoload -U compinit; compinit -u -D");
    }
    type_line(&format!("source {script}"));
    type_line("clear; echo rea''dy");
    tmux.wait_shows("ready");
    Some(tmux)
}

/// Types words and asks for completion, until this text is visible.
#[track_caller]
fn completes(tmux: &Tmux, typed: &str, shown: &str) {
    tmux.run(&["send-keys", "-l", typed]);
    tmux.run(&["send-keys", "Tab"]);
    tmux.run(&["send-keys", "Tab"]);
    wait_until(&format!("{shown} is offered"), || {
        let pane = tmux.run(&["capture-pane", "-p"]);
        // fish shortens long names with equal beginnings to their ends.
        pane.contains(shown) || pane.lines().any(|line| line.starts_with('…'))
    });
    tmux.run(&["send-keys", "C-c"]);
    tmux.run(&["send-keys", "-l", "clear; echo rea''dy"]);
    tmux.run(&["send-keys", "Enter"]);
    tmux.wait_shows("ready");
}

fn in_shell(name: &str) {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let namespace = lab.pair.b.name.clone();
    succeeds(&["guard", "load", &lab.receiver()]);
    let deny = args!("guard deny --netns {namespace} --src 203.0.113.0/24");
    for port in ["11", "22", "33"] {
        succeeds(&[&deny[..], &["--proto", "tcp", "--port", port]].concat());
    }
    let Some(tmux) = shell(name, &lab) else {
        return;
    };
    completes(&tmux, "trawl capture -i l", "trawl capture -i lo");
    // Namespaces are completed first, and then the interfaces in one.
    let (begun, rest) = namespace.split_at(namespace.len() - 1);
    let whole = format!("{begun}{rest}");
    completes(&tmux, &format!("trawl doctor -i {whole}:ve"), &format!("{whole}:veth0"));
    completes(&tmux, &format!("trawl guard list --netns {begun}"), &whole);
    // The completions are the numbers of that guard's rules.
    let remove = format!("trawl guard remove --netns {whole} ");
    tmux.run(&["send-keys", "-l", &remove]);
    tmux.run(&["send-keys", "Tab"]);
    tmux.run(&["send-keys", "Tab"]);
    match name {
        // Bash lists the numbers without descriptions, among the options.
        "bash" => wait_until("the numbers are listed", || {
            let pane = tmux.run(&["capture-pane", "-p"]);
            let words: Vec<&str> = pane.split_whitespace().collect();
            ["1", "2", "3"].iter().all(|id| words.contains(id))
        }),
        _ => tmux.wait_shows("--port 33"),
    }
}

#[test]
fn bash_completes() {
    in_shell("bash");
}

#[test]
fn zsh_completes() {
    in_shell("zsh");
}

#[test]
fn fish_completes() {
    in_shell("fish");
}
