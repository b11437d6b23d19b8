//! The cost of the drop tap. A rule of nftables drops every frame: alone, with a tap that rejects them by its filter,
//! with a tap that records them, and counted for metrics. Then an XDP program drops the frames, for which the tap is
//! not called.

use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{self, Engine};
use trawl_lab::{Pair, PairOptions};
use trawl_sys::Result;

use super::contenders::rule;
use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, compared, named};
use crate::model::{Experiment, Finding};
use crate::process::Peer;
use crate::recorder::Recorder;
use crate::scratch::Scratch;
use crate::traffic::{CHECKSUM, SENDER_CPU, capture_cpu, label, send_frames};

/// The observer of the drops.
#[derive(Clone, Copy)]
enum Watch {
    Nothing,
    /// The tap, with this filter.
    Tap(&'static str),
    Metrics,
}

/// True if a rule drops the frames, false if an XDP program does.
type Contender = (bool, Watch);

const CONTENDERS: [(&str, Contender); 6] = [
    ("bare drop", (true, Watch::Nothing)),
    ("drop, rejected by the tap's filter", (true, Watch::Tap("tcp port 1"))),
    ("drop, recorded to a file", (true, Watch::Tap("udp"))),
    ("drop, counted for metrics", (true, Watch::Metrics)),
    ("not dropped", (false, Watch::Nothing)),
    ("not dropped, with the tap", (false, Watch::Tap("tcp port 1"))),
];

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let frames = space.number("frames")? as u64;
    Case::each(space, "sizes", |series, size| {
        let contender = named(series, &CONTENDERS)?;
        Ok(move |bench: &Bench| measure(bench, contender, frames, size as usize))
    })
}

pub fn judge(experiment: &Experiment) -> Finding {
    let [bare, rejected, recorded, counted, not_dropped, with_tap] = CONTENDERS.map(|(name, _)| name);
    let pairs = [(rejected, bare), (recorded, bare), (counted, bare), (with_tap, not_dropped)];
    compared(experiment, &pairs, "ns", Comparison::More("ns a frame"))
}

fn measure(bench: &Bench, (is_dropped, watch): Contender, frames: u64, size: usize) -> Outcome {
    let lab = Pair::new(&PairOptions::default())?;
    let _program = if is_dropped {
        let rules =
            "add table inet bench; add chain inet bench in { type filter hook prerouting priority raw; policy drop; }";
        rule(bench, &lab.b, "nft", &[rules])?;
        None
    } else {
        Some(Loaded::native(Does::Drop, &lab.b)?)
    };
    let file = Scratch::new(&bench.scratch, "drops.pcapng")?;
    let site = label(&lab.b);
    let peer = match watch {
        Watch::Nothing => None,
        Watch::Tap(filter) => {
            let mut trawl = bench.command(&["capture", "--tap", "drop", "-i", &site, "-s", "64", "-w"]);
            trawl.arg(file.path()).arg(filter);
            Some(Peer::start("trawl", &mut trawl, capture_cpu(), "capturing on")?)
        }
        Watch::Metrics => {
            let mut trawl = bench.command(&["serve", "--listen", "127.0.0.1:0"]);
            Some(Peer::start("trawl", &mut trawl, capture_cpu(), "serving")?)
        }
    };
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
