//! Causes of slow connections, as the packets of a chunk show them to `trawl slow`.

use std::collections::HashMap;
use std::io;

use trawl_packet::net::protocol;
use trawl_packet::pcapng::block::Block;
use trawl_packet::pcapng::note::{DropNote, Note as _};
use trawl_packet::pcapng::options::PacketOptions;
use trawl_slow::judge::judge;
use trawl_slow::packets::{Analysis, Packet, PacketDrop};
use trawl_slow::verdict::Cause;
use trawl_spool::manifest::Manifest;

use super::{Reading, flow_number, walk_packets};

/// Maximum number of connections of a chunk that are judged, in at most 150 MiB.
const JUDGED: usize = 1 << 14;

/// Returns the most important cause of each slow connection, by the number of its flow.
pub fn of(chunk: &[u8], manifest: &Manifest) -> io::Result<HashMap<i64, String>> {
    let mut analysis = Analysis::of_first(JUDGED);
    walk_packets(chunk, manifest, |block, at| {
        add(&mut analysis, block, at);
        Ok(())
    })?;
    let (connections, _) = analysis.end(|_| String::new());
    let mut causes = HashMap::new();
    for one in connections {
        let flow = flow_number(protocol::TCP, [one.client, one.server]);
        if let Some(verdict) = judge(&one).first() {
            causes.entry(flow).or_insert_with(|| kind(&verdict.cause));
        }
    }
    Ok(causes)
}

fn add(analysis: &mut Analysis, block: &Block<'_>, at: &Reading) {
    let Some(packet) = block.enhanced_packet() else { return };
    let number = packet.interface_id as usize;
    let (Some(interface), Some(place)) = (at.interfaces.get(number), at.places.get(number)) else { return };
    let options = PacketOptions::parse(packet.options());
    let drop = options.comments.iter().find_map(|comment| DropNote::parse(comment));
    let packet = Packet {
        time_ns: packet.timestamp,
        link_type: interface.link_type,
        captured: packet.captured,
        place: *place,
        is_sent: None,
        process: None,
    };
    match drop {
        None => analysis.add(&packet),
        Some(drop) if drop.no_loss.is_loss() => analysis.add_drop(&packet, &PacketDrop::new(&drop, 0)),
        Some(_) => {}
    }
}

/// Returns the word of a cause, as `trawl slow --json` has it.
fn kind(cause: &Cause) -> String {
    let document = serde_json::to_value(cause).unwrap_or_default();
    document["cause"].as_str().unwrap_or_default().to_owned()
}
