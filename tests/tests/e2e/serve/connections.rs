//! Slow connections as metrics of processes.

use std::net::TcpStream;
use std::time::Duration;

use trawl_sys::netns::run_in;
use trawl_tests::stage::Stage;
use trawl_tests::traffic::converse;
use trawl_tests::witness::inside;
use trawl_tests::{args, tools_or_skip, wait_until};

use super::{lint, metrics, serve, value};

const THINK: Duration = Duration::from_millis(300);
const NOT: Duration = Duration::ZERO;
const COUNT: u64 = 3;

/// Returns the sum of a histogram's values, in seconds.
fn sum(text: &str, name: &str, process: &str) -> f64 {
    let of_metric = text.lines().filter(|line| line.starts_with(&format!("{name}_sum{{")) && line.contains(process));
    of_metric.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// A server that thinks, a path that loses and a server that refuses are metrics of their process, whether or not the
/// packets of processes are counted too. No label has an address.
#[test]
fn slow_connections_are_metrics() {
    let Some(stage) = Stage::open() else { return };
    if !tools_or_skip(&["nft"]) {
        return;
    }
    let name = std::fs::read_to_string("/proc/self/comm").expect("a name");
    let process = format!("process=\"{}\"", name.trim());
    let of_test = [process.as_str()];
    for more in [&[][..], &["--process"]] {
        let both = args!("--slow --netns {} --netns {}", stage.client.name, stage.server.name);
        let (running, address) = serve(&[&both[..], more].concat());
        let count = |metric: &str, labels: &[&str]| value(&metrics(&address), metric, &[&of_test, labels].concat());
        for server in stage.servers() {
            drop(converse(stage.connect(server), COUNT as u32, THINK, NOT));
        }
        for metric in ["think", "response"] {
            let metric = format!("trawl_connection_{metric}_seconds");
            let all = || count(&format!("{metric}_count"), &[]);
            wait_until(&metric, || all() == 2 * COUNT);
            let text = metrics(&address);
            let seconds = sum(&text, &metric, &process);
            assert!((1.8..3.0).contains(&seconds), "{seconds} s\n{text}");
            let short = format!("{metric}_bucket");
            assert_eq!(value(&text, &short, &[&process, "le=\"0.262144\""]), 0, "{text}");
            assert_eq!(value(&text, &short, &[&process, "le=\"+Inf\""]), 2 * COUNT, "{text}");
        }
        assert!(count("trawl_connection_handshake_seconds_count", &[]) >= 2);
        assert!(count("trawl_connection_read_wait_seconds_count", &[]) >= 2 * COUNT);
        let repeated = || count("trawl_retransmissions_total", &[]);
        assert_eq!(repeated(), 0);
        stage.rule(&stage.server, "input", "tcp dport 8080 meta length > 100 numgen inc mod 6 == 0", "drop");
        for server in stage.servers() {
            drop(converse(stage.connect(server), 12, NOT, NOT));
        }
        wait_until("retransmissions", || repeated() >= 4);
        inside(&stage.server, "nft flush ruleset");
        for server in stage.servers() {
            let refused = run_in(&stage.client.namespace, || TcpStream::connect(server)).expect("a namespace");
            assert!(refused.is_err());
        }
        let refused = ["who=\"peer\"", "reason=\"refused\""];
        wait_until("resets", || count("trawl_resets_total", &refused) == 2);
        let text = metrics(&address);
        lint(&text);
        for address in stage.servers().map(|server| server.ip().to_string()) {
            assert!(!text.contains(&address), "{address} in {text}");
        }
        assert_eq!(value(&text, "trawl_connection_measures_lost_total", &[]), 0, "{text}");
        running.stop();
    }
}
