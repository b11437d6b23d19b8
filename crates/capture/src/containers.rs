//! The running containers of Docker, Podman and nerdctl, by their names.

use std::process::{Command, Stdio};

use serde::Deserialize;

/// Programs that answer the same two questions in the same form.
const PROGRAMS: [&str; 3] = ["docker", "podman", "nerdctl"];

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    /// A process in it.
    pub process: u32,
}

/// The part of the answer of `inspect` that is needed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    name: String,
    state: State,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    pid: u32,
}

/// Returns the running containers in the order of their names; none if no such program is installed, or its daemon does
/// not answer.
pub fn running() -> Vec<Container> {
    let mut found: Vec<Container> = PROGRAMS.iter().flat_map(|program| of(program)).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    // `docker` may be another name of podman.
    found.dedup();
    found
}

fn of(program: &str) -> Vec<Container> {
    let listed = answer(program, &["ps", "--quiet", "--no-trunc"]).unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let ids: Vec<&str> = listed.split_whitespace().collect();
    if ids.is_empty() {
        return Vec::new();
    }
    // A container that ends meanwhile makes the exit status 1, not the answer invalid.
    let inspected = answer(program, &[&["inspect"], &ids[..]].concat()).unwrap_or_default();
    parse(&inspected)
}

fn answer(program: &str, args: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.ok().map(|output| output.stdout)
}

fn parse(answer: &[u8]) -> Vec<Container> {
    let inspected: Vec<Inspected> = serde_json::from_slice(answer).unwrap_or_default();
    let running = inspected.into_iter().filter(|one| one.state.pid != 0);
    // Docker's names begin with a slash.
    let named =
        |one: Inspected| Container { name: one.name.trim_start_matches('/').to_owned(), process: one.state.pid };
    running.map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_both_programs_are_read() {
        let docker = br#"[{"Id": "a1", "Name": "/web", "State": {"Status": "running", "Pid": 812}, "Config": {}},
            {"Id": "b2", "Name": "/old", "State": {"Status": "exited", "Pid": 0}}]"#;
        let podman = br#"[{"Id": "a1", "Name": "web", "State": {"OciVersion": "1.0", "Pid": 812}}]"#;
        let expected = [Container { name: "web".to_owned(), process: 812 }];
        assert_eq!(parse(docker), expected);
        assert_eq!(parse(podman), expected);
        assert_eq!(parse(b""), []);
    }
}
