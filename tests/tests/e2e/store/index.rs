//! The index of a store: reproducible bytes, made by any command, and readable by other engines.

use std::fs;

use trawl_tests::witness::tshark;
use trawl_tests::{args, frames, trawl};

use super::{Places, files_below, json, lab};

/// The index made by a capture equals one made later.
#[test]
fn capture_indexes_its_chunks() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB", "--store-index"]);
    lab.send(&[frames::ipv4_udp(0), frames::silent(64)], 300);
    capture.wait_recorded(300);
    capture.stop_well();
    let read = |file: &std::path::PathBuf| fs::read(file).expect("a file");
    let files = files_below(&places.store, ".parquet");
    assert_eq!(files.len(), files_below(&places.store, ".pcapng.zst").len());
    let made: Vec<_> = files.iter().map(read).collect();
    let later = json(&trawl(&["store", "index", &places.url, "--json"]));
    assert_eq!(later["files"], 0, "{later}");
    let again = json(&trawl(&args!(
        "store index {} --rebuild --json",
        places.url
    )));
    assert_eq!(again["packets"], 300);
    assert!(made == files.iter().map(read).collect::<Vec<_>>());
    assert_eq!(places.problems(), Vec::<String>::new());
}

/// Returns another engine's answer, or `None` if `make test` could not install it.
fn engine(name: &str, call: &str, query: &str) -> Option<String> {
    let program = format!(
        "import sys\ntry:\n import {name}\nexcept ImportError:\n sys.exit(77)\nprint({call})"
    );
    let output = std::process::Command::new("python3")
        .args(["-c", &program, query])
        .env("PYTHONPATH", trawl_tests::s3::python_packages())
        .output()
        .ok()?;
    if output.status.code() == Some(77) {
        return None;
    }
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn duckdb(query: &str) -> Option<String> {
    engine("duckdb", "duckdb.sql(sys.argv[1]).fetchall()", query)
}

/// Queries ClickHouse as a library.
fn chdb(query: &str) -> Option<String> {
    engine("chdb", "chdb.query(sys.argv[1], 'CSV')", query)
}

#[test]
fn clickhouse_reads_the_index() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &[]);
    lab.send(&[frames::ipv4_udp(0), frames::silent(64)], 200);
    capture.wait_recorded(200);
    capture.stop_well();
    assert_eq!(
        json(&trawl(&["store", "index", &places.url, "--json"]))["packets"],
        200
    );
    let query = format!(
        "SELECT count(), count(src), min(toUnixTimestamp64Nano(time)) > 0, any(protocol), uniq(host, capture, date) \
         FROM file('{}/index/*/*/*/*.parquet', Parquet) SETTINGS use_hive_partitioning = 1",
        places.store.display()
    );
    match chdb(&query) {
        Some(answer) => assert_eq!(answer, "200,100,1,17,1"),
        None => trawl_tests::skip("Python's chdb is not installed: pip install chdb"),
    }
}

#[test]
fn duckdb_finds_each_packet_in_the_index() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(
        &[frames::ipv4_udp(0), frames::ipv6_udp(0), frames::silent(64)],
        300,
    );
    capture.wait_recorded(300);
    capture.stop_well();
    let indexed = json(&trawl(&["store", "index", &places.url, "--json"]));
    assert_eq!(indexed["packets"], 300);
    let files = files_below(&places.store, ".parquet");
    let bytes: Vec<_> = files
        .iter()
        .map(|file| fs::read(file).expect("a file"))
        .collect();
    // The same bytes again, from the chunks alone.
    assert_eq!(
        json(&trawl(&["store", "index", &places.url, "--json"]))["files"],
        0
    );
    let again = json(&trawl(&args!(
        "store index {} --rebuild --json",
        places.url
    )));
    assert_eq!(again["files"], files.len());
    let rebuilt: Vec<_> = files
        .iter()
        .map(|file| fs::read(file).expect("a file"))
        .collect();
    assert!(
        bytes == rebuilt,
        "an index is not the same when it is made again"
    );
    let first = &files_below(&places.store, ".pcapng.zst")[0];
    let judged = tshark(&first.to_string_lossy(), &["frame.time_epoch", "frame.len"]);
    let from = format!(
        "FROM read_parquet('{}/index/**/*.parquet')",
        places.store.display()
    );
    let ask = |what: &str, rest: &str| duckdb(&format!("SELECT {what} {from} {rest}"));
    let Some(count) = ask(
        "count(*), count(src), count(DISTINCT capture), count(DISTINCT host)",
        "",
    ) else {
        return trawl_tests::skip("Python's duckdb is not installed: pip install duckdb");
    };
    assert_eq!(count, "[(300, 200, 1, 1)]");
    let times = ask(
        "epoch_ns(time), length",
        "WHERE chunk LIKE '%/0000000000.pcapng.zst' ORDER BY time",
    )
    .expect("DuckDB is there");
    let expected: Vec<String> = judged
        .iter()
        .map(|row| format!("({}, {})", row[0].replace('.', ""), row[1]))
        .collect();
    assert_eq!(times, format!("[{}]", expected.join(", ")));
    assert_eq!(
        ask(
            "protocol, count(*)",
            "WHERE protocol IS NOT NULL GROUP BY protocol"
        )
        .as_deref(),
        Some("[(17, 200)]")
    );
}

/// An index from the time before the columns of processes has nulls in them.
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
        let base = args!(
            "store query --store {} --spool /nonexistent --json",
            places.url
        );
        json(&trawl(&[&base[..], &[&sql]].concat()))["rows"][0]["packets"].clone()
    };
    assert_eq!(
        count("comm IS NULL AND pid IS NULL AND container IS NULL"),
        20
    );
    assert_eq!(count("comm = 'bash' OR pid = 7 OR container = 'a'"), 0);
}
