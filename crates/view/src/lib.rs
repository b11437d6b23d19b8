//! What people and machines see of packets: lines in tcpdump's manner, JSON, statistics and live views, all made from
//! one record view. No root, no system calls.

pub mod drop;
#[doc(hidden)]
pub mod exercise;
pub mod json;
pub mod merge;
pub mod print;
pub mod record;
pub mod rewrite;
pub mod select;
pub mod stat;
pub mod why;

use record::PacketView;

/// A form in which packets are shown, one after the other.
pub trait Show {
    /// Appends the packet, with its line end.
    fn show(&mut self, out: &mut String, packet: &PacketView<'_>);
}

impl Show for print::Printer {
    fn show(&mut self, out: &mut String, packet: &PacketView<'_>) {
        self.line(out, packet);
    }
}
