//! `trawl lab up` from files and presets, `exec`, `show`: checked by ip, tc, ethtool and ping.

use serde_json::Value;
use trawl_tests::{args, root_or_skip, trawl};

use crate::bench::Directory;

/// A lab that is taken down after the test.
struct Made(String);

impl Made {
    fn name(what: &str) -> Self {
        Self(format!("t{what}{}", std::process::id()))
    }

    fn exec(&self, node: &str, command: &[&str]) -> (Option<i32>, String) {
        let output = trawl(&[&["lab", "exec", &self.0, node], command].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        trawl(&["lab", "down", &self.0]);
    }
}

#[test]
fn file_sets_rates_offloads_sysctls_and_receiving_cpus() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new("lab");
    let made = Made::name("file");
    let file = directory.0.join("network.toml");
    let text = r#"
[[node]]
name = "one"
sysctl = { "net.ipv4.ip_default_ttl" = "77" }
[[node]]
name = "two"
[[link]]
ends = ["one:left", "two:right"]
mtu = 2000
queues = 2
rate = "100mbit"
shaper = "htb"
offloads = false
threaded = true
rps = "1"
"#;
    std::fs::write(&file, text).expect("it can be written");
    let file = file.to_str().expect("UTF-8");
    let up = || trawl(&["lab", "up", &made.0, "--file", file]);
    let first = up();
    assert_eq!(first.status.code(), Some(0), "{}", String::from_utf8_lossy(&first.stderr));
    let again = up();
    assert_eq!(again.status.code(), Some(0), "the same again is no failure");
    assert!(String::from_utf8_lossy(&again.stdout).contains("was up already"));
    assert_eq!(trawl(&["lab", "up", &made.0, "--preset", "forward"]).status.code(), Some(1));

    let (code, link) = made.exec("one", &["ip", "-d", "link", "show", "left"]);
    assert_eq!(code, Some(0));
    assert!(link.contains("mtu 2000") && link.contains("numtxqueues 2"), "{link}");
    assert!(made.exec("one", &["tc", "class", "show", "dev", "left"]).1.contains("rate 100Mbit"));
    assert!(made.exec("two", &["tc", "class", "show", "dev", "right"]).1.contains("rate 100Mbit"));
    let features = made.exec("one", &["ethtool", "-k", "left"]).1;
    assert!(features.contains("generic-segmentation-offload: off"), "{features}");
    assert!(features.contains("generic-receive-offload: on"), "native XDP on a veth needs it: {features}");
    let read = |path: &str| made.exec("one", &["cat", path]).1.trim().to_owned();
    assert_eq!(read("/proc/sys/net/ipv4/ip_default_ttl"), "77");
    assert_eq!(read("/sys/class/net/left/threaded"), "1");
    assert_eq!(read("/sys/class/net/left/queues/rx-0/rps_cpus").trim_start_matches(['0', ',']), "1");
    assert_eq!(made.exec("one", &["ping", "-c", "1", "-W", "5", "10.77.1.2"]).0, Some(0));
    assert_eq!(made.exec("one", &["sh", "-c", "exit 7"]).0, Some(7), "the command's own status");
    assert_eq!(made.exec("three", &["true"]).0, Some(2));
}

#[test]
fn hosts_of_a_preset_reach_each_other_over_its_routers() {
    if !root_or_skip() {
        return;
    }
    let made = Made::name("tree");
    let up = trawl(&["lab", "up", &made.0, "--preset", "tree", "--json"]);
    assert_eq!(up.status.code(), Some(0), "{}", String::from_utf8_lossy(&up.stderr));
    let lab: Value = serde_json::from_slice(&up.stdout).expect("JSON");
    assert_eq!(lab["namespaces"].as_array().map(Vec::len), Some(7));
    for address in ["10.77.6.2", "fd00:77:6::2"] {
        let (code, said) = made.exec("a", &["ping", "-c", "1", "-W", "5", address]);
        assert_eq!(code, Some(0), "{said}");
    }
    let drawn = trawl(&["lab", "show", &made.0]);
    let drawn = String::from_utf8_lossy(&drawn.stdout).into_owned();
    assert!(drawn.contains("root = ") && drawn.contains("10.77.6.2"), "{drawn}");
    assert_eq!(trawl(&["lab", "down", &made.0]).status.code(), Some(0));
    let left = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let prefix = format!("trawl-{}-", made.0);
    assert_eq!(left.filter(|one| one.file_name().to_string_lossy().starts_with(&prefix)).count(), 0);
}

#[test]
fn failed_lab_leaves_nothing() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new("half");
    let made = Made::name("half");
    let file = directory.0.join("half.toml");
    let text = "[[node]]\nname = \"a\"\n[[node]]\nname = \"b\"\n[[link]]\nends = [\"a:x\", \"b:x\"]\nrate = \"fast\"\n";
    std::fs::write(&file, text).expect("it can be written");
    let output = trawl(&args!("lab up {} --file {}", made.0, file.to_str().expect("UTF-8")));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(trawl(&["lab", "show", &made.0]).status.code(), Some(1));
    assert!(!std::path::Path::new(&format!("/run/netns/trawl-{}-a", made.0)).exists());
    std::fs::write(&file, "[[node]]\n").expect("it can be written");
    let output = trawl(&args!("lab up {} --file {}", made.0, file.to_str().expect("UTF-8")));
    assert_eq!(output.status.code(), Some(2), "a file that is wrong is wrong usage");
}

/// The second call accepts the existing lab if its options are the same.
#[test]
fn plain_pair_goes_up_twice() {
    if !root_or_skip() {
        return;
    }
    let made = Made::name("pair");
    let up = |more: &[&str]| trawl(&[&["lab", "up", &made.0], more].concat());
    let first = up(&["--mtu", "1400"]);
    assert_eq!(first.status.code(), Some(0));
    let again = up(&["--mtu", "1400"]);
    assert_eq!(again.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&again.stdout).contains("was up already"));
    // A different lab of that name conflicts with the existing one.
    assert_eq!(up(&["--mtu", "1500"]).status.code(), Some(1));
    assert_eq!(up(&["--preset", "forward"]).status.code(), Some(1));
    let json: Value = serde_json::from_slice(&up(&["--mtu", "1400", "--json"]).stdout).expect("JSON");
    assert_eq!(json["namespaces"].as_array().map(Vec::len), Some(2));
}
