//! The cost of the tap at drops. A rule of nftables drops every frame: alone, with a tap that rejects them by its filter,
//! and with a tap that records them. Then an XDP program takes the frames, for which the tap is not called.

use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::{Pair, PairOptions, sender};
use trawl_sys::Result;

use super::contenders::rule;
use super::definition::Space;
use super::{Bench, Case, Measure, Measured, Stop, named};
use super::{Comparison, compared};
use crate::capture::Recorder;
use crate::model::{Experiment, Finding};
use crate::process;
use crate::process::Peer;
use crate::scratch::Scratch;
use crate::traffic::CHECKSUM;

#[derive(Clone, Copy, Debug)]
pub struct Drops;

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

impl Measure for Drops {
    fn cases(&self, space: &Space, _: &Bench) -> Result<Vec<Case>> {
        let frames = space.number("frames")? as u64;
        Case::each(space, "sizes", |series, size| {
            let (name, contender) = named(series, &CONTENDERS)?;
            Ok(Box::new(move |bench| {
                measure(bench, name, contender, frames, size as usize)
            }))
        })
    }

    fn judge(&self, experiment: &Experiment) -> Finding {
        let [bare, rejected, recorded, not_dropped, with_tap] = CONTENDERS.map(|(name, _)| name);
        let pairs = [(rejected, bare), (recorded, bare), (with_tap, not_dropped)];
        compared(experiment, &pairs, "ns", Comparison::More("ns a frame"))
    }
}

fn measure(
    bench: &Bench,
    name: &str,
    (is_dropped, filter): Contender,
    frames: u64,
    size: usize,
) -> std::result::Result<Measured, Stop> {
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
    let peer = match filter {
        None => None,
        Some(filter) => {
            let mut trawl = process::command(&bench.trawl);
            let site = format!("{}:{}", lab.b.name, lab.b.interface);
            trawl
                .args(["capture", "--tap", "drop", "-i", &site, "-s", "64", "-w"])
                .arg(file.path())
                .arg(filter);
            Some(Peer::start(
                name,
                &mut trawl,
                bench.capture_cpu,
                "capturing on",
            )?)
        }
    };
    let sent = send(&Job {
        namespace: Some(&lab.a.namespace),
        interface: &lab.a.interface,
        frames: &[sender::udp_from(lab.a.mac, size - CHECKSUM)?],
        count: frames,
        engine: Engine::Live,
        rate: None,
        cpu: Some(bench.sender_cpu),
    })?;
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
