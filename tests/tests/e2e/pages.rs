//! Runs every command of the lessons and of the pages by symptom as a reader would, and compares the output with the
//! recorded one.

use std::path::PathBuf;
use std::process::Command;

use trawl_tests::{binary, fleet_or_skip, root_or_skip, tools_or_skip, trawl};

use crate::bench::Directory;
use crate::documentation::{read, shape};
use crate::package::repository;

/// Returns the recorded output of each command of a page, as words with `#` for numbers.
fn outputs(page: &str) -> Vec<(String, Vec<Vec<String>>)> {
    let mut outputs: Vec<(String, Vec<Vec<String>>)> = Vec::new();
    let mut is_console = false;
    let mut continues = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if let Some(command) = line.strip_prefix("# ").filter(|_| is_console) {
            outputs.push((command.to_owned(), Vec::new()));
            continues = command.ends_with('\\');
        } else if continues {
            continues = line.ends_with('\\');
        } else if let Some((_, output)) = outputs.last_mut().filter(|_| is_console && !line.trim().is_empty()) {
            output.push(shape_of_output(line));
        }
    }
    outputs
}

/// Returns the shape of a line without the tags of programs, which depend on the compiler, and without the flows in a
/// row of `trawl why`, whose number depends on the time.
fn shape_of_output(line: &str) -> Vec<String> {
    let mut words = shape(line.split(" tcp to ").next().unwrap_or(line));
    let tags: Vec<usize> = (1..words.len()).filter(|at| words[at - 1] == "tag").collect();
    tags.into_iter().for_each(|at| words[at].clear());
    words
}

/// Runs a page, and compares the lines below each command, in any order, with the recorded ones.
#[track_caller]
fn runs(lesson: &str, file: &str) {
    let page = read(file);
    let needs = page.lines().find_map(|line| line.strip_prefix("Needs: ")).unwrap_or_default();
    let needs: Vec<&str> = needs.split('`').skip(1).step_by(2).filter(|name| *name != "clang").collect();
    if !root_or_skip() || !tools_or_skip(&needs) || (page.contains("trawl fleet") && !fleet_or_skip()) {
        return;
    }
    let output = trawl(&["lab", "lesson", lesson, "--run"]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    let (recorded, now) = (outputs(&page), outputs(&printed));
    assert_eq!(recorded.len(), now.len(), "other commands ran:\n{printed}");
    for ((command, expected), (_, found)) in recorded.into_iter().zip(now) {
        let missing: Vec<&Vec<String>> = expected.iter().filter(|line| !found.contains(line)).collect();
        assert!(missing.is_empty(), "not printed by {command}: {missing:#?}, but\n{printed}");
    }
}

macro_rules! lessons {
    ($($test:ident: $number:literal $name:literal;)*) => {
        $(
            #[test]
            fn $test() {
                runs($number, concat!("docs/lessons/", $name, ".md"));
            }
        )*
    };
}

lessons! {
    lesson_of_the_first_capture_runs: "1" "first-capture";
    lesson_of_verdicts_runs: "2" "verdicts";
    lesson_of_filters_runs: "3" "filter";
    lesson_of_hooks_runs: "4" "hooks";
    lesson_of_why_runs: "5" "why";
    lesson_of_follow_runs: "6" "follow";
    lesson_of_processes_runs: "7" "processes";
    lesson_of_a_flood_runs: "8" "flood";
    lesson_of_loss_runs: "9" "loss";
    lesson_of_an_incident_runs: "10" "incident";
}

/// Runs a page by symptom from its file.
#[track_caller]
fn symptom(name: &str) {
    let file = format!("docs/symptoms/{name}.md");
    let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
    runs(&path, &file);
}

macro_rules! symptoms {
    ($($test:ident: $name:literal;)*) => {
        const SYMPTOMS: &[&str] = &[$($name),*];
        $(
            #[test]
            #[ignore = "make test-long runs it"]
            fn $test() {
                symptom($name);
            }
        )*
    };
}

symptoms! {
    page_of_silent_tcpdump_runs: "tcpdump-shows-nothing";
    page_of_hanging_tcp_runs: "ping-works-tcp-hangs";
    page_of_drops_under_load_runs: "drops-under-load";
    page_of_lost_passed_packets_runs: "program-passes-nobody-gets";
    page_of_slow_connections_runs: "slow-connection";
    page_of_refused_connections_runs: "connection-refused";
    page_of_timeouts_runs: "connection-times-out";
    page_of_packets_seen_twice_runs: "packets-twice";
    page_of_unknown_senders_runs: "which-process";
    page_of_lost_redirects_runs: "redirect-loses-packets";
}

/// Each page has a test, and the list of pages names it.
#[test]
fn all_pages_by_symptom_are_listed_and_tested() {
    let directory = format!("{}/../docs/symptoms", env!("CARGO_MANIFEST_DIR"));
    let index = read("docs/symptoms/README.md");
    for entry in std::fs::read_dir(directory).expect("the pages") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        let Some(name) = name.strip_suffix(".md").filter(|name| *name != "README") else { continue };
        assert!(SYMPTOMS.contains(&name), "no test runs docs/symptoms/{name}.md");
        assert!(index.contains(&format!("({name}.md)")), "docs/symptoms/README.md does not list {name}.md");
    }
}

/// A killed lesson leaves no process, namespace or mount.
#[test]
fn killed_lesson_leaves_nothing() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new("lesson");
    let page = directory.0.join("page.md");
    // The last command waits until the test kills the lesson. Its name is found in the list of processes.
    let name = format!("held-by-lesson-{}", std::process::id());
    let text =
        format!("# Page\n```console\n# trawl lab up\n# (exec -a {name} sleep 600) &\n# echo ready; sleep 600\n```\n");
    std::fs::write(&page, text).expect("a file");
    let mut lesson = Command::new(binary::path())
        .args(["lab", "lesson", page.to_str().expect("UTF-8"), "--run"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("trawl starts");
    let output = std::io::BufReader::new(lesson.stdout.take().expect("a pipe"));
    let mut lines = std::io::BufRead::lines(output);
    assert!(lines.any(|line| line.expect("a line") == "ready"), "the lesson did not begin");
    let is_running = || {
        let listed = Command::new("pgrep").args(["-f", &name]).output().expect("pgrep runs");
        listed.status.success()
    };
    assert!(is_running());
    lesson.kill().expect("it runs");
    lesson.wait().expect("it ends");
    trawl_tests::wait_until("the processes of the lesson end", || !is_running());
}

/// Returns the commands on samples that a page has in its text.
fn commands_on_samples(page: &str) -> Vec<String> {
    let is_command = |code: &&str| code.contains(" docs/samples/");
    page.split('`').skip(1).step_by(2).filter(is_command).map(str::to_owned).collect()
}

/// Each command on a sample, in the list of samples and in the lessons, prints something. tshark has the files that
/// `trawl extcap install` installs.
#[test]
fn commands_on_samples_run() {
    if !tools_or_skip(&["tshark"]) {
        return;
    }
    let home = Directory::new("samples");
    let path = |name: &str| home.0.join(name).display().to_string();
    let as_user = |words: &str| {
        let binaries = binary::path().parent().map(PathBuf::from).expect("a directory");
        let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-c", words]).current_dir(repository()).env("PATH", path).env("HOME", &home.0);
        shell.env_remove("XDG_CONFIG_HOME").output().expect("sh runs")
    };
    let installed = as_user(&format!("trawl extcap install --dir {}", path("extcap")));
    assert!(installed.status.success(), "{installed:?}");
    let pages = std::fs::read_dir(repository().join("docs/lessons")).expect("the lessons");
    let pages = pages.map(|entry| format!("docs/lessons/{}", entry.expect("an entry").file_name().display()));
    let mut count = 0;
    for page in pages.chain(["docs/samples/README.md".to_owned()]) {
        for command in commands_on_samples(&read(&page)) {
            let done = as_user(&command);
            assert!(done.status.success() && !done.stdout.is_empty(), "{page}: {command}: {done:?}");
            count += 1;
        }
    }
    assert!(count > 10, "{count} commands");
}
