//! The account of a ring, by outcome.

use trawl_pipeline::account::PacketAccount;
use trawl_ring::RingAccount;

/// Returns the outcomes of the packets that a ring's producer counted.
pub fn account_of_ring(account: &RingAccount) -> PacketAccount {
    let RingAccount {
        seen,
        filtered_out,
        recorded,
        lost_ring_full,
        lost_copy_failed,
        lost_rate_limit,
        lost_no_ring,
        hardware_stamped: _,
        truncated: _,
    } = *account;
    let lost = [
        ("ring_full", lost_ring_full),
        ("copy_failed", lost_copy_failed),
        ("rate_limit", lost_rate_limit),
        ("new_cpu", lost_no_ring),
    ];
    PacketAccount::new(seen, filtered_out, recorded, &lost)
}
