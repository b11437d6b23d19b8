//! Drives the analysis of connections with the packets of arbitrary capture files.

use trawl_packet::read::CaptureReader;
use trawl_slow::packets::{Analysis, Packet, PacketDrop};
use trawl_slow::report::Report;
use trawl_view::record::PacketSource;

/// Reads a whole file, and judges its connections.
pub fn capture_file(bytes: &[u8]) {
    let Ok(mut reader) = CaptureReader::new(bytes) else { return };
    let mut analysis = Analysis::default();
    while let Ok(true) = PacketSource::advance(&mut reader) {
        let Some(view) = PacketSource::current(&reader) else { continue };
        let (time_ns, link_type, captured) = (view.timestamp_ns, view.link_type, view.captured);
        let packet = Packet { time_ns, link_type, captured, place: 0, is_sent: None, process: None };
        // Each fourth packet was dropped.
        match time_ns % 4 {
            0 => analysis.add_drop(&packet, &PacketDrop { netns: "web", cause: 0, is_filtered: true }),
            _ => analysis.add(&packet),
        }
    }
    let packets = analysis.packets();
    let (connections, names) = analysis.end(|_| "NETFILTER_DROP".to_owned());
    assert!(Report::new(packets, 0, &connections, &names).to_string().ends_with('\n'));
}
