//! `trawl bench uploaders`: its arguments and its table.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use trawl_bench::study::harness::made_up::Directory;
use trawl_store::Uploaders;
use trawl_sys::{Error, Result, host};

use crate::units;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://; what is put there is removed at the end
    #[arg(value_name = "URL")]
    store: String,
    /// How many hosts, one round for each of these numbers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "100,300,1000", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    hosts: Vec<u64>,
    /// Chunks of each host
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    chunks: u64,
    /// Size of each chunk
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = units::bytes)]
    size: u64,
    /// Where to put the spools of all hosts
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn directory(&self) -> &PathBuf {
        &self.dir
    }
}

#[derive(Serialize)]
struct Results {
    experiment: &'static str,
    store: String,
    hardware: String,
    os: String,
    chunks_of_host: u64,
    rounds: Vec<Round>,
}

#[derive(Serialize)]
struct Round {
    hosts: u64,
    chunks: u64,
    bytes: u64,
    seconds: f64,
    chunks_per_second: f64,
    bytes_per_second: f64,
    /// Of all uploaders, without the store's own.
    cpu_ms_per_chunk: f64,
    /// Until a host had stored all of its chunks.
    host_seconds_median: f64,
    host_seconds_max: f64,
    hosts_with_retries: u64,
    recorded: u64,
    stored: u64,
    /// To list the store and to read its manifests.
    list_seconds: f64,
}

pub fn run(args: &Args, progress: &mut dyn FnMut(&str)) -> Result<ExitCode> {
    let mut rounds = Vec::new();
    for hosts in &args.hosts {
        progress(&format!("{hosts} hosts"));
        rounds.push(round(args, *hosts)?);
    }
    let lost: Vec<String> = rounds
        .iter()
        .filter(|round| round.stored != round.recorded)
        .map(|round| {
            format!(
                "{} hosts: {} of {} packets are stored",
                round.hosts, round.stored, round.recorded
            )
        })
        .collect();
    let about = host::describe();
    let results = Results {
        experiment: "uploaders",
        store: args.store.clone(),
        hardware: about.hardware,
        os: about.os,
        chunks_of_host: args.chunks,
        rounds,
    };
    super::deliver(&results, args.json, show)?;
    Ok(super::tell(&lost))
}

fn round(args: &Args, hosts: u64) -> Result<Round> {
    let directory = Directory::new(&args.dir, "uploaders")?;
    let plan = Uploaders {
        url: args.store.clone(),
        directory: directory.path().to_owned(),
        hosts,
        chunks_of_host: args.chunks,
        chunk_bytes: args.size,
    };
    let done = plan.run()?;
    let (Some(slowest), Some(median)) = (
        done.host_seconds.last(),
        done.host_seconds.get(done.host_seconds.len() / 2),
    ) else {
        return Err(Error::failed("cannot measure uploaders", "there were none"));
    };
    let chunks = hosts * args.chunks;
    Ok(Round {
        hosts,
        chunks,
        bytes: done.bytes,
        seconds: done.seconds,
        chunks_per_second: chunks as f64 / done.seconds,
        bytes_per_second: done.bytes as f64 / done.seconds,
        cpu_ms_per_chunk: done.cpu_seconds * 1e3 / chunks as f64,
        host_seconds_median: *median,
        host_seconds_max: *slowest,
        hosts_with_retries: done.hosts_with_retries,
        recorded: done.recorded,
        stored: done.stored,
        list_seconds: done.list_seconds,
    })
}

fn show(results: &Results) {
    let (chunks, store) = (results.chunks_of_host, &results.store);
    println!("uploaders: each host stores {chunks} chunks in {store}");
    println!("{}, {}", results.hardware, results.os);
    println!(
        "{:>6} {:>9} {:>9} {:>9} {:>10} {:>16} {:>8} {:>9}",
        "hosts", "seconds", "chunks/s", "MB/s", "CPU/chunk", "host median, max", "retries", "list"
    );
    for round in &results.rounds {
        println!(
            "{:>6} {:>9.2} {:>9.0} {:>9.1} {:>7.2} ms {:>7.2} {:>7.2} s {:>8} {:>7.2} s",
            round.hosts,
            round.seconds,
            round.chunks_per_second,
            round.bytes_per_second / 1e6,
            round.cpu_ms_per_chunk,
            round.host_seconds_median,
            round.host_seconds_max,
            round.hosts_with_retries,
            round.list_seconds,
        );
    }
}
