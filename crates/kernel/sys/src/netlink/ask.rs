//! Makes the kernel look for a neighbour.

use std::net::{IpAddr, UdpSocket};

use crate::netns::{Namespace, run_maybe_in};

const DISCARD: u16 = 9;

/// Sends an empty datagram to the address's discard port: nobody minds it, and before it goes the kernel asks for the
/// address. Whether that worked shows in the table of neighbours.
pub(super) fn ask(namespace: Option<&Namespace>, address: IpAddr) {
    let any: IpAddr = match address {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let _ = run_maybe_in(namespace, || {
        UdpSocket::bind((any, 0)).and_then(|socket| socket.send_to(&[], (address, DISCARD)))
    });
}
