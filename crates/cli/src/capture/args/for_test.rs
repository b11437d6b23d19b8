//! `--for-test`: a recording with all data for `trawl xdp test`.

use std::borrow::Cow;
use std::path::Path;

use trawl_capture::MAX_CAPTURED;
use trawl_plan::TapChoice;
use trawl_plan::options::{At, Direction, Meta, Stamps};
use trawl_plan::outputs::{Format, OutputPlan, Rotation};
use trawl_plan::{CapturePlan, options::CaptureOptions};
use trawl_sys::{Error, Result};

use super::{Args, StampType, TimeName};

/// Maximum size of all files of a recording, if no option limits them.
const ON_DISK: u64 = 1 << 30;
/// Name of the files in a directory.
const IN_DIRECTORY: &str = "packets.pcapng";

fn refused(why: &str, fix: impl Into<Cow<'static, str>>) -> Error {
    Error::usage("cannot record for a test", why).fix(fix)
}

/// Completes a plan. Refuses options without which a program would see other packets than the recording has.
pub(super) fn complete(args: &Args, plan: &mut CapturePlan) -> Result<()> {
    refuse_options(args)?;
    complete_options(&mut plan.options);
    if plan.store.is_none() && plan.outputs.is_empty() {
        return Err(refused("the packets are not written to a file", "name one: -w FILE"));
    }
    for output in &mut plan.outputs {
        if output.listen.is_none() && output.path.is_dir() {
            output.path.push(IN_DIRECTORY);
        }
    }
    if plan.outputs.iter().any(|output| output.format == Format::Pcap) {
        return Err(refused("pcap files contain neither verdicts nor queues", "write pcapng"));
    }
    if plan.outputs.iter().any(|output| output.snaplen.is_some()) {
        return Err(refused("programs need whole packets", "leave out snaplen="));
    }
    if plan.outputs.first().is_some_and(is_file) && !has_bounds(&plan.rotation) {
        plan.rotation.total = Some(ON_DISK);
    }
    Ok(())
}

fn complete_options(options: &mut CaptureOptions) {
    options.at = Some(At::Both);
    if options.recording.stamps == Stamps::Auto {
        options.recording.stamps = Stamps::Precise;
    }
}

const CARD: &str = "programs read the system's clock, not the network card's";

fn refuse_options(args: &Args) -> Result<()> {
    let Args { source, filtering, output, clock, recording, remote, tcpdump, .. } = args;
    let sees_all = |tap: &TapChoice| matches!(tap, TapChoice::Auto | TapChoice::Xdp | TapChoice::Tailcall);
    let is_whole = filtering.snaplen == 0 || filtering.snaplen == u64::from(MAX_CAPTURED);
    let is_direction_odd = matches!(source.direction, Some(Direction::Out | Direction::Both));
    let spoilers = [
        (
            !source.tap.iter().all(sees_all),
            "--tap",
            "only the taps xdp and tailcall see a packet as the XDP program receives it, and its verdict",
        ),
        (source.at.is_some_and(|at| at != At::Both), "--at", "it needs entry and exit of each packet"),
        (is_direction_odd, "-Q", "XDP programs see received packets only"),
        (!is_whole, "-s", "programs need whole packets"),
        (filtering.headers, "--headers", "programs need whole packets"),
        (output.anonymize.is_some(), "--anonymize", "programs decide on the real addresses and payload"),
        (output.once.is_some(), "--once", "it needs two records of each packet"),
        (output.dedup.is_some(), "--dedup", "it needs two records of each packet"),
        (recording.meta()? != Meta::FULL, "--meta", "it needs each packet's queue, identifier and verdict"),
        (matches!(clock, TimeName::Hw), "--time hw", CARD),
        (matches!(tcpdump.time_stamp_type, Some(StampType::Adapter)), "-j adapter", CARD),
        (matches!(clock, TimeName::Poll), "--time poll", "it needs the time of each packet"),
        (remote.are_named(), "--on", "the clocks of several hosts differ"),
    ];
    match spoilers.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, option, why)) => Err(refused(why, format!("leave out {option}, or --for-test"))),
        None => Ok(()),
    }
}

/// Returns true if a series of files can be written to the output.
fn is_file(output: &OutputPlan) -> bool {
    let is_regular = |path: &Path| path.metadata().map_or(true, |about| about.is_file());
    !output.is_stdout() && output.listen.is_none() && is_regular(&output.path)
}

fn has_bounds(rotation: &Rotation) -> bool {
    let Rotation { size, time, files, total, command: _, sealed: _ } = rotation;
    size.is_some() || time.is_some() || files.is_some() || total.is_some()
}
