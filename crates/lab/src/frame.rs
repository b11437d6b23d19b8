//! The frame that is sent when nobody says which.

use std::net::Ipv4Addr;

use trawl_packet::build::Template;
use trawl_sys::{Error, Result};

use crate::pair::Addresses;

const BROADCAST: [u8; 6] = [0xff; 6];
const SOURCE_PORT: u16 = 40_000;
/// The discard service: a host that has it throws the packets away.
const DISCARD_PORT: u16 = 9;
/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;
const LONGEST: usize = 14 + 65_535;

/// A UDP frame of `size` bytes (without the checksum at an Ethernet frame's end) from an interface with
/// this address: to the other side where it is one of a lab's, else to everyone.
pub fn udp_from(mac: [u8; 6], size: usize) -> Result<Vec<u8>> {
    if !(HEADERS..=LONGEST).contains(&size) {
        return Err(Error::usage(
            format!("cannot build a UDP frame of {size} bytes"),
            format!("it takes {HEADERS} to {LONGEST}"),
        ));
    }
    let sides = [Addresses::new(0), Addresses::new(1)];
    let (to, from, other) = match sides.iter().position(|plan| plan.mac == mac) {
        Some(side) => (sides[1 - side].mac, sides[side].ipv4, sides[1 - side].ipv4),
        // Addresses that are kept for documentation: nobody's.
        None => (
            BROADCAST,
            Ipv4Addr::new(192, 0, 2, 1),
            Ipv4Addr::new(192, 0, 2, 2),
        ),
    };
    Ok(Template::new()
        .ethernet(mac, to)
        .ipv4(from, other)
        .udp(SOURCE_PORT, DISCARD_PORT)
        .payload(vec![0; size - HEADERS])
        .build())
}

/// An Ethernet frame of the experimental type 0x88b5, which no protocol of the stack takes an interest in.
pub fn experimental(source: [u8; 6], destination: [u8; 6], size: usize) -> Vec<u8> {
    let mut frame = [destination.as_slice(), &source, &[0x88, 0xb5]].concat();
    frame.resize(size.max(frame.len()), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_exact_and_the_other_side_is_addressed() {
        for size in [42, 60, 64, 1514, 9014] {
            assert_eq!(udp_from([2, 0, 0, 0, 0, 9], size).unwrap().len(), size);
        }
        let [first, second] = [Addresses::new(0), Addresses::new(1)];
        assert_eq!(udp_from(first.mac, 64).unwrap()[..6], second.mac);
        assert_eq!(udp_from(second.mac, 64).unwrap()[..6], first.mac);
        assert_eq!(udp_from([2, 0, 0, 0, 0, 9], 64).unwrap()[..6], BROADCAST);
    }

    #[test]
    fn sizes_that_hold_no_headers_or_more_than_ip_can_say_are_refused() {
        assert!(udp_from([2; 6], 41).is_err());
        assert!(udp_from([2; 6], LONGEST + 1).is_err());
    }
}
