//! Rules that would cut the session of the command are refused.

use super::*;
use trawl_tests::args;

/// Runs trawl as in a session with this connection.
fn in_session(connection: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(binary::path());
    command.args(arguments).env("SSH_CONNECTION", connection).stdin(Stdio::null());
    let output = command.output().expect("trawl runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn session_of_the_command_is_not_cut() {
    let Some(lab) = Lab::open() else { return };
    let name = lab.pair.b.name.clone();
    let session = "10.77.0.1 50000 10.77.0.2 22";
    let guard = |arguments: &[&str]| in_session(session, &[&["guard"], arguments, &["--netns", &name]].concat());
    let (status, said) = guard(&["load", "veth0", "--default", "deny"]);
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(xdp_on(&lab.pair.b), None);
    let remedy = "trawl guard allow --src 10.77.0.1 --proto tcp --port 22";
    assert!(said.contains(remedy) && said.contains("--yes"), "{said}");
    // The suggested command allows the session.
    let words: Vec<&str> = remedy.split(' ').skip(2).collect();
    assert_eq!(guard(&words).0, Some(0));
    assert_eq!(guard(&["load", "veth0", "--default", "deny"]).0, Some(0));
    let before = Guarded { lab: &lab }.list();
    std::fs::write(lab.path("empty.toml"), "").expect("a file");
    for cuts in [
        vec!["remove", "1"],
        vec!["remove", "--all"],
        args!("deny --src 10.77.0.1 --proto tcp --port 22"),
        vec!["deny", "--src", "10.77.0.1", "--dst", "10.77.0.2"],
        args!("allow --src 10.77.0.1 --proto tcp --port 22 --for 1h"),
        vec!["apply", &lab.file("empty.toml")],
    ] {
        let (status, said) = guard(&cuts);
        assert_eq!(status, Some(1), "{cuts:?}: {said}");
        assert!(said.contains("SSH session from 10.77.0.1"), "{said}");
        assert_eq!(Guarded { lab: &lab }.list(), before, "{cuts:?}");
    }
    // Rules that do not affect the session are accepted, and sessions elsewhere do not matter.
    assert_eq!(guard(&["deny", "--src", "10.77.0.9"]).0, Some(0));
    assert_eq!(guard(&["remove", "1", "--yes"]).0, Some(0));
    let here = in_session("127.0.0.1 50000 127.0.0.1 22", &["guard", "list", "--netns", &name]);
    assert_eq!(here.0, Some(0));
}

#[test]
fn session_by_another_interface_does_not_matter() {
    let Some(lab) = Lab::open() else { return };
    let name = &lab.pair.b.name;
    for command in [
        vec!["link", "add", "side0", "type", "veth", "peer", "name", "side1"],
        vec!["address", "add", "10.88.0.1/24", "dev", "side0"],
        vec!["link", "set", "side0", "up"],
    ] {
        run("ip", &[&["-n", name.as_str()], command.as_slice()].concat());
    }
    let load = args!("guard load veth0 --default deny --netns {name}");
    let (status, said) = in_session("10.77.0.1 50000 10.77.0.2 22", &load);
    assert_eq!(status, Some(1), "{said}");
    let (status, said) = in_session("10.88.0.9 50000 10.88.0.1 22", &load);
    assert_eq!(status, Some(0), "{said}");
}

/// Sudo hides SSH_CONNECTION from the command; its parent processes have it.
#[test]
fn session_is_found_if_the_variable_is_hidden() {
    let Some(lab) = Lab::open() else { return };
    let load = format!(
        "env -u SSH_CONNECTION {} guard load {} --default deny; exit $?",
        binary::path().display(),
        lab.receiver()
    );
    let output = Command::new("sh")
        .args(["-c", &load])
        .env("SSH_CONNECTION", "10.77.0.1 50000 10.77.0.2 22")
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("SSH session from 10.77.0.1"), "{said}");
    assert_eq!(xdp_on(&lab.pair.b), None);
}
