//! DPDK's own capture beside trawl's: testpmd forwards between two ports while dpdk-dumpcap records it (study E).
//! The ports are veths through DPDK's af_packet driver, so the same frames can be recorded by trawl.

use std::fs;
use std::path::PathBuf;

use trawl_kernel::{Error, Result};
use trawl_lab::{Line, LineOptions};

use crate::count::{self, Scratch};
use crate::peer::Peer;
use crate::study::definition::Space;
use crate::study::harness::process::{self, Background};
use crate::study::harness::traffic::{Traffic, received};
use crate::study::model::{Agreement, Experiment, Finding};
use crate::study::{Bench, Case, Measure, Measured, Stop};

/// 512 MiB in pages of 2 MiB.
const HUGE_PAGES: u64 = 256;

const TRAWL: &str = "trawl dpdk";
/// As Debian 12 names it.
const DUMPCAP_NEEDS: &str = "librte_mempool_dpaa.so.23";

#[derive(Clone, Copy, Debug)]
pub struct Pdump;

impl Measure for Pdump {
    fn cases(&self, space: &Space, _: &Bench) -> Result<Vec<Case>> {
        let seconds = space.number("seconds")?;
        let mut cases = Vec::new();
        for series in space.words("series")? {
            for size in space.numbers("sizes")? {
                let who = series.clone();
                cases.push(Case {
                    series: series.clone(),
                    x: size,
                    run: Box::new(move |bench| measure(bench, &who, size as usize, seconds)),
                });
            }
        }
        Ok(cases)
    }

    fn judge(&self, experiment: &Experiment) -> Finding {
        let mean = |series: &str, metric: &str| {
            let line = experiment.line(series, metric);
            let sum: f64 = line.iter().map(|point| point.value.median).sum();
            (!line.is_empty()).then(|| sum / line.len() as f64)
        };
        let forwarding = |series| mean(series, "forwarding_gbits");
        let (Some(alone), Some(captured)) =
            (forwarding("dpdk-testpmd alone"), forwarding("dpdk-dumpcap"))
        else {
            return Finding::default();
        };
        let share = |series| {
            let recorded = mean(series, "capture_gbits")?;
            Some(100.0 * recorded / forwarding(series)?)
        };
        let trawl = forwarding("trawl tc beside dpdk-testpmd");
        let beside = match (forwarding(TRAWL), share(TRAWL), share("dpdk-dumpcap")) {
            (Some(rest), Some(ours), Some(theirs)) => format!(
                "; {rest:.3} under trawl's dpdk tap, which records {ours:.1} % of that (dpdk-dumpcap {theirs:.1} %)"
            ),
            _ => String::new(),
        };
        Finding {
            agrees: if captured < alone {
                Agreement::Yes
            } else {
                Agreement::Partly
            },
            shows: format!(
                "testpmd forwards {alone:.3} Gbit/s alone, {captured:.3} under dpdk-dumpcap{beside}"
            ),
            sentence: format!(
                "Capture by pdump takes {:.0} % of the forwarding rate (published: 0 to 27 %){}. The ports are veths by af_packet, not a 10G \
                 card, and all of it shares two CPUs.",
                (1.0 - captured / alone) * 100.0,
                trawl.map_or(String::new(), |trawl| format!(
                    ", trawl at tc {:.0} %",
                    (1.0 - trawl / alone) * 100.0
                ))
            ),
        }
    }
}

fn measure(
    bench: &Bench,
    who: &str,
    size: usize,
    seconds: f64,
) -> std::result::Result<Measured, Stop> {
    let testpmd = bench.peers.path("dpdk-testpmd")?;
    let line = Line::new(&LineOptions {
        queues: 1,
        ..LineOptions::default()
    })?;
    let prefix = format!("trawl{}", std::process::id());
    let _runtime = Runtime(prefix.clone());
    let mut command = process::command_in(&line.left.name, "sh");
    command
        .args(["-c", "exec \"$0\" \"$@\" 2>&1"])
        .arg(&testpmd)
        .args(memory(who)?)
        .args([
            "-m",
            "256",
            "--no-pci",
            "-l",
            "0,1",
            "--file-prefix",
            &prefix,
        ])
        .arg(format!(
            "--vdev=net_af_packet0,iface={}",
            line.left.interface
        ))
        .arg(format!(
            "--vdev=net_af_packet1,iface={}",
            line.right.interface
        ))
        .args([
            "--",
            "--forward-mode=io",
            "--auto-start",
            "--stats-period=1",
            "--total-num-mbufs=8192",
        ]);
    let running = Background::start(&mut command, "NIC statistics")
        .map_err(|why| Stop::Failed(last_words(&why)))?;
    let file = Scratch::new(&bench.scratch, "pdump")?;
    let capture = capture(bench, who, &line, &prefix, &file)?;
    let before = received(&line.b)?;
    let traffic = Traffic::flood(size, seconds, &[bench.sender_cpu]).with(&["--engine", "packet"]);
    // To the router's own address: the kernel there forwards nothing, testpmd everything.
    let sent = traffic.send(bench, &line.a, &line.left)?;
    let forwarded = received(&line.b)? - before;
    let mut recorded = None;
    if let Some(peer) = capture {
        peer.wait_until_idle();
        peer.finish()?;
        recorded = Some(count::addressed_to(file.path(), line.left.mac)?);
    }
    drop(running);
    let gbits = |frames: u64| frames as f64 * size as f64 * 8.0 / sent.seconds / 1e9;
    let mut values = std::collections::BTreeMap::from([("forwarding_gbits", gbits(forwarded))]);
    if let Some(recorded) = recorded {
        values.insert("capture_gbits", gbits(recorded));
    }
    Ok(Measured {
        values,
        sent: Some(sent.frames),
        expected: Some(forwarded),
        recorded,
        seconds: sent.seconds,
        cpus: Some((sent.cpus, sent.disturbed)),
        ..Measured::default()
    })
}

fn capture(
    bench: &Bench,
    who: &str,
    line: &Line,
    prefix: &str,
    file: &Scratch,
) -> std::result::Result<Option<Peer>, Stop> {
    let (mut command, ready) = match who {
        "dpdk-testpmd alone" => return Ok(None),
        "dpdk-dumpcap" => {
            let mut shell = process::command_in(&line.left.name, "sh");
            shell
                .args(["-c", "exec \"$0\" \"$@\" 1>&2"])
                .arg(bench.peers.path("dpdk-dumpcap")?)
                // Without it, it drops every packet beside testpmd, which has other kinds of pools loaded.
                .env("LD_PRELOAD", DUMPCAP_NEEDS);
            shell
                .args(["--file-prefix", prefix, "-i", "0", "-w"])
                .arg(file.path());
            (shell, "File:")
        }
        TRAWL => {
            let mut trawl = process::command(&bench.trawl);
            trawl.args(["capture", "--tap", "dpdk", "--file-prefix", prefix]);
            trawl
                .args(["-i", "dpdk:0", "-Q", "in", "-w"])
                .arg(file.path());
            (trawl, "capturing on")
        }
        "trawl tc beside dpdk-testpmd" => {
            let mut trawl = process::command(&bench.trawl);
            trawl.args(["capture", "--tap", "tc", "-Q", "in", "-i"]);
            trawl
                .arg(format!("{}:{}", line.left.name, line.left.interface))
                .arg("-w")
                .arg(file.path());
            (trawl, "capturing on")
        }
        other => {
            return Err(Error::usage(
                format!("series {other:?}"),
                "there are dpdk-testpmd alone, dpdk-dumpcap, trawl dpdk, trawl tc beside dpdk-testpmd",
            )
            .into());
        }
    };
    Ok(Some(Peer::start(
        who,
        &mut command,
        bench.capture_cpu,
        ready,
    )?))
}

/// Who copies within DPDK shares the memory of the process that it captures, which takes huge pages.
fn memory(who: &str) -> std::result::Result<&'static [&'static str], Stop> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = meminfo
        .lines()
        .find_map(|line| {
            line.strip_prefix("HugePages_Free:")?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .unwrap_or(0);
    match who {
        TRAWL | "dpdk-dumpcap" if free < HUGE_PAGES => Err(Stop::NotHere(format!(
            "{who} shares testpmd's memory, which takes {HUGE_PAGES} huge pages; {free} are free on this host \
             (sysctl -w vm.nr_hugepages={HUGE_PAGES}, with hugetlbfs mounted on /dev/hugepages)"
        ))),
        _ if free >= HUGE_PAGES => Ok(&[]),
        _ => Ok(&["--no-huge"]),
    }
}

/// What a killed application leaves: a directory under /run, and files that keep its huge pages.
struct Runtime(String);

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(PathBuf::from("/run/dpdk").join(&self.0));
        let pages = format!("{}map_", self.0);
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let place = words.next()?;
            (words.next() == Some("hugetlbfs")).then_some(place)
        });
        for entry in places
            .filter_map(|place| fs::read_dir(place).ok())
            .flatten()
        {
            let Ok(entry) = entry else { continue };
            if entry.file_name().to_string_lossy().starts_with(&pages) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn last_words(error: &Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}
