//! The index of a store: reproducible bytes, made by any command, and readable by other engines.

use std::fs;

use trawl_tests::witness::tshark;
use trawl_tests::{args, frames, trawl};

use super::{Places, files_below, good, json, lab};

/// Returns the rows of a store, each as a line.
fn rows(places: &Places) -> String {
    let query = args!("store query --store {} --spool {} --csv", places.url, places.spool);
    let sql = "SELECT * FROM packets ORDER BY time_ns, chunk, \"offset\"";
    let answer = trawl(&[&query[..], &[sql]].concat());
    assert!(answer.status.success(), "{answer:?}");
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

/// The rows are the same before the catalogue has them, in the catalogue, and in a catalogue rebuilt from the chunks.
#[test]
fn capture_indexes_its_chunks() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB", "--store-index"]);
    lab.send(&[frames::ipv4_udp(0), frames::silent(64)], 300);
    capture.wait_recorded(300);
    capture.stop_well();
    let files = files_below(&places.store, ".parquet");
    let chunks = files_below(&places.store, ".pcapng.zst").len();
    assert_eq!(files.len(), chunks);
    let made = rows(&places);
    assert_eq!(made.lines().count(), 301);
    let account = places.account();
    let later = json(&trawl(&["store", "index", &places.url, "--json"]));
    assert_eq!((&later["chunks"], &later["there"], &later["files"]), (&0.into(), &chunks.into(), &1.into()), "{later}");
    assert_eq!(rows(&places), made);
    assert_eq!(places.account(), account);
    let again = json(&trawl(&args!("store index {} --rebuild --json", places.url)));
    assert_eq!(again["packets"], 300);
    assert_eq!(rows(&places), made);
    assert_eq!(places.account(), account);
    assert_eq!(places.problems(), Vec::<String>::new());
}

/// The catalogue grows with each capture, and its small files are joined into one for the day.
#[test]
fn captures_are_added_to_the_catalogue() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    for round in 1..=3 {
        let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
        lab.send(&[frames::ipv4_udp(0)], 100);
        capture.wait_recorded(100);
        // The listing while the capture runs makes another index next to the catalogue.
        good(places.command("ls", &[]));
        capture.stop_well();
        let marks = places.store.join("new");
        assert!(!files_below(&marks, "").is_empty());
        let indexed = json(&trawl(&["store", "index", &places.url, "--json"]));
        assert_eq!(indexed["packets"], 100, "{indexed}");
        assert!(files_below(&marks, "").is_empty());
        assert_eq!(rows(&places).lines().count(), 1 + 100 * round);
        let all = 100 * round as u64;
        assert_eq!(places.account(), [all, all, 0, 0, 0]);
        let idle = json(&trawl(&["store", "index", &places.url, "--json"]));
        assert_eq!((&idle["packets"], &idle["files"]), (&0.into(), &0.into()));
    }
    let listed = good(places.command("ls", &[]));
    assert_eq!(listed["captures"].as_array().map(Vec::len), Some(3));
    assert_eq!(listed["captures"][0]["ended"], "signal", "{listed}");
}

/// A damaged catalogue is rebuilt, and files to which no version refers are removed after a day.
#[test]
fn catalogue_is_made_again() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(&[frames::ipv4_udp(0)], 100);
    capture.wait_recorded(100);
    capture.stop_well();
    good(trawl(&["store", "index", &places.url, "--json"]));
    let made = rows(&places);
    let state = places.store.join("index/state");
    for file in files_below(&state, "") {
        fs::write(file, "damaged").expect("it can be written");
    }
    let refused = places.command("ls", &[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("trawl store index --rebuild"), "{said}");
    let files = files_below(&places.store.join("index/data"), "");
    let day = ["-d", "2 days ago"];
    let aged = std::process::Command::new("touch").args(day).args(&files).status();
    assert!(aged.expect("touch runs").success());
    let rebuild = args!("store index {} --rebuild --json", places.url);
    good(trawl(&rebuild));
    assert_eq!(rows(&places), made);
    assert_eq!(places.account(), [100, 100, 0, 0, 0]);
    assert!(files.iter().all(|file| !file.exists()));
}

/// Several processes may change a catalogue at the same time, and each chunk is added once.
#[test]
fn catalogue_changes_once_at_a_time() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(&[frames::ipv4_udp(0)], 300);
    capture.wait_recorded(300);
    capture.stop_well();
    let index = || trawl(&["store", "index", &places.url, "--json"]);
    let done = std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(index)).collect();
        let joined = all.into_iter().map(|one| one.join().expect("an end"));
        joined.collect::<Vec<_>>()
    });
    let (good, refused): (Vec<_>, Vec<_>) = done.iter().partition(|one| one.status.success());
    assert!(!good.is_empty());
    for output in refused {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("cannot change the catalogue"), "{said}");
    }
    let added: u64 = good.iter().map(|one| json(one)["packets"].as_u64().expect("a number")).sum();
    assert_eq!(added, 300);
    assert_eq!(rows(&places).lines().count(), 301);
    assert_eq!(places.account(), [300, 300, 0, 0, 0]);
}

/// Returns another engine's answer, or `None` if `make test` could not install it.
fn engine(name: &str, call: &str, query: &str) -> Option<String> {
    let program = format!("import sys\ntry:\n import {name}\nexcept ImportError:\n sys.exit(77)\nprint({call})");
    let output = std::process::Command::new("python3")
        .args(["-c", &program, query])
        .env("PYTHONPATH", trawl_tests::s3::python_packages())
        // ClickHouse reads only below its working directory.
        .current_dir("/")
        .output()
        .ok()?;
    if output.status.code() == Some(77) {
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn duckdb(query: &str) -> Option<String> {
    engine("duckdb", "duckdb.sql(sys.argv[1]).fetchall()", query)
}

/// Queries ClickHouse as a library.
fn chdb(query: &str) -> Option<String> {
    engine("chdb", "chdb.query(sys.argv[1], 'CSV')", query)
}

/// Loads DuckDB's extension for such tables from its package.
const WITH_ICEBERG: &str = "(lambda c: [c.execute('LOAD ' + chr(39) + glob.glob(p + '/duckdb_extension_' + x + \
    '/extensions/*/' + x + '.duckdb_extension')[0] + chr(39)) for x in ('avro', 'iceberg')] and \
    c.execute(sys.argv[1]).fetchall())(duckdb.connect(config={'allow_unsigned_extensions': 'true'}))";

/// Other engines read the table by its directory.
#[test]
fn other_engines_read_the_table() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    for _ in 0..2 {
        let capture = places.start(&lab, &[]);
        lab.send(&[frames::ipv4_udp(0), frames::silent(64)], 200);
        capture.wait_recorded(200);
        capture.stop_well();
        good(trawl(&["store", "index", &places.url, "--json"]));
    }
    let table = places.store.join("index");
    let table = table.display();
    let columns = "count(*), count(src), min(time_ns) > 0, min(protocol), count(DISTINCT chunk)";
    let asked = |from: &str| {
        [
            format!("SELECT {columns} FROM {from}"),
            format!("SELECT count(*) FROM {from} WHERE date < '2026'"),
            format!("SELECT count(*) FROM {from} WHERE src = '10.77.0.1' AND time > '2026-01-01'"),
        ]
    };
    let answers = ["[(400, 200, True, 17, 2)]", "[(0,)]", "[(200,)]"];
    for (query, answer) in asked(&format!("iceberg_scan('{table}')")).iter().zip(answers) {
        let packages = trawl_tests::s3::python_packages();
        let packages = format!("('{}' + ", packages.display());
        let call = WITH_ICEBERG.replace("(p + ", &packages);
        match engine("duckdb, glob", &call, query) {
            Some(found) => assert_eq!(found, answer, "{query}"),
            None => trawl_tests::skip("Python's duckdb is not installed: pip install duckdb"),
        }
    }
    let answers = ["400,200,1,17,2", "0", "200"];
    for (query, answer) in asked(&format!("icebergLocal('{table}')")).iter().zip(answers) {
        match chdb(query) {
            Some(found) => assert_eq!(found, answer, "{query}"),
            None => trawl_tests::skip("Python's chdb is not installed: pip install chdb"),
        }
    }
}

#[test]
fn duckdb_finds_each_packet_in_the_index() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(&[frames::ipv4_udp(0), frames::ipv6_udp(0), frames::silent(64)], 300);
    capture.wait_recorded(300);
    capture.stop_well();
    let indexed = json(&trawl(&["store", "index", &places.url, "--json"]));
    assert_eq!(indexed["packets"], 300);
    let first = &files_below(&places.store, ".pcapng.zst")[0];
    let judged = tshark(&first.to_string_lossy(), &["frame.time_epoch", "frame.len"]);
    let from = format!("FROM read_parquet('{}/index/data/*/*.parquet')", places.store.display());
    let ask = |what: &str, rest: &str| duckdb(&format!("SELECT {what} {from} {rest}"));
    let Some(count) = ask("count(*), count(src), count(DISTINCT capture), count(DISTINCT host)", "") else {
        return trawl_tests::skip("Python's duckdb is not installed: pip install duckdb");
    };
    assert_eq!(count, "[(300, 200, 1, 1)]");
    let times =
        ask("time_ns, length", "WHERE chunk LIKE '%/0000000000.pcapng.zst' ORDER BY time_ns").expect("DuckDB is there");
    let expected: Vec<String> = judged.iter().map(|row| format!("({}, {})", row[0].replace('.', ""), row[1])).collect();
    assert_eq!(times, format!("[{}]", expected.join(", ")));
    assert_eq!(
        ask("protocol, count(*)", "WHERE protocol IS NOT NULL GROUP BY protocol").as_deref(),
        Some("[(17, 200)]")
    );
}

/// An index without the columns of processes is read as if they were null.
#[test]
fn index_without_newer_columns_is_read() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--store-index"]);
    lab.send(&[frames::ipv4_udp(0)], 20);
    capture.wait_recorded(20);
    capture.stop_well();
    for file in files_below(&places.store, ".parquet") {
        let new = file.with_extension("new");
        let without = format!(
            "COPY (SELECT * EXCLUDE (pid, comm, container) FROM \
             read_parquet('{}', hive_partitioning = false)) TO '{}' (FORMAT parquet)",
            file.display(),
            new.display()
        );
        if engine("duckdb", "duckdb.execute(sys.argv[1]).fetchall()", &without).is_none() {
            return trawl_tests::skip("Python's duckdb is not installed: pip install duckdb");
        }
        fs::rename(new, file).expect("a file");
    }
    let count = |condition: &str| {
        let sql = format!("SELECT count(*) AS packets FROM packets WHERE {condition}");
        let base = args!("store query --store {} --spool /nonexistent --json", places.url);
        json(&trawl(&[&base[..], &[&sql]].concat()))["rows"][0]["packets"].clone()
    };
    assert_eq!(count("comm IS NULL AND pid IS NULL AND container IS NULL"), 20);
    assert_eq!(count("comm = 'bash' OR pid = 7 OR container = 'a'"), 0);
}
