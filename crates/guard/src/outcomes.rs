//! Outcomes of packets at a guard, and their indices in its totals.

use trawl_bpf::layout::guard::{
    GUARD_DEFAULT_ALLOWED, GUARD_DEFAULT_DENIED, GUARD_DISCOVERY, GUARD_MALFORMED, GUARD_NOT_IP, GUARD_OVER_RATE,
    GUARD_RULE_ALLOWED, GUARD_RULE_DENIED,
};
use trawl_program::bundled::stats::Named;
use trawl_program::counters;

/// Outcomes of passed packets.
pub const PASSED: &[Named] = counters! {
    GUARD_RULE_ALLOWED "rule_allowed" "allowed by a rule";
    GUARD_DEFAULT_ALLOWED "default_allowed" "allowed by default";
    GUARD_NOT_IP "not_ip" "not IP";
    GUARD_DISCOVERY "discovery" "neighbour discovery, in spite of the default";
};
/// Outcomes of dropped packets.
pub const DROPPED: &[Named] = counters! {
    GUARD_RULE_DENIED "rule_denied" "denied by a rule";
    GUARD_DEFAULT_DENIED "default_denied" "denied by default";
    GUARD_OVER_RATE "over_rate" "over the rate";
    GUARD_MALFORMED "malformed" "malformed";
};
