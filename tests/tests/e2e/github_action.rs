//! The GitHub Action of packaging/github-action: its definition, and its script with the inputs that a runner passes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::write::{self, EnhancedPacket, SectionHeader};
use trawl_tests::lab::Directory;
use trawl_tests::{binary, frames, programs, root_or_skip, s3, skip, tools_or_skip};

fn action() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/github-action")
}

/// Returns a YAML file as JSON; `None` if Python cannot read YAML.
fn yaml(name: &str) -> Option<Value> {
    let script = "import json, sys, yaml; print(json.dumps(yaml.load(open(sys.argv[1]), Loader=yaml.BaseLoader)))";
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(action().join(name))
        .env("PYTHONPATH", s3::python_packages())
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("No module named 'yaml'") {
        skip("Python's yaml is not installed: pip install kubernetes-validate");
        return None;
    }
    assert!(output.status.success(), "{name}: {said}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

fn names(object: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Checks that a step passes each input of an action in `folder`, and that its script reads it.
fn assert_scripts_read_inputs(definition: &Value, folder: &Path) {
    let mut passed = Vec::new();
    for step in definition["runs"]["steps"].as_array().expect("a list") {
        let Some(run) = step["run"].as_str() else {
            let given = step["with"].as_object().expect("inputs of another action").values();
            let of_input =
                |value: &Value| Some(value.as_str()?.strip_prefix("${{ inputs.")?.strip_suffix(" }}")?.to_owned());
            passed.extend(given.filter_map(of_input));
            continue;
        };
        let script = run.trim_matches('"').strip_prefix("$GITHUB_ACTION_PATH/").expect("a script of the action");
        let script = fs::read_to_string(folder.join(script)).expect("a script");
        for (name, value) in step["env"].as_object().expect("inputs") {
            let input = name.to_lowercase().replace('_', "-");
            assert_eq!(value.as_str(), Some(format!("${{{{ inputs.{input} }}}}").as_str()));
            assert!([format!("${name}"), format!("${{{name}")].iter().any(|one| script.contains(one)), "{name}");
            passed.push(input);
        }
    }
    passed.sort();
    passed.dedup();
    assert_eq!(passed, names(&definition["inputs"]));
}

/// A misspelt name would be an empty text on the runner, not an error.
#[test]
fn inputs_and_outputs_have_the_same_names_everywhere() {
    let (Some(definition), Some(example)) = (yaml("action.yml"), yaml("example.yml")) else {
        return;
    };
    assert_scripts_read_inputs(&definition, &action());
    let script = fs::read_to_string(action().join("test")).expect("a script");
    for (name, output) in definition["outputs"].as_object().expect("outputs") {
        assert_eq!(output["value"].as_str(), Some(format!("${{{{ steps.test.outputs.{name} }}}}").as_str()));
        assert!(script.contains(&format!("\n{name}=$")), "{name}");
    }
    let steps = example["jobs"]["compare"]["steps"].as_array().expect("a list");
    let is_ours = |step: &&Value| step["uses"].as_str().is_some_and(|uses| uses.contains("packaging/github-action"));
    let ours = steps.iter().find(is_ours).expect("a step that uses the action");
    let inputs = names(&definition["inputs"]);
    assert!(names(&ours["with"]).iter().all(|name| inputs.contains(name)), "{ours}");
}

/// A job of a workflow, in a directory of its own.
struct Job(Directory);

impl Job {
    fn new() -> Self {
        let job = Self(Directory::new());
        for (file, object) in [("old.o", "drop_ports"), ("new.o", "drop_ports_otherwise")] {
            fs::write(job.path(file), programs::object(object)).expect("an object file");
        }
        let mut recording = Vec::new();
        write::section_header(&mut recording, &SectionHeader::default());
        write::interface_description(&mut recording, &Interface::default());
        for bytes in frames::assorted().iter().filter(|frame| frame.len() < 3000) {
            let packet =
                EnhancedPacket { captured: bytes, original_len: bytes.len() as u32, ..EnhancedPacket::default() };
            write::enhanced_packet(&mut recording, &packet);
        }
        fs::create_dir(job.path("captures")).expect("a directory");
        for file in ["captures/on monday.pcapng", "captures/tuesday.pcapng"] {
            fs::write(job.path(file), &recording).expect("a recording");
        }
        std::os::unix::fs::symlink(binary::path(), job.path("trawl")).expect("the binary");
        job
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the script, and returns its exit status, its outputs and what it printed.
    fn run(&self, inputs: &[(&str, &str)]) -> (i32, BTreeMap<String, String>, String) {
        fs::write(self.path("outputs"), "").expect("a file");
        let path = format!("{}:{}", self.0.path().display(), std::env::var("PATH").expect("a text"));
        let output = Command::new(action().join("test"))
            .current_dir(self.0.path())
            .env("PATH", path)
            .env("GITHUB_OUTPUT", self.path("outputs"))
            .env("GITHUB_STEP_SUMMARY", self.path("summary"))
            .envs([("PROGRAM", "new.o"), ("AGAINST", "old.o"), ("REPORTS", "reports")])
            .envs(inputs.iter().copied())
            .output()
            .expect("bash");
        let outputs = fs::read_to_string(self.path("outputs")).expect("a file");
        let outputs = outputs.lines().map(|line| line.split_once('=').expect("a name and a value"));
        let outputs = outputs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().expect("an exit status"), outputs, String::from_utf8_lossy(&said).into_owned())
    }
}

#[test]
fn script_reports_differences_and_coverage() {
    if !root_or_skip() {
        return;
    }
    let job = Job::new();
    let (status, outputs, said) = job.run(&[("CAPTURES", "captures/*.pcapng\n")]);
    // The counter of one program is its only difference from the other on these packets.
    assert_eq!((status, outputs["differences"].as_str()), (1, "1"), "{said}");
    assert!(outputs["coverage"].parse::<f64>().is_ok_and(|share| share > 50.0), "{outputs:?}");
    let report = fs::read_to_string(job.path(&outputs["junit"])).expect("a report");
    assert!(report.contains("captures/on monday.pcapng") && report.contains("captures/tuesday.pcapng"), "{report}");
    assert!(fs::read_to_string(job.path(&outputs["lcov"])).expect("a report").contains("drop_ports_otherwise.bpf.c"));
    let summary = fs::read_to_string(job.path("summary")).expect("a summary");
    assert!(summary.contains("    coverage: "), "{summary}");

    let limits = [("CAPTURES", "captures/on monday.pcapng"), ("MIN_LINES", "100%")];
    let (status, outputs, said) = job.run(&limits);
    assert_eq!((status, outputs["differences"].as_str()), (1, "2"), "{said}");

    let ignored = [
        ("CAPTURES", "captures/on monday.pcapng\n\ncaptures/tuesday.pcapng"),
        ("ARGUMENTS", "--ignore=maps:new.bss\n--seed=7"),
        ("ALLOW", "pass>drop where udp port 53\n"),
        ("PROG", "drop_ports"),
    ];
    let (status, outputs, said) = job.run(&ignored);
    assert_eq!((status, outputs["differences"].as_str()), (0, "0"), "{said}");
}

#[test]
fn script_fails_without_a_result() {
    if !root_or_skip() {
        return;
    }
    let job = Job::new();
    let (status, outputs, said) = job.run(&[("CAPTURES", "captures/*.pcap")]);
    assert_eq!((status, outputs.len()), (2, 0), "{said}");
    assert!(said.contains("::error::no capture file matches captures/*.pcap"), "{said}");
    // The report of an earlier step is not taken for this one's.
    job.run(&[("CAPTURES", "captures/*.pcapng")]);
    let (status, outputs, said) = job.run(&[("CAPTURES", "captures/*.pcapng"), ("AGAINST", "missing.o")]);
    assert_eq!((status, outputs.len()), (2, 0), "{said}");
}

/// Runs the script of the action that captures, in a network namespace of its own; returns its exit status and its output.
fn run_captured(job: &Directory, command: &str) -> (i32, String, String) {
    let path = |name: &str| job.path().join(name);
    fs::write(path("outputs"), "").expect("a file");
    let script = "ip link set lo up && mount -t tmpfs tmpfs /run/trawl && exec \"$0\"";
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", script])
        .arg(action().join("capture/run"))
        .current_dir(job.path())
        .env("PATH", format!("{}:{}", job.path().display(), std::env::var("PATH").expect("a text")))
        .env("GITHUB_OUTPUT", path("outputs"))
        .env("GITHUB_STEP_SUMMARY", path("summary"))
        .envs([("RUN", command), ("DIRECTORY", "kept"), ("FILTER", "icmp"), ("ARGUMENTS", "--snapshot-length=96\n")])
        .output()
        .expect("unshare is part of every Debian system");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code().expect("an exit status"), fs::read_to_string(path("outputs")).expect("a file"), said)
}

#[test]
fn packets_of_a_command_are_kept_if_it_fails() {
    if let Some(definition) = yaml("capture/action.yml") {
        assert_scripts_read_inputs(&definition, &action().join("capture"));
    }
    if !root_or_skip() || !tools_or_skip(&["ping"]) {
        return;
    }
    let job = Directory::new();
    std::os::unix::fs::symlink(binary::path(), job.path().join("trawl")).expect("the binary");
    fs::create_dir_all("/run/trawl").expect("root may");
    let (status, outputs, said) = run_captured(&job, "ping -c 2 -i 0.2 127.0.0.1; exit 3");
    assert_eq!((status, outputs.as_str()), (3, "capture=kept/capture.pcapng.zst\n"), "{said}");
    let shown = fs::read_to_string(job.path().join("summary")).expect("a summary");
    assert_eq!(shown.matches("ICMP echo request").count(), 2, "{shown}");
    let (status, outputs, said) = run_captured(&job, "ping -c 1 127.0.0.1");
    assert_eq!((status, outputs.as_str()), (0, ""), "{said}");
    assert!(!job.path().join("kept").exists());
}
