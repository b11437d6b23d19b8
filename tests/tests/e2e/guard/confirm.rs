//! Changes that are reverted unless confirmed, saved rules, and rules that require --all.

use super::*;
use trawl_tests::args;

#[test]
fn unconfirmed_change_is_reverted() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", "192.0.2.1"]);
    let before = guarded.list();
    // The command and its session have ended, so that only the waiting process is left.
    let deny = ["deny", "--src", "192.0.2.2", "--confirm"];
    guarded.well(&[&deny[..], &["1s"]].concat());
    wait_until("the revert is reported", || guarded.list()["reverted"].is_object());
    let after = guarded.list();
    assert_eq!(after["rules"], before["rules"]);
    let command = after["reverted"]["command"].as_str().unwrap_or_default();
    assert!(command.contains("192.0.2.2"), "{after}");
    let said = guarded.refused(1, &["confirm"]);
    assert!(said.contains("192.0.2.2") && said.contains("was reverted at "), "{said}");

    guarded.well(&[&deny[..], &["1h"]].concat());
    let said = guarded.refused(1, &["remove", "--all"]);
    assert!(said.contains("is not confirmed"), "{said}");
    let confirmed = guarded.well(&["confirm", "--json"]);
    let confirmed: Value = serde_json::from_str(&confirmed).expect("JSON");
    assert!(confirmed["command"].as_str().is_some_and(|command| command.contains("192.0.2.2")), "{confirmed}");
    guarded.well(&["remove", "2"]);
}

#[test]
fn revert_is_reported_on_the_terminal_of_the_command() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let namespace = &lab.pair.b.name;
    let deny = format!("guard deny --netns {namespace} --src 192.0.2.7 --confirm 1s");
    let command = format!("{} {deny}; exec sleep 600", binary::path().display());
    let Some(terminal) = Tmux::start("revert", &command) else {
        return;
    };
    terminal.wait_shows("was not confirmed and was reverted at ");
    assert_eq!(guarded.list()["rules"].as_array().map(Vec::len), Some(0));
}

#[test]
fn check_lists_changes_and_counts_affected_packets() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", "192.0.2.1"]);
    guarded.well(&["deny", "--src", "10.77.0.1", "--proto", "udp"]);
    guarded.well(&["deny", "--src", "192.0.2.3"]);
    let file = lab.file("rules.toml");
    let rules = "default = \"deny\"\n\
        [[rule]]\naction = \"deny\"\nsrc = \"192.0.2.1\"\n\
        [[rule]]\naction = \"allow\"\nsrc = \"10.77.0.1\"\nproto = \"udp\"\n\
        [[rule]]\naction = \"deny\"\nsrc = \"192.0.2.4\"\n";
    std::fs::write(&file, rules).expect("write the file");
    let before = guarded.list();
    let sender = lab.sender();
    let flood = args!("gen udp -i {sender} --rate 1k --dst 10.77.0.2");
    let mut flood = Command::new(binary::path()).args(flood).stdout(Stdio::null()).spawn().expect("trawl runs");
    wait_until("packets arrive", || guarded.list() != before);
    let checked = guarded.well(&["apply", "--check", "--json", &file]);
    let text = guarded.well(&["apply", "--check", &file]);
    flood.kill().expect("kill the generator");
    flood.wait().expect("the generator ends");
    let checked: Value = serde_json::from_str(&checked).expect("JSON");
    let changes = &checked["changes"];
    assert_eq!(changes["added"][0]["rule"], "deny --src 192.0.2.4");
    assert_eq!(changes["removed"][0]["rule"], "deny --src 192.0.2.3");
    assert_eq!(changes["changed"][0]["of"], "2");
    assert_eq!(changes["defaults"][0]["to"], "deny");
    assert_eq!(changes["unchanged"], 1);
    let packets = checked["packets_affected_per_second"].as_u64();
    assert!(packets.is_some_and(|packets| packets > 0), "{checked}");
    assert!(text.contains("would add 1, remove 1, change 2 and keep 1"), "{text}");
    let same = guarded.well(&["save"]);
    std::fs::write(&file, same).expect("write the file");
    let text = guarded.well(&["apply", "--check", &file]);
    assert!(text.contains("would add 0, remove 0, change 0 and keep 3"), "{text}");
}

#[test]
fn unconfirmed_guard_is_removed() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    let load = ["load", "veth0", "--default", "deny"];
    // A rule that would cut the session requires --confirm.
    let mut command = Command::new(binary::path());
    command
        .arg("guard")
        .args(load)
        .args(["--netns", &lab.pair.b.name])
        .env("SSH_CONNECTION", "10.77.0.1 50000 10.77.0.2 22");
    let refused = command.output().expect("trawl runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("--confirm 60s"), "{said}");
    let output = command.args(["--confirm", "1s"]).output().expect("it runs");
    assert!(output.status.success());
    wait_until("the interface is not guarded", || xdp_on(&lab.pair.b).is_none());
    wait_until("nothing is left", || !guarded.directory().exists());
}

#[test]
fn rule_for_everything_requires_all() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let said = guarded.refused(2, &["deny"]);
    assert!(said.contains("--all"), "{said}");
    let output = guarded.apply("[[rule]]\naction = \"deny\"\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--all"), "{said}");
    assert_eq!(guarded.list()["rules"].as_array().map(Vec::len), Some(0));
    guarded.well(&["deny", "--all"]);
    guarded.well(&["remove", "1"]);
}

#[test]
fn saved_rules_apply_unchanged() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&["allow", "--src", "192.0.2.0/24", "--port", "22"]);
    guarded.well(&["preset", "ping-flood", "--on", "veth0"]);
    let rules = |list: &Value| {
        let mut rules = list["rules"].as_array().expect("rules").clone();
        for rule in &mut rules {
            rule["id"] = 0.into();
        }
        rules.sort_by_key(Value::to_string);
        (rules, list["defaults"][0]["action"].clone())
    };
    let (before, saved) = (guarded.list(), guarded.well(&["save"]));
    guarded.well(&["remove", "--all", "--json"]);
    guarded.well(&["load", "veth0", "--default", "allow", "--json"]);
    assert!(guarded.apply(&saved).status.success(), "{saved}");
    assert_eq!(rules(&guarded.list()), rules(&before));
    let unloaded: Value = serde_json::from_str(&guarded.well(&["unload", "veth0", "--json"])).expect("JSON");
    assert_eq!(unloaded["interfaces"][0], format!("{}:veth0", lab.pair.b.name));
}
