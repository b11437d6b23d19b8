//! The features that each cell measures, in the order of the table.

mod card;
mod generator;
mod programs;
mod recorded;
mod taps;
mod tracing;

use crate::cell::Cell;
use crate::outcome::Result;

/// Measures a feature; returns a detail of it.
pub type Feature = fn(&Cell) -> Result<String>;

/// Number of frames that most features send.
pub const FRAMES: usize = 300;

pub const ALL: &[(&str, Feature)] = &[
    ("tap-packet", taps::packet),
    ("tap-pcap", taps::pcap),
    ("tap-tc", taps::tc),
    ("tap-tc-beside-xdp", taps::tc_beside_native),
    ("tap-tc-beside-skb-xdp", taps::tc_beside_skb),
    ("tap-xdp", taps::xdp),
    ("tap-xdp-skb", taps::xdp_in_skb_mode),
    ("tap-tailcall", taps::tailcall),
    ("tap-fexit", taps::fexit),
    ("tap-drop", taps::drop),
    ("verdicts", taps::verdicts),
    ("load-drop", programs::drop),
    ("load-pass", programs::pass),
    ("load-aborted", programs::aborted),
    ("load-tx", programs::tx),
    ("load-redirect", programs::redirect),
    ("replace", programs::replace),
    ("chain", programs::chain),
    ("guard", programs::guard),
    ("route", programs::route),
    ("balance", programs::balance),
    ("gen", generator::auto),
    ("gen-live", generator::live),
    ("gen-xsk", generator::xsk),
    ("gen-packet", generator::packet),
    ("gen-receive", generator::receive),
    ("why", tracing::why),
    ("follow", tracing::follow),
    ("process", tracing::process),
    ("time-hw", card::hardware_time),
    ("jumbo", card::jumbo),
    ("vlan-xdp", card::vlan_at_xdp),
    ("vlan-tc", card::vlan_at_tc),
    ("vlan-packet", card::vlan_at_packet),
    ("queues", card::queues),
    ("attach", card::attach),
    ("kill", card::kill),
];
