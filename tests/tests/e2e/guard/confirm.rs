//! Changes that are taken back unless they are confirmed (issue 13), saved rules, and what asks for --all (issue 12,
//! item 3).

use super::*;

#[test]
fn an_unconfirmed_change_is_taken_back() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", "192.0.2.1"]);
    let before = guarded.list();
    // The command has ended, and with it its session: nothing but the process that waits is left.
    let deny = ["deny", "--src", "192.0.2.2", "--confirm"];
    guarded.well(&[&deny[..], &["1s"]].concat());
    wait_until("the rule is gone", || guarded.list() == before);
    let said = guarded.refused(1, &["confirm"]);
    assert!(said.contains("no change waits"), "{said}");

    guarded.well(&[&deny[..], &["1h"]].concat());
    let said = guarded.refused(1, &["remove", "--all"]);
    assert!(said.contains("is not confirmed"), "{said}");
    let confirmed = guarded.well(&["confirm", "--json"]);
    let confirmed: Value = serde_json::from_str(&confirmed).expect("JSON");
    assert!(
        confirmed["command"]
            .as_str()
            .is_some_and(|command| command.contains("192.0.2.2")),
        "{confirmed}"
    );
    guarded.well(&["remove", "2"]);
}

#[test]
fn an_unconfirmed_guard_is_taken_off() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    let load = ["load", "veth0", "--default", "deny"];
    // What would cut the session is refused without --confirm.
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
    wait_until("it is not guarded", || xdp_on(&lab.pair.b).is_none());
    wait_until("nothing is left", || !guarded.directory().exists());
}

#[test]
fn a_rule_for_everything_asks_for_all() {
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
fn what_is_saved_is_applied_as_the_same() {
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
    let unloaded: Value =
        serde_json::from_str(&guarded.well(&["unload", "veth0", "--json"])).expect("JSON");
    assert_eq!(
        unloaded["interfaces"][0],
        format!("{}:veth0", lab.pair.b.name)
    );
}
