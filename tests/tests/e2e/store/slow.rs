//! Round trips and causes of slow connections in the index, compared with tshark and `trawl slow`.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use trawl_lab::Station;
use trawl_tests::stage::Stage;
use trawl_tests::traffic::{converse, transfer};
use trawl_tests::wire::Path;
use trawl_tests::witness::tshark;
use trawl_tests::{Running, args, fleet_or_skip, tools_or_skip, trawl};

use super::good;

const NOT: Duration = Duration::ZERO;
const PAUSE: Duration = Duration::from_millis(20);
const DELAY: Duration = Duration::from_millis(5);

/// A store with the traffic at one end of a stage.
struct Stored {
    url: String,
    spool: String,
    file: String,
}

impl Stored {
    /// Captures traffic of a station with these options.
    fn of(stage: &Stage, at: &Station, options: &str, traffic: impl FnOnce()) -> Self {
        let [store, spool, file] = ["store", "spool", "all.pcapng"].map(|name| stage.file(name));
        let stored = Self { url: format!("file://{store}"), spool, file };
        let interface = format!("{}:{}", at.name, at.interface);
        let place = args!("--store {} --spool {} --store-index", stored.url, stored.spool);
        let capture =
            Running::start(&[&args!("capture -i {interface} {options}")[..], &place].concat(), "at tc egress");
        traffic();
        let done = capture.stop();
        assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
        let written = trawl(&args!(
            "store query --store {} --spool {} --filter tcp --packets {}",
            stored.url,
            stored.spool,
            stored.file
        ));
        assert!(written.status.success(), "{written:?}");
        stored
    }

    fn rows(&self, sql: &str) -> Vec<Value> {
        let base = args!("store query --store {} --spool {} --json", self.url, self.spool);
        let answer = good(trawl(&[&base[..], &[sql]].concat()));
        answer["rows"].as_array().expect("a list").clone()
    }

    /// Returns the round trips of the rows, and the ones of tshark, in whole microseconds.
    fn round_trips(&self) -> (Vec<Option<u64>>, Vec<Option<u64>>) {
        let rows = self.rows("SELECT rtt_us FROM packets WHERE protocol = 6 ORDER BY time_ns");
        let judged = tshark(&self.file, &["tcp.analysis.ack_rtt"]);
        let own = rows.iter().map(|row| row["rtt_us"].as_u64());
        (own.collect(), judged.iter().map(|row| microseconds(&row[0])).collect())
    }
}

fn microseconds(seconds: &str) -> Option<u64> {
    let (whole, part) = seconds.split_once('.')?;
    Some(whole.parse::<u64>().ok()? * 1_000_000 + part[..6].parse::<u64>().ok()?)
}

#[test]
fn round_trips_are_the_ones_of_tshark() {
    if !fleet_or_skip() {
        return;
    }
    let Some(stage) = Stage::over(Path { delay: DELAY, ..Path::default() }) else { return };
    let [four, six] = stage.servers();
    let stored = Stored::of(&stage, &stage.client, "--tap tc", || {
        converse(stage.connect(four), 10, NOT, NOT);
        transfer(stage.connect(six), 1 << 20, NOT);
    });
    let (own, judged) = stored.round_trips();
    // A busy host may repeat the last segment of a flight.
    if stored.rows("SELECT * FROM packets WHERE retransmission").is_empty() {
        assert_eq!(own, judged);
    }
    let known: Vec<u64> = own.iter().flatten().copied().collect();
    assert!(known.len() > 50 && known.iter().any(|rtt| *rtt >= 10_000), "{known:?}");
    let shortest = stored.rows("SELECT rtt_us, rtt_back_us FROM flows");
    assert_eq!(shortest.len(), 2);
    for flow in shortest {
        let [there, back] = ["rtt_us", "rtt_back_us"].map(|name| flow[name].as_u64().expect("a number"));
        assert!(there >= 10_000 && known.contains(&there), "{flow}");
        assert!(back < 10_000 && known.contains(&back), "{flow}");
    }
}

/// The acknowledgement of a repeated segment may answer either.
#[test]
fn repeated_segments_have_no_round_trip() {
    if !fleet_or_skip() {
        return;
    }
    let Some(stage) = Stage::over(Path { delay: DELAY, lose: Some(60), ..Path::default() }) else { return };
    let stored = Stored::of(&stage, &stage.client, "--tap tc", || {
        transfer(stage.connect(stage.servers()[0]), 4 << 20, NOT);
    });
    assert!(stage.wire().lost() > 0);
    let (own, judged) = stored.round_trips();
    let pairs: Vec<(u64, Option<u64>)> = own.iter().zip(&judged).filter_map(|(own, it)| Some(((*own)?, *it))).collect();
    assert!(pairs.iter().all(|(own, judged)| Some(*own) == *judged), "{pairs:?}");
    let all = judged.iter().flatten().count();
    assert!(pairs.len() < all && pairs.len() * 2 > all, "{} of {all}", pairs.len());
}

/// Returns the causes of the rows and of the conversations with them, and the ones that `trawl slow` finds in the packets.
fn causes(stored: &Stored) -> [Vec<String>; 3] {
    let texts = |rows: &[Value]| -> Vec<String> {
        let all = rows.iter().filter_map(|row| Some(row["cause"].as_str()?.to_owned()));
        all.collect()
    };
    let rows = stored.rows("SELECT cause FROM packets WHERE cause IS NOT NULL");
    let flows = stored.rows("SELECT cause FROM flows WHERE cause IS NOT NULL");
    let report = good(trawl(&args!("slow {} --json", stored.file)));
    [texts(&rows), texts(&flows), texts(report["findings"].as_array().expect("a list"))]
}

#[test]
fn causes_are_the_ones_of_trawl_slow() {
    if !fleet_or_skip() || !tools_or_skip(&["nft"]) {
        return;
    }
    let Some(stage) = Stage::open() else { return };
    let server = stage.servers()[0];
    let healthy = SocketAddr::new(server.ip(), server.port() + 1);
    let stored = Stored::of(&stage, &stage.server, "--tap tc", || {
        converse(stage.connect(server), 6, Duration::from_millis(300), PAUSE);
        converse(stage.connect(healthy), 20, NOT, PAUSE);
    });
    assert_eq!(causes(&stored), [(); 3].map(|()| ["slow_answer"]));
    let flows = stored.rows("SELECT dport, cause FROM flows ORDER BY dport");
    let ports: Vec<u64> = flows.iter().filter_map(|flow| flow["dport"].as_u64()).collect();
    assert_eq!(ports, [server.port(), healthy.port()].map(u64::from));
    assert_eq!((&flows[0]["cause"], &flows[1]["cause"]), (&"slow_answer".into(), &Value::Null));
}

#[test]
fn drops_of_the_chunk_are_causes() {
    if !fleet_or_skip() || !tools_or_skip(&["nft"]) {
        return;
    }
    let Some(stage) = Stage::open() else { return };
    let server = stage.servers()[0];
    let one_of_many = format!("tcp dport {} meta length > 150 numgen inc mod 8 == 0", server.port());
    stage.rule(&stage.server, "prerouting", &one_of_many, "drop");
    let stored = Stored::of(&stage, &stage.server, "--tap tc,drop", || {
        transfer(stage.connect(server), 8 << 20, NOT);
    });
    let [rows, flows, found] = causes(&stored);
    assert_eq!([&rows, &flows], [&["loss_here"]; 2]);
    assert_eq!(found.first(), rows.first(), "{found:?}");
}
