//! A capture of frames that the far end sends: recorded byte for byte, and none besides.

use std::time::Duration;

use trawl_tests::pcapng::Contents;
use trawl_tests::{Summary, frames};

use crate::cell::Cell;
use crate::outcome::{Problem, Result};
use crate::running::Running;

/// A finished capture.
pub struct Recorded {
    pub summary: Summary,
    pub contents: Contents,
    /// Messages of the capture.
    pub said: String,
}

/// Time for the frames to arrive at a capture.
const LIMIT: Duration = Duration::from_secs(8);

/// Number of attempts: an emulated card loses frames while the host's processors are busy with others.
const ATTEMPTS: u32 = 3;

/// Records while `wanted` and `others` are sent alternately, with a filter for the wanted ones; checks the account and
/// the bytes. Tries again if the card itself counts each missing frame as lost.
pub fn record(cell: &Cell, options: &[&str], filter: &str, wanted: &[Vec<u8>], others: &[Vec<u8>]) -> Result<Recorded> {
    let sent = alternate(wanted, others);
    // libpcap's filter runs in the kernel, which does not count the frames that it rejects.
    let rejected = if options.contains(&"pcap") { 0 } else { others.len() as u64 };
    // A driver may free the answers of this host, which are no losses, at the same place.
    let more = options.contains(&"drop");
    let mut attempt = 1;
    loop {
        let before = cell.near().lost_by_card();
        let recorded = record_while(cell, options, filter, wanted.len(), || cell.send(&sent))?;
        let by_card = cell.near().lost_by_card() - before;
        let summary = &recorded.summary;
        let lost: u64 = summary.lost.values().sum();
        let rightly = summary.filtered_out == rejected || more && summary.filtered_out > rejected;
        if summary.recorded == wanted.len() as u64 && rightly && lost == 0 {
            let got: Vec<&[u8]> = recorded.contents.packets.iter().map(|one| one.bytes.as_slice()).collect();
            frames::assert_same(&got, wanted);
            return Ok(recorded);
        }
        let missing = (wanted.len() as u64 + rejected).saturating_sub(summary.recorded + summary.filtered_out + lost);
        if by_card == 0 || missing != by_card {
            return Err(Problem::Failed(format!(
                "{} of {} frames recorded, {} of {rejected} filtered out, {:?} lost",
                summary.recorded,
                wanted.len(),
                summary.filtered_out,
                summary.lost
            )));
        }
        if attempt == ATTEMPTS {
            return Err(Problem::Refused(format!("the card loses {by_card} of {} frames (ip -s link)", sent.len())));
        }
        attempt += 1;
    }
}

/// Records until this many frames are recorded, or the time is up.
pub fn record_while(
    cell: &Cell,
    options: &[&str],
    filter: &str,
    count: usize,
    send: impl FnOnce() -> Result<()>,
) -> Result<Recorded> {
    let (file, summary) = (cell.file("recorded.pcapng"), cell.file("summary.json"));
    let count = count.to_string();
    // A packet socket's ring loses packets while its reader waits for a busy processor, unless it is large.
    let ring = if options.contains(&"packet") { "32MiB" } else { "4MiB" };
    let fixed = [
        "capture",
        "-i",
        &cell.near().interface,
        "-w",
        &file,
        "--summary",
        &summary,
        "--ring-size",
        ring,
        "-c",
        &count,
    ];
    let mut running = Running::start(cell, &[&fixed[..], options, &[filter]].concat()).ready("capturing on")?;
    cell.settle();
    send()?;
    let said = running.end_or_stop(LIMIT)?.stderr;
    let text = std::fs::read_to_string(&summary).expect("the summary of a capture that ended");
    Ok(Recorded { summary: Summary::parse(&text), contents: Contents::read(&file), said })
}

/// Mixes two lists evenly; the last frame is one of the first list.
fn alternate(wanted: &[Vec<u8>], others: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let every = wanted.len() / others.len().max(1);
    let mut others = others.iter();
    let mut all = Vec::new();
    for (number, frame) in wanted.iter().enumerate() {
        if every > 0 && number % every == 0 {
            all.extend(others.next().cloned());
        }
        all.push(frame.clone());
    }
    all
}
