//! The cost of the tap at drops. A rule of nftables drops every frame: alone, with a tap that rejects them by its filter,
//! and with a tap that records them. Then an XDP program takes the frames, for which the tap is not called.

use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{self, Engine};
use trawl_lab::{Pair, PairOptions};
use trawl_sys::Result;

use super::contenders::rule;
use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, compared, named};
use crate::capture::Recorder;
use crate::model::{Experiment, Finding};
use crate::process::Peer;
use crate::scratch::Scratch;
use crate::traffic::{CHECKSUM, SENDER_CPU, capture_cpu, label, send_frames};

/// True if a rule drops the frames, false if an XDP program takes them; and the filter of the tap, if any.
type Contender = (bool, Option<&'static str>);

const CONTENDERS: [(&str, Contender); 5] = [
    ("bare drop", (true, None)),
    (
        "drop, rejected by the tap's filter",
        (true, Some("tcp port 1")),
    ),
    ("drop, recorded to a file", (true, Some("udp"))),
    ("not dropped", (false, None)),
    ("not dropped, with the tap", (false, Some("tcp port 1"))),
];

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let frames = space.number("frames")? as u64;
    Case::each(space, "sizes", |series, size| {
        let contender = named(series, &CONTENDERS)?;
        Ok(move |bench: &Bench| measure(bench, contender, frames, size as usize))
    })
}

pub fn judge(experiment: &Experiment) -> Finding {
    let [bare, rejected, recorded, not_dropped, with_tap] = CONTENDERS.map(|(name, _)| name);
    let pairs = [(rejected, bare), (recorded, bare), (with_tap, not_dropped)];
    compared(experiment, &pairs, "ns", Comparison::More("ns a frame"))
}

fn measure(bench: &Bench, (is_dropped, filter): Contender, frames: u64, size: usize) -> Outcome {
    let lab = Pair::new(&PairOptions::default())?;
    let _program = match is_dropped {
        true => {
            let rules = "add table inet bench; add chain inet bench in { type filter hook prerouting priority raw; policy drop; }";
            rule(bench, &lab.b, "nft", &[rules])?;
            None
        }
        false => Some(Loaded::native(Does::Drop, &lab.b)?),
    };
    let file = Scratch::new(&bench.scratch, "drops.pcapng")?;
    let start = |filter| {
        let site = label(&lab.b);
        let mut trawl = bench.command(&["capture", "--tap", "drop", "-i", &site, "-s", "64", "-w"]);
        trawl.arg(file.path()).arg(filter);
        Peer::start("trawl", &mut trawl, capture_cpu(), "capturing on")
    };
    let peer = filter.map(start).transpose()?;
    let frame = sender::udp_from(lab.a.mac, size - CHECKSUM)?;
    let sent = send_frames(&lab, Engine::Live, &[frame], frames, None, SENDER_CPU)?;
    let said = peer.map(Peer::finish).transpose()?;
    let seconds = sent.took.as_secs_f64();
    Ok(Measured {
        values: [("ns", seconds * 1e9 / sent.packets.max(1) as f64)].into(),
        sent: Some(sent.packets),
        claim: said.and_then(|said| Recorder::TrawlPacket.claim(&said)),
        seconds,
        ..Measured::default()
    })
}
