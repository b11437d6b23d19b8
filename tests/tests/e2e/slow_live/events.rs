//! `trawl slow --events`: a cause is one line as long as it lasts, however often the measures begin anew.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use trawl_sys::netns::run_in;
use trawl_tests::stage::Stage;
use trawl_tests::traffic::{converse, transfer};
use trawl_tests::witness::nstat;
use trawl_tests::{Running, args};

/// Time in which the measures begin anew several times.
const LASTING: Duration = Duration::from_secs(8);
const THINK: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(20);

fn watch(stage: &Stage) -> Running {
    let arguments = args!("slow --netns {} --events=2s --json", stage.client.name);
    Running::start(&arguments, "measuring connections")
}

/// Stops the command; returns its causes and peers.
#[track_caller]
fn causes(watch: Running) -> Vec<(String, String)> {
    let done = watch.stop();
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    let lines = done.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let text = |line: &Value, key: &str| line[key].as_str().expect("text").to_owned();
    lines.map(|line: Value| (text(&line, "cause"), text(&line, "peer"))).collect()
}

/// Uses a connection again and again for some time.
fn for_long(stage: &Stage, server: SocketAddr, act: impl Fn([TcpStream; 2]) -> [TcpStream; 2]) {
    let begun = Instant::now();
    let mut ends = stage.connect(server);
    while begun.elapsed() < LASTING {
        ends = act(ends);
    }
}

#[test]
fn lasting_cause_is_one_event() {
    let Some(stage) = Stage::open() else { return };
    let watch = watch(&stage);
    let server = stage.servers()[0];
    for_long(&stage, server, |ends| converse(ends, 2, THINK, PAUSE));
    let other = SocketAddr::new(server.ip(), server.port() + 1);
    let refused = run_in(&stage.client.namespace, || TcpStream::connect(other));
    refused.expect("a namespace").expect_err("no server");
    let expected = [("slow_answer", server), ("refused", other)];
    assert_eq!(causes(watch), expected.map(|(cause, peer)| (cause.to_owned(), peer.to_string())));
}

#[test]
fn healthy_traffic_is_no_event() {
    let Some(stage) = Stage::open() else { return };
    let watch = watch(&stage);
    let [four, six] = stage.servers();
    std::thread::scope(|scope| {
        scope.spawn(|| for_long(&stage, four, |ends| converse(ends, 20, Duration::ZERO, PAUSE)));
        let begun = Instant::now();
        while begun.elapsed() < LASTING {
            // Less than the queue of a busy processor takes.
            transfer(stage.connect(six), 256 << 10, Duration::ZERO);
            std::thread::sleep(PAUSE);
        }
    });
    assert_eq!(causes(watch), [], "{} repeated", nstat(&stage.client, "TcpRetransSegs"));
}
