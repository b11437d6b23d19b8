//! The objects that dropped packets, by name: rules of nftables, qdiscs, programs of cgroups.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use trawl_bpf::loading;
use trawl_bpf::probe::KernelFeature;
use trawl_bpf::program::{self, LoadOptions};
use trawl_bpf::{link, probe::attached};
use trawl_ebpf::op;
use trawl_sys::netns::run_in;
use trawl_tests::lab::Mounted;
use trawl_tests::witness::{nstat, run};
use trawl_tests::{Lab, Running, feature_or_skip, wait_until};

use super::{DROPS_5555, row};

/// Returns the culprits of the row with this reason, while `act` causes the drops. No program in the kernel notes the
/// culprits here; tests of that are in `rules.rs`.
fn culprits(lab: &Lab, reason: &str, act: impl FnOnce()) -> Value {
    let name = &lab.pair.b.name;
    let arguments = ["why", "--netns", name, "--json"];
    let why = Running::start_without("fexit", &arguments, "looking");
    act();
    let report: Value = serde_json::from_str(&why.stop().stdout).expect("JSON");
    row(&report, reason)["culprits"].clone()
}

/// The only rule that drops is certain, and so are rules whose counters increased. Several other rules are all named as
/// possible.
#[test]
fn rules_of_nftables_are_named() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(DROPS_5555);
    let send = |ports: &[u16]| {
        let frames: Vec<_> = ports.iter().map(|port| lab.udp(*port)).collect();
        culprits(&lab, "NETFILTER_DROP", || lab.send_long(&frames))
    };
    let name = "rule 2 of inet f in: udp dport 5555 drop";
    assert_eq!(send(&[5555]), json!([{ "name": name, "is_certain": true }]));
    lab.inside("nft add rule inet f in udp dport 5556 drop");
    let either = send(&[5556]);
    assert_eq!(either.as_array().map(Vec::len), Some(2), "{either}");
    assert_eq!(either[0]["is_certain"], false, "{either}");
    lab.inside("nft flush chain inet f in");
    lab.inside("nft add chain inet f deeper");
    lab.inside("nft add rule inet f in meta l4proto udp jump deeper");
    lab.inside("nft add rule inet f deeper udp dport 5555 counter drop");
    lab.inside("nft add rule inet f deeper udp dport 5556 counter reject");
    let both = send(&[5555, 5555, 5556]);
    let counts: Vec<_> = (0..2)
        .map(|at| {
            let one = &both[at];
            let name = one["name"].as_str().expect("a name");
            let text = name.split_once(" of inet f deeper: ").expect("a chain").1;
            (text.to_owned(), one["packets"].as_u64(), one["is_certain"] == true)
        })
        .collect();
    let expected = [("udp dport 5555 drop", 2), ("udp dport 5556 reject", 1)];
    let expected = expected.map(|(text, count)| (text.to_owned(), Some(count), true));
    assert_eq!(counts, expected, "{both}");
}

#[test]
fn policy_and_iptables_are_named() {
    let Some(lab) = Lab::open() else { return };
    let send = |port| culprits(&lab, "NETFILTER_DROP", || lab.send_long(&[lab.udp(port)]));
    lab.inside("iptables-nft -A INPUT -p udp --dport 5555 -j DROP");
    let found = send(5555);
    assert_eq!(found[0]["packets"], 1, "{found}");
    assert!(found[0]["name"].as_str().is_some_and(|name| name.contains("of ip filter INPUT: ")));
    lab.inside("iptables-nft -F INPUT");
    lab.inside("iptables-nft -P INPUT DROP");
    let found = send(5557);
    let expected = json!([{ "name": "policy of ip filter INPUT: drop", "is_certain": true }]);
    assert_eq!(found, expected);
}

/// The innermost qdisc that drops is named with its class.
#[test]
fn qdisc_and_class_are_named() {
    let Some(lab) = Lab::open() else { return };
    let to = lab.pair.a.ipv4.to_string();
    lab.inside("tc qdisc add dev veth0 root handle 1: htb default 10");
    lab.inside("tc class add dev veth0 parent 1: classid 1:10 htb rate 100kbit");
    lab.inside("tc qdisc add dev veth0 parent 1:10 handle 10: pfifo limit 3");
    let found = culprits(&lab, "QDISC_DROP", || {
        // The status is ignored, because ping fails if answers are lost.
        let flood = format!("ip netns exec {} ping -q -f -c 40 -W 1 -s 1000 {to}", lab.pair.b.name);
        let _ = Command::new("sh").args(["-c", &flood]).stdout(Stdio::null()).status();
    });
    assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(found[0]["name"], "qdisc pfifo 10: of veth0, class 1:10");
    assert!(found[0]["packets"].as_u64().is_some_and(|packets| packets > 0), "{found}");
}

/// A cgroup that is removed at the end, once it has no process.
struct Group(String);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Group {
    /// Makes a cgroup with a program that drops all packets at this hook.
    fn refusing(cgroups: &Mounted, hook: u32) -> (Self, OwnedFd) {
        let name = format!("trawl-test-{}-{hook}", std::process::id());
        let group = Self(format!("{}/{name}", cgroups.path));
        fs::create_dir(&group.0).expect("a cgroup");
        let drops = [op::mov32_imm(0, 0), op::exit()];
        let options = LoadOptions { expected_attach_type: hook, ..LoadOptions::new("refuses", program::CGROUP_SKB) };
        let refuses = loading::load(&drops, &options).expect("the kernel takes it");
        let directory = File::open(&group.0).expect("a cgroup");
        let link = link::attach_cgroup(refuses.as_fd(), directory.as_fd(), hook);
        (group, link.expect("it is attached"))
    }

    /// Starts a shell's command in the cgroup and in the namespace of b.
    fn start(&self, lab: &Lab, command: &str) -> Child {
        let procs = format!("{}/cgroup.procs", self.0);
        let enter = format!("echo $$ > {procs}; exec ip netns exec {} ", lab.pair.b.name);
        let child =
            Command::new("sh").args(["-c", &(enter + command)]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        child.expect("a shell")
    }
}

fn end(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

fn has_name(found: &Value) {
    let name = found["name"].as_str();
    assert!(name.is_some_and(|name| name.starts_with("cgroup program refuses (id ")), "{found}");
    assert_eq!(found["is_certain"], true, "{found}");
}

/// A connection's answers reach a socket of the cgroup, whose program drops them.
#[test]
fn program_for_received_packets_is_named() {
    let features = [KernelFeature::Fentry, KernelFeature::Fexit];
    let Some(lab) = features.into_iter().all(feature_or_skip).then(Lab::open).flatten() else {
        return;
    };
    let cgroups = Mounted::at(&lab, "cgroup2", "rw");
    let (group, _link) = Group::refusing(&cgroups, attached::INGRESS);
    let a = &lab.pair.a;
    let listener = run_in(&a.namespace, || TcpListener::bind((a.ipv4, 80)));
    let _listener = listener.expect("the namespace of a").expect("a port");
    let name = lab.pair.b.name.clone();
    let why = Running::start(&["why", "--netns", &name, "--json"], "looking");
    let child = group.start(&lab, &format!("bash -c 'exec 3<>/dev/tcp/{}/80'", a.ipv4));
    let half_open = ["netns", "exec", &a.name, "ss", "-Htn", "state", "syn-recv"];
    wait_until("a's answer", || !run("ip", &half_open).is_empty());
    let report: Value = serde_json::from_str(&why.stop().stdout).expect("JSON");
    end(child);
    let found = row(&report, "SOCKET_FILTER");
    has_name(&found["culprits"][0]);
    assert_eq!(found["culprits"][0]["packets"], found["packets"], "{found}");
}

#[test]
fn program_of_a_cgroup_is_named() {
    let Some(lab) = Lab::open() else { return };
    let cgroups = Mounted::at(&lab, "cgroup2", "rw");
    let (group, _link) = Group::refusing(&cgroups, attached::EGRESS);
    let name = lab.pair.b.name.clone();
    let why = Running::start(&["why", "--netns", &name, "--json"], "looking");
    let to = lab.pair.a.ipv4;
    let child = group.start(&lab, &format!("ping -q -c 1000 -i 0.05 -W 1 {to}"));
    wait_until("a packet is refused", || nstat(&lab.pair.b, "IpOutDiscards") > 0);
    let report: Value = serde_json::from_str(&why.stop().stdout).expect("JSON");
    end(child);
    has_name(&row(&report, "BPF_CGROUP_EGRESS")["culprits"][0]);
}
