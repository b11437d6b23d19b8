//! `scripts/report-card`: an archive about a network card, without addresses and without names of hosts.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use trawl_tests::lab::Directory;
use trawl_tests::tools_or_skip;
use trawl_tests::witness::run;

/// Replaces ssh by a script that runs the command on this host.
const SSH: &str = r#"shift; exec sh -c "$*""#;
/// Replaces trawl by a script that prints texts that a card's findings and results may contain.
const TRAWL: &str = r#"
text='{"interface": "eth0", "mac": "52:54:00:aa:00:01", "text": "up, 10.1.2.3/24 10.1.2.4 fe80::1%eth0 2001:db8::5 1:2:3:4:5:6:7:8",
 "host": "10.0.0.1", "peer": "card.example.org", "driver": "ice 6.12.3", "time": "12:34:56"}'
case $* in
    *" -o "*) while [ "$1" != -o ]; do shift; done; mkdir -p "$2"; echo "$text" >"$2/results.json" ;;
    *doctor*) echo "$text"; exit 1 ;;
esac"#;
const HOSTS: &str = r#"
[sender]
ssh = "root@10.0.0.1"
interface = "lo"

[receiver]
ssh = "root@card.example.org"   # a comment
interface = "lo"
address = "192.0.2.2"
"#;

fn stand_in(directory: &Path, name: &str, script: &str) -> String {
    let file = directory.join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its mode");
    file.display().to_string()
}

/// Returns the parts of a text that are IP or MAC addresses.
fn addresses(text: &str) -> Vec<&str> {
    let is_part = |letter: char| letter.is_ascii_hexdigit() || letter == ':' || letter == '.';
    let is_mac = |word: &str| word.len() == 17 && word.split(':').filter(|one| one.len() == 2).count() == 6;
    let words = text.split(|letter: char| !is_part(letter)).map(|word| word.trim_end_matches('.'));
    let words = words.filter(|word| word.parse::<IpAddr>().is_ok() || is_mac(word));
    words.filter(|word| *word != "::").collect()
}

#[test]
fn report_card_has_no_addresses_and_no_host_names() {
    if !tools_or_skip(&["bash", "tar", "ethtool"]) {
        return;
    }
    let directory = Directory::new();
    let place = directory.path();
    stand_in(place, "ssh", SSH);
    let trawl = stand_in(place, "trawl", TRAWL);
    let (hosts, archive) = (place.join("hosts.toml"), place.join("card.tar.gz"));
    fs::write(&hosts, HOSTS).expect("a file");
    let path = std::env::var("PATH").expect("a path");
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/report-card"))
        .args([&hosts, &archive])
        .env("PATH", format!("{}:{path}", place.display()))
        .env("TRAWL", trawl)
        .output()
        .expect("the script runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    run("tar", &["-C", &place.display().to_string(), "-xzf", &archive.display().to_string()]);
    let card = place.join("report-card");
    let own_name = run("uname", &["-n"]);
    for file in ["doctor.json", "results.json", "sender.txt", "receiver.txt"] {
        let text = fs::read_to_string(card.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!(addresses(&text), Vec::<&str>::new(), "{file}: {text}");
        for name in ["card.example.org", "10.0.0.1", own_name.trim()] {
            let is_end = |letter: char| !(letter.is_alphanumeric() || "-._".contains(letter));
            let is_named = text.split(is_end).any(|word| word == name);
            assert!(!is_named, "{name} is in {file}: {text}");
        }
    }
    let results = fs::read_to_string(card.join("results.json")).expect("checked before");
    for kept in ["ice 6.12.3", "12:34:56", "eth0"] {
        assert!(results.contains(kept), "{kept} is missing: {results}");
    }
    // The check finds the addresses in the original, so it would notice them in the archive.
    assert_eq!(addresses(TRAWL).len(), 7, "{:?}", addresses(TRAWL));
}
