//! Lost packets as metrics, under the names of `trawl why`, and the alerts and the dashboard that use them.

use std::net::UdpSocket;
use std::process::Command;

use serde_json::Value;
use trawl_bpf::probe::kernel_is_at_least;
use trawl_sys::netns::run_in;
use trawl_tests::witness::run;
use trawl_tests::xdp::succeeds;
use trawl_tests::{Lab, Running, args, binary, skip, wait_until};

use super::{lint, metrics, promtool, serve, value};

const ALERTS: &str = include_str!("../../../../packaging/prometheus/alerts.yml");
const DASHBOARDS: [&str; 2] = [
    include_str!("../../../../packaging/prometheus/grafana.json"),
    include_str!("../../../../packaging/prometheus/grafana-agents.json"),
];

/// Each drop is counted once, with reason, function, hook and interface, also at hooks with the same function.
#[test]
fn drops_are_metrics() {
    let Some(lab) = Lab::open() else { return };
    let name = &lab.pair.b.name;
    lab.inside("nft add table inet f");
    for (chain, port) in [("prerouting", 5554), ("input", 5555), ("output", 5556)] {
        let hook = format!("{{ type filter hook {chain} priority 0; }}");
        let add = ["nft", "add", "chain", "inet", "f", chain, &hook];
        run("ip", &[&["netns", "exec", name][..], &add].concat());
        lab.inside(&format!("nft add rule inet f {chain} udp dport {port} drop"));
    }
    let (running, address) = serve(&["--netns", name]);
    let frames = [5554, 5555, 5555, 7, 7, 7].map(|port| lab.udp(port));
    lab.send(&frames, 600);
    let (b, to) = (&lab.pair.b, lab.pair.a.ipv4);
    run_in(&b.namespace, || {
        let socket = UdpSocket::bind((b.ipv4, 0)).expect("a port");
        for _ in 0..50 {
            assert!(socket.send_to(b"x", (to, 5556)).is_err(), "the rule refuses it");
        }
    })
    .expect("the namespace");
    let (netns, device) = (format!("netns=\"{name}\""), "interface=\"veth0\"");
    let drops = |labels: &[&str]| value(&metrics(&address), "trawl_drops_total", labels);
    for (hook, count) in [("prerouting", 100), ("input", 200), ("output", 50)] {
        let hook = format!("hook=\"{hook}\"");
        wait_until(&hook, || drops(&["reason=\"NETFILTER_DROP\"", &hook, &netns, device]) == count);
    }
    let no_socket = ["reason=\"NO_SOCKET\"", "where=\"__udp4_lib_rcv\"", &netns, device];
    wait_until("packets without a socket", || drops(&no_socket) == 300);
    let counter = ["counter=\"UdpNoPorts\"", &netns];
    wait_until("the counter", || value(&metrics(&address), "trawl_kernel_losses_total", &counter) == 300);
    let text = metrics(&address);
    // The metrics belong to one namespace, and do not include others.
    let all = value(&text, "trawl_drops_total", &[]);
    assert_eq!(all, value(&text, "trawl_drops_total", &[&netns]), "{text}");
    lint(&text);
    running.stop();
}

/// A process that entered a namespace without using its name counts the drops there as drops of its own namespace.
#[test]
fn drops_are_counted_in_an_entered_namespace() {
    let Some(lab) = Lab::open() else { return };
    lab.inside("ip link set lo up");
    let name = &lab.pair.b.name;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{name}"));
    command.arg(binary::path());
    command.args(["serve", "--listen", "127.0.0.1:9464", "-i", "veth0"]);
    let running = Running::of(command, "serving http://");
    running.wait_said("capturing on");
    lab.send(&[lab.udp(7)], 20);
    let metrics = || {
        let url = "http://127.0.0.1:9464/metrics";
        run("ip", &["netns", "exec", name, "curl", "-s", url])
    };
    let place = ["reason=\"NO_SOCKET\"", "netns=\"\"", "interface=\"veth0\""];
    wait_until("the drops are counted", || value(&metrics(), "trawl_drops_total", &place) == 20);
    running.stop();
}

/// With --process, drops by a full receive buffer name the process that reads too slowly.
#[test]
fn drops_name_the_process() {
    let Some(lab) = Lab::open() else { return };
    if !kernel_is_at_least(6, 11) {
        skip("before Linux 6.11 the kernel does not name the receiver of a dropped packet");
        return;
    }
    let (b, netns) = (&lab.pair.b, &lab.pair.b.name);
    let (running, address) = serve(&args!("--process --netns {netns}"));
    let socket = run_in(&b.namespace, || UdpSocket::bind((b.ipv4, 9)));
    let _socket = socket.expect("the namespace").expect("a port");
    lab.send(&[lab.udp(9)], 2000);
    let name = std::fs::read_to_string("/proc/self/comm").expect("a name");
    let process = format!("process=\"{}\"", name.trim());
    let dropped = ["reason=\"SOCKET_RCVBUFF\"", &process];
    let counter = ["counter=\"UdpRcvbufErrors\""];
    wait_until("the drops equal the counter", || {
        let text = metrics(&address);
        let dropped = value(&text, "trawl_drops_total", &dropped);
        dropped > 0 && dropped == value(&text, "trawl_kernel_losses_total", &counter)
    });
    lint(&metrics(&address));
    running.stop();
}

#[test]
fn xdp_verdicts_and_losses_are_metrics() {
    let Some(lab) = Lab::open() else { return };
    let _clean = trawl_tests::xdp::CleanUp::of(&lab);
    let (receiver, netns) = (lab.receiver(), &lab.pair.b.name);
    // Programs with counters of their own are not counted twice.
    let (running, address) = serve(&["--verdicts", "--netns", netns]);
    succeeds(&["xdp", "load", &receiver, "drop"]);
    lab.send(&[lab.udp(7)], 100);
    let verdict = ["interface=\"veth0\"", "program=\"drop\"", "verdict=\"DROP\""];
    wait_until("the verdicts", || value(&metrics(&address), "trawl_xdp_verdicts_total", &verdict) == 100);
    succeeds(&["xdp", "unload", &receiver]);
    succeeds(&["xdp", "load", &receiver, "aborted"]);
    lab.send(&[lab.udp(7)], 100);
    let lost = ["event=\"xdp:xdp_exception\"", "interface=\"veth0\"", "verdict=\"ABORTED\""];
    wait_until("the exceptions", || value(&metrics(&address), "trawl_xdp_losses_total", &lost) == 100);
    lint(&metrics(&address));
    running.stop();
}

/// Prometheus accepts the alerts, and one fires when it should.
#[test]
fn alerts_are_accepted_and_fire() {
    let Some(lab) = Lab::open() else { return };
    let (alerts, tests) = (lab.file("alerts.yml"), lab.file("tests.yml"));
    std::fs::write(&alerts, ALERTS).expect("a file");
    let series =
        r#"trawl_drops_total{instance="h", reason="NO_SOCKET", where="f", netns="", interface="eth0", hook=""}"#;
    let test = format!(
        "rule_files: [{alerts}]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n      - \
         {{series: '{series}', values: '0+6000x20'}}\n    alert_rule_test:\n      - {{eval_time: 3m, alertname: \
         PacketsDropped}}\n      - eval_time: 15m\n        alertname: PacketsDropped\n        exp_alerts:\n          - \
         exp_labels: {{severity: warning, instance: h, reason: NO_SOCKET, where: f, interface: eth0}}\n            \
         exp_annotations:\n              summary: 'h drops 100 packets a second: NO_SOCKET'\n              description: \
         \"f  at interface eth0 in namespace ''. trawl why names the flows, the process and the command to type.\"\n"
    );
    std::fs::write(&tests, test).expect("a file");
    for arguments in [["check", "rules", &alerts], ["test", "rules", &tests]] {
        let Some((said, is_fine)) = promtool(&arguments, "") else {
            return;
        };
        assert!(is_fine, "{said}");
    }
}

/// The queries of the dashboards are valid PromQL, and use metrics that exist.
#[test]
fn dashboards_ask_for_metrics_that_exist() {
    let Some(lab) = Lab::open() else { return };
    let dashboards = DASHBOARDS.map(|text| serde_json::from_str::<Value>(text).expect("JSON"));
    let panels = dashboards.iter().flat_map(|one| one["panels"].as_array().expect("panels"));
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("a query")).collect();
    let rules = queries.iter().enumerate().map(|(number, query)| {
        let query = query.replace("$__rate_interval", "5m").replace("$instance", ".*");
        format!("      - {{record: 'panel:{number}', expr: '{query}'}}\n")
    });
    let rules: String = rules.collect();
    let file = lab.file("dashboard.yml");
    let head = "groups:\n  - name: dashboard\n    rules:\n";
    std::fs::write(&file, format!("{head}{rules}")).expect("a file");
    if let Some((said, is_fine)) = promtool(&["check", "rules", &file], "") {
        assert!(is_fine, "{said}");
    }
    let metrics = [
        include_str!("../../../../crates/cli/src/serve/metrics.rs"),
        include_str!("../../../../fleet/src/cli/health/metrics.rs"),
    ]
    .concat();
    for text in queries.iter().copied().chain([ALERTS]) {
        for name in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
            let Some(name) = name.strip_prefix("trawl_") else {
                continue;
            };
            let parts = ["_bucket", "_sum", "_count"];
            let name = parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
            assert!(metrics.contains(&format!("\"{name}\"")), "trawl_{name}");
        }
    }
}
