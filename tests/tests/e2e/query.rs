//! Search of a store: answers in SQL, packets by a filter, and one packet at several hosts.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use trawl_sys::netns::run_in;
use trawl_tests::frames::{assorted, ipv4_udp, ipv6_udp, silent, udp};
use trawl_tests::witness::{tcpdump, tshark};
use trawl_tests::{Capture, Lab, args, binary, fleet_or_skip, trawl, wait_until};

/// A store with the records of two hosts of the same packets. One host captures at the driver, and the other after it.
struct Stored {
    lab: Lab,
    url: String,
}

const COUNT: u64 = 300;

impl Stored {
    fn new() -> Option<Self> {
        Self::of(&[ipv4_udp(0), ipv6_udp(0), silent(64)], COUNT)
    }

    fn of(frames: &[Vec<u8>], count: u64) -> Option<Self> {
        if !fleet_or_skip() {
            return None;
        }
        let lab = Lab::open()?;
        let url = format!("file://{}", lab.file("store"));
        let receiver = lab.receiver();
        let capture = |host: &str, tap: &str| {
            let spool = lab.file(&format!("spool-{host}"));
            let what = ["-i", &receiver, "--tap", tap, "-Q", "in", "--store", &url];
            let how = ["--spool", &spool, "--chunk-size", "4KiB"];
            Capture::start_on_host(host, &lab, &[&what[..], &how].concat())
        };
        let hosts = [capture("alpha", "xdp"), capture("beta", "packet")];
        lab.send(frames, count);
        for capture in hosts {
            capture.wait_recorded(count);
            capture.stop_well();
        }
        Some(Self { lab, url })
    }

    fn index(&self) {
        let done = trawl(&["store", "index", &self.url]);
        assert!(done.status.success(), "{done:?}");
    }

    fn query(&self, arguments: &[&str]) -> Output {
        let base = args!("store query --store {} --spool /nonexistent", self.url);
        trawl(&[&base[..], arguments].concat())
    }

    fn chunks(&self) -> Vec<String> {
        files_below(&self.lab.path("store"), ".pcapng.zst")
    }
}

/// Returns the files below a directory whose names have this ending.
fn files_below(directory: &Path, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            match entry.path() {
                path if path.is_dir() => directories.push(path),
                path => found.push(path.to_string_lossy().into_owned()),
            }
        }
    }
    found.retain(|path| path.ends_with(ending));
    found
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[test]
fn sql_answers_follow_a_list_of_uncovered_packets() {
    let Some(stored) = Stored::new() else { return };
    let count = "SELECT host, count(*) AS packets, count(src) AS ip FROM packets GROUP BY host ORDER BY host";
    let empty = stored.query(&[count]);
    assert_eq!(empty.status.code(), Some(1), "{empty:?}");
    assert!(said(&empty).contains("not covered: host alpha: 300 packets in "), "{empty:?}");
    stored.index();
    let whole = stored.query(&[count, "--json"]);
    let found = document(&whole);
    assert_eq!(
        found["rows"],
        json!([
            {"host": "alpha", "packets": COUNT, "ip": 200},
            {"host": "beta", "packets": COUNT, "ip": 200},
        ])
    );
    assert_eq!(found["coverage"][1]["indexed"], COUNT);
    assert_eq!(said(&whole), "");
    let csv = stored.query(&[count, "--csv"]);
    assert_eq!(String::from_utf8_lossy(&csv.stdout), "host,packets,ip\nalpha,300,200\nbeta,300,200\n");
    // The catalogue still has the rows of a removed chunk. A rebuilt catalogue lacks them, which is reported.
    fs::remove_file(&stored.chunks()[0]).expect("a chunk");
    assert_eq!(document(&stored.query(&[count, "--json"])), found);
    let again = trawl(&["store", "index", "--rebuild", &stored.url]);
    assert!(again.status.success(), "{again:?}");
    let less = document(&stored.query(&[count, "--json"]));
    let unknown = |row: usize| less["coverage"][row]["unknown"].as_u64().unwrap_or(0);
    assert!(unknown(0) + unknown(1) > 0, "{less}");
}

#[test]
fn wrong_query_is_explained() {
    let Some(stored) = Stored::new() else { return };
    stored.index();
    for (query, why) in [
        ("SELECT nothing FROM packets", "nothing"),
        ("SELEC 1", "SELEC"),
        ("CREATE TABLE t AS SELECT 1", "DDL"),
        ("COPY packets TO '/tmp/trawl-store-query-wrote.csv'", "DML"),
    ] {
        let refused = stored.query(&[query]);
        assert_eq!(refused.status.code(), Some(2), "{query}: {refused:?}");
        assert!(said(&refused).contains(why), "{query}: {refused:?}");
        assert!(refused.stdout.is_empty());
    }
    let refused = stored.query(&["SELECT src FROM packets", "--packets", "-"]);
    assert!(said(&refused).contains("SELECT * does"), "{refused:?}");
    let file = stored.query(&["SELECT * FROM '/etc/passwd'"]);
    assert_eq!(file.status.code(), Some(2), "{file:?}");
}

#[test]
fn addresses_are_asked_for_by_network() {
    let Some(stored) = Stored::new() else { return };
    stored.index();
    for (condition, packets) in [
        ("src <<= '10.77.0.0/16'", 200),
        ("in_net(src, '10.0.0.0/8') AND dst <<= '10.77.0.2'", 200),
        ("src <<= 'fd00::/8' OR dst <<= '10.78.0.0/16'", 200),
        ("NOT src <<= '10.77.0.0/16'", 200),
        ("src <<= '10.77.128.0/17'", 0),
    ] {
        let found = stored.query(&[&format!("SELECT count(*) AS packets FROM packets WHERE {condition}"), "--json"]);
        assert_eq!(document(&found)["rows"][0]["packets"], packets, "{condition}: {found:?}");
    }
    // Each of the hosts saw 100 packets, which are the same ones.
    for (filter, packets) in [("dst net 10.77.0.0/16", 100), ("ip6 net fd00::/8 and udp", 100), ("net 10.78.0.0/16", 0)]
    {
        let flows = document(&stored.query(&["--flows", "--filter", filter, "--json"]));
        let counts =
            flows["rows"].as_array().expect("rows").iter().map(|flow| flow["packets"].as_u64().expect("a count"));
        assert_eq!(counts.sum::<u64>(), packets, "{filter}: {flows}");
    }
    let refused = stored.query(&["--flows", "--filter", "net 10.77.0.1/16"]);
    assert!(said(&refused).contains("net 192.0.2.0/24"), "{}", said(&refused));
    for (condition, why) in [
        ("src <<= '10.77.0.1/16'", "did you mean 10.77.0.0/16 or 10.77.0.1?"),
        ("in_net(src, '10.77')", "write for example 192.0.2.0/24, 2001:db8::/32 or an address"),
        ("in_net(src, dst)", "src <<= '10.0.0.0/8'"),
        ("in_net(sport, '10.0.0.0/8')", "write in_net(src, '10.0.0.0/8')"),
    ] {
        let refused = stored.query(&[&format!("SELECT * FROM packets WHERE {condition}")]);
        assert_eq!(refused.status.code(), Some(2), "{condition}: {refused:?}");
        assert!(said(&refused).contains(why), "{condition}: {}", said(&refused));
    }
}

#[test]
fn conversation_at_two_hosts_is_one_row() {
    let Some(stored) = Stored::new() else { return };
    stored.index();
    let shown = document(&stored.query(&["--flows", "--json"]));
    let flows = shown["rows"].as_array().expect("rows");
    let ipv4: Vec<&Value> = flows.iter().filter(|flow| flow["src"] == "10.77.0.1").collect();
    assert_eq!((flows.len(), ipv4.len()), (2, 1), "{shown}");
    let flow = ipv4[0];
    for (column, expected) in [
        ("sport", json!(40_000)),
        ("dst", json!("10.77.0.2")),
        ("dport", json!(9)),
        ("protocol", json!(17)),
        ("packets", json!(100)),
        ("bytes", json!(6400)),
        ("packets_back", json!(0)),
        ("connections", json!(0)),
        ("hosts", json!("alpha,beta")),
        ("captures", json!("trawl")),
    ] {
        assert_eq!(flow[column], expected, "{column} of {flow}");
    }
    let sql = format!("SELECT host, hook, packets FROM sightings WHERE flow = {} ORDER BY host", flow["flow"]);
    let sightings = document(&stored.query(&[&sql, "--json"]));
    assert_eq!(
        sightings["rows"],
        json!([{"host": "alpha", "hook": "xdp exit", "packets": 100}, {"host": "beta", "hook": "packet", "packets": 100}])
    );
}

#[test]
fn query_is_limited_in_memory_and_ends_at_a_signal() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let store = lab.file("store");
    fs::create_dir(&store).expect("a directory");
    let url = format!("file://{store}");
    let query = args!("store query --store {url} --memory 400MiB");
    for sql in [
        // The queries need memory for a single value, and for rows that must be in memory together.
        "SELECT length(repeat('x', 2000000000))",
        "SELECT length(s) FROM (SELECT string_agg(repeat('x', 100000), '') AS s FROM generate_series(1, 100000))",
    ] {
        let output = trawl(&[&query[..], &[sql]].concat());
        assert_eq!(output.status.code(), Some(1), "{sql}: {output:?}");
        assert!(said(&output).contains("memory") || said(&output).contains("Resources exhausted"), "{}", said(&output));
    }
    let mut endless = Command::new(binary::path());
    endless.args(&query).arg("SELECT count(*) FROM generate_series(1, 1000000000000)");
    let mut endless = endless.spawn().expect("it starts");
    let status = format!("/proc/{}/status", endless.id());
    wait_until("it watches for signals", || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let blocked = text.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = blocked.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        blocked.is_some_and(|bits| bits & 2 != 0)
    });
    trawl_sys::process::interrupt(endless.id()).expect("it runs");
    assert_eq!(endless.wait().expect("a child of ours").code(), Some(130));
}

#[test]
fn errors_name_the_tables_and_the_option_of_the_store() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let store = lab.file("store");
    fs::create_dir(&store).expect("a directory");
    let url = format!("file://{store}");
    let unknown = trawl(&["store", "query", "--store", &url, "SELECT * FROM packet"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    assert!(said(&unknown).contains("packets, flows and sightings"), "{}", said(&unknown));
    if fs::exists("/var/lib/trawl/store").unwrap_or(true) {
        return;
    }
    let mut nowhere = Command::new(binary::path());
    nowhere.args(["store", "query", "SELECT 1"]).env_remove("TRAWL_STORE");
    let nowhere = nowhere.output().expect("it starts");
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
    assert!(said(&nowhere).contains("--store URL"), "{}", said(&nowhere));
}

#[test]
fn lost_index_is_reported_and_made_again() {
    let Some(stored) = Stored::new() else { return };
    stored.index();
    let count = ["SELECT count(*) AS packets FROM packets", "--json"];
    let whole = document(&stored.query(&count));
    let found = stored.query(&["--filter", "udp", "--json"]);
    assert_eq!(String::from_utf8_lossy(&found.stdout).lines().count(), 400, "{found:?}");
    fs::remove_dir_all(stored.lab.path("store").join("index")).expect("an index");
    let chunks = stored.chunks().len();
    let listed = document(&trawl(&args!("store ls --json --spool /nonexistent {}", stored.url)));
    assert_eq!(listed["captures"].as_array().map(Vec::len), Some(2), "{listed}");
    let less = document(&stored.query(&count));
    assert_eq!(less["rows"][0]["packets"], 0);
    let not_indexed = |row: &Value| row["not_indexed_chunks"].as_u64().unwrap_or(0);
    let covered = less["coverage"].as_array().expect("hosts");
    assert_eq!(covered.iter().map(not_indexed).sum::<u64>(), chunks as u64, "{less}");
    let lost = stored.query(&["--filter", "udp"]);
    assert!(said(&lost).contains("not covered: host alpha: 300 packets in "), "{lost:?}");
    stored.index();
    assert_eq!(document(&stored.query(&count)), whole);
    // A changed file is named.
    let data = files_below(&stored.lab.path("store").join("index"), ".parquet");
    let [file] = &data[..] else { panic!("one file: {data:?}") };
    let mut bytes = fs::read(file).expect("a file");
    let length = bytes.len();
    bytes[length - 100..length - 8].fill(0xff);
    fs::write(file, bytes).expect("a file");
    let name = file.rsplit('/').next().expect("a name");
    for query in [&["--filter", "udp"][..], &count[..1]] {
        let damaged = stored.query(query);
        assert_eq!(damaged.status.code(), Some(1), "{damaged:?}");
        assert!(said(&damaged).contains(name), "{}", said(&damaged));
    }
}

#[test]
fn filters_need_no_engine_and_sql_names_its_build() {
    let Some(stored) = Stored::new() else { return };
    stored.index();
    let directory = stored.lab.file("bin");
    fs::create_dir(&directory).expect("a directory");
    for program in ["trawl", "trawl-fleet"] {
        binary::copy(binary::path().with_file_name(program), format!("{directory}/{program}"));
    }
    let query = |arguments: &[&str]| {
        let mut command = Command::new(format!("{directory}/trawl"));
        command.args(args!("store query --store {} --spool /nonexistent", stored.url));
        command.args(arguments).output().expect("it starts")
    };
    let found = query(&["--filter", "udp", "--host", "alpha", "--json"]);
    assert!(found.status.success(), "{found:?}");
    assert_eq!(String::from_utf8_lossy(&found.stdout).lines().count(), 200);
    let first = query(&["--filter", "udp", "-c", "1", "--json"]);
    assert_eq!(String::from_utf8_lossy(&first.stdout).lines().count(), 1, "{first:?}");
    let sql = query(&["SELECT 1"]);
    assert_eq!(sql.status.code(), Some(1), "{sql:?}");
    assert!(said(&sql).contains("make build-query"), "{}", said(&sql));
}

/// Root runs neither a program of another user next to a copy of trawl, nor one below a directory that others may move.
#[test]
fn planted_helper_is_not_run_by_root() {
    let Some(lab) = Lab::open() else { return };
    let mode = |path: &str, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    let (above, directory) = (lab.file("above"), lab.file("above/bin"));
    fs::create_dir_all(&directory).expect("a directory");
    let copy = lab.file("above/bin/trawl");
    binary::copy(binary::path(), &copy);
    let helper = lab.file("above/bin/trawl-fleet");
    fs::write(&helper, "#!/bin/sh\necho PLANTED\n").expect("a helper");
    mode(&helper, 0o755);
    let store = lab.file("store");
    fs::create_dir(&store).expect("a directory");
    mode(&store, 0o700);
    let query = || {
        let mut command = Command::new(&copy);
        let url = format!("file://{store}");
        let output = command.args(["store", "query", "--store", &url, "SELECT 1"]);
        output.output().expect("it starts")
    };
    let is_planted = |output: &Output| String::from_utf8_lossy(&output.stdout).contains("PLANTED");
    assert!(is_planted(&query()), "all directories are root's");
    for (directory_mode, above_mode, planter) in [(0o1777, 0o755, 0), (0o755, 0o755, 65_534), (0o755, 0o777, 0)] {
        mode(&directory, directory_mode);
        mode(&above, above_mode);
        chown(&helper, Some(planter), None).expect("root may");
        let output = query();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!is_planted(&output));
        assert!(said(&output).contains("cannot run "), "{}", said(&output));
        assert!(said(&output).contains("make install"), "{}", said(&output));
    }
}

#[test]
fn filtered_packets_of_all_hosts_are_in_order_of_time() {
    let Some(stored) = Stored::new() else { return };
    stored.index();
    let file = stored.lab.file("found.pcapng");
    for (filter, count) in [
        ("udp port 9", 400),
        ("ip and udp dst port 9", 200),
        ("ip6 or arp", 200),
        ("not ip and not ip6", 200),
        ("udp port 10", 0),
    ] {
        let found = stored.query(&["--filter", filter, "--packets", &file]);
        assert!(found.status.success(), "{found:?}");
        let rows = tshark(&file, &["frame.time_epoch", "frame.interface_name"]);
        assert_eq!(rows.len(), count, "{filter}");
        let times: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert!(times.is_sorted(), "{filter}");
        let of_alpha = rows.iter().filter(|row| row[1].starts_with("alpha:")).count();
        assert_eq!(of_alpha, count / 2, "{filter}");
    }
    // The answer has exactly the stored bytes, as tshark shows for the answer and the chunks.
    let sql = stored.query(&["SELECT * FROM packets WHERE host = 'beta'", "--packets", &file]);
    assert!(sql.status.success(), "{sql:?}");
    let fields = ["frame.time_epoch", "frame.len", "udp.payload", "frame.packet_id"];
    let mut expected: Vec<Vec<String>> = stored
        .chunks()
        .iter()
        .filter(|chunk| chunk.contains("/beta/"))
        .flat_map(|chunk| tshark(chunk, &fields))
        .collect();
    expected.sort();
    let mut rows = tshark(&file, &fields);
    rows.sort();
    assert_eq!(rows, expected);
    // Packets are selected by host, and by a time before the first packet.
    let lines = stored.query(&["--filter", "ip6", "--host", "beta"]);
    assert_eq!(String::from_utf8_lossy(&lines.stdout).lines().count(), 100);
    let none = stored.query(&["--filter", "ip6", "--to", "-1h"]);
    assert!(none.status.success() && none.stdout.is_empty(), "{none:?}");
    // So does the entry of Wireshark's list, by filter, by host, and without a question.
    let extcap = ["extcap", "--capture", "--extcap-interface", "trawl:packets-of-a-store", "--fifo", &file];
    let all = 2 * COUNT as usize;
    for (asked, count) in [
        (args!("--extcap-capture-filter ip6 --host beta"), 100),
        (args!("--from -1h"), all),
        (args!("--to -1h"), 0),
        (vec!["--sql", "SELECT * FROM packets WHERE host = 'alpha'"], all / 2),
    ] {
        let done = trawl(&[&extcap[..], &["--store", &stored.url], &asked].concat());
        assert!(done.status.success(), "{asked:?}: {done:?}");
        assert_eq!(tshark(&file, &["frame.number"]).len(), count, "{asked:?}");
    }
    let chunk = &stored.chunks()[0];
    fs::remove_file(chunk).expect("a chunk");
    let gone = stored.query(&["--filter", "ip6 or ip", "--packets", &file]);
    assert!(said(&gone).contains("are no longer in the store"), "{gone:?}");
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
}

/// The index leaves out only packets that tcpdump would leave out.
#[test]
fn filters_match_in_the_store_as_tcpdump_in_a_file() {
    let frames = assorted();
    let count = frames.len() as u64;
    let Some(stored) = Stored::of(&frames, count) else {
        return;
    };
    stored.index();
    let everything = stored.lab.file("everything.pcapng");
    let all = stored.query(&["SELECT * FROM packets", "--packets", &everything]);
    assert!(all.status.success(), "{all:?}");
    for (filter, at_least) in [
        ("host 10.77.0.1", 8),
        ("src host 10.77.0.2", 0),
        ("arp host 10.77.0.2", 2),
        ("ip host 10.77.0.2", 6),
        ("arp", 2),
        ("port 9", 6),
        ("tcp port 9", 2),
        ("tcp dst port 9 or (icmp and src 10.77.0.1)", 4),
        ("host 10.77.0.1 and not udp", 6),
        ("not host 10.77.0.1", 18),
        ("src or dst host 10.77.0.2", 8),
        ("host fd00:77::2 || port 53", 2),
        ("host 10.77.0.1 and ip[8] = 64", 1),
        ("vlan and udp", 2),
        ("net 10.77.0.0/16", 8),
        ("src net fd00::/8 or net 10.77.0.0/31", 2),
        ("host 192.0.2.1", 0),
    ] {
        let expected = tcpdump(&everything, &[filter]).len();
        assert!(expected >= at_least, "{filter}: {expected}");
        let found = stored.query(&["--filter", filter]);
        let lines = String::from_utf8_lossy(&found.stdout).lines().count();
        assert_eq!(lines, expected, "{filter}: {found:?}");
    }
}

#[test]
fn packet_is_found_at_both_hosts() {
    let frames: Vec<Vec<u8>> = (0..100).map(|number| udp(&[number; 8])).collect();
    let Some(stored) = Stored::of(&frames, 100) else {
        return;
    };
    stored.index();
    let trace = |more: &[&str]| {
        let base = ["store", "trace", "--store", &stored.url, "--json"];
        trawl(&[&base[..], more].concat())
    };
    let traced = trace(&["udp", "and", "dst", "port", "9"]);
    crate::json::holds("store trace", &traced.stdout);
    let found = document(&traced);
    let ways = found["ways"].as_array().expect("a list");
    let packets: u64 = ways.iter().filter_map(|way| way["packets"].as_u64()).sum();
    assert_eq!(packets, 100, "{found}");
    for way in ways {
        let mut hosts: Vec<_> = way["places"].as_array().expect("a list").iter().collect();
        hosts.sort_by_key(|place| place["host"].as_str());
        assert_eq!(hosts[0]["host"], "alpha");
        assert_eq!(hosts[1]["host"], "beta");
        let delay = &way["delays"][0];
        // The order is unknown if the errors of the clocks are unknown.
        if delay["error_bound_ns"].is_null() {
            assert_eq!(delay["ordered"], 0);
        }
    }
    assert_eq!(document(&trace(&["dst", "port", "10"]))["ways"], json!([]));
    let one = document(&trace(&["--host", "beta"]));
    assert_eq!(one["ways"], json!([]));
    assert_eq!(one["seen_once"][0]["packets"], 100);
    let refused = trace(&["udp[8] = 1"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn equal_packets_are_ambiguous() {
    let Some(stored) = Stored::of(&[udp(b"again")], 50) else {
        return;
    };
    stored.index();
    let trace = trawl(&["store", "trace", "--store", &stored.url, "--window", "1h"]);
    let text = String::from_utf8_lossy(&trace.stdout);
    assert!(text.contains("1  ambiguous: identical packets at one interface"), "{trace:?}");
}

/// Earlier names of commands still run the commands in groups.
#[test]
fn old_names_run_the_commands_in_groups() {
    if !fleet_or_skip() {
        return;
    }
    for (old, new) in [
        ("index", "trawl store index"),
        ("query", "trawl store query"),
        ("trace-flow", "trawl store trace"),
        ("agent", "trawl fleet agent"),
    ] {
        let help = trawl(&[old, "--help"]);
        assert!(help.status.success(), "{old}: {help:?}");
        let usage = format!("Usage: {new}");
        let text = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(text.contains(&usage), "{old}: {text}");
    }
}

/// The sender's stack passes packets of many segments to the interface, whose peer receives each segment.
#[test]
fn segments_of_sent_packets_are_counted() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let (url, pair) = (format!("file://{}", lab.file("store")), &lab.pair);
    let capture = |host: &str, from: &str| {
        let spool = lab.file(&format!("spool-{host}"));
        let what = args!("{from} --store {url} --spool {spool} 'tcp dst port 8080'");
        Capture::start_on_host(host, &lab, &what)
    };
    // veth segments packets for the peer's XDP program.
    let receiver = capture("receiver", &format!("-i {} --tap xdp", lab.receiver()));
    let sender = capture("sender", &format!("-i {} --tap tc -Q out", lab.sender()));
    let address = (pair.b.ipv4, 8080);
    let listener = run_in(&pair.b.namespace, || TcpListener::bind(address)).expect("a namespace").expect("a port");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.read_to_end(&mut Vec::new()).expect("its bytes");
        });
        let stream = run_in(&pair.a.namespace, || TcpStream::connect(address));
        stream.expect("a namespace").expect("a connection").write_all(&[7; 1 << 20]).expect("it is sent");
    });
    for capture in [sender, receiver] {
        capture.stop_well();
    }
    let indexed = trawl(&["store", "index", &url]);
    assert!(indexed.status.success(), "{indexed:?}");
    let query = args!("store query --store {url} --spool /nonexistent --json");
    let rows = |sql: &str| document(&trawl(&[&query[..], &[sql]].concat()))["rows"].clone();
    let places = rows("SELECT packets, segments FROM sightings ORDER BY host");
    let number = |row: usize, column: &str| places[row][column].as_u64().expect("a number");
    assert_eq!(number(1, "segments"), number(0, "packets"), "{places}");
    assert!(number(1, "packets") < number(0, "packets"), "{places}");
    assert_eq!(rows("SELECT segments FROM flows")[0]["segments"], number(0, "packets"));
}
