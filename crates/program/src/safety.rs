//! The remote session that a command is typed in, and whether a program that is about to be attached would cut it: the
//! kernel runs the program on a packet of that session before it is attached.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;

use trawl_kernel::bpf::test_run;
use trawl_kernel::netlink::{Netlink, carriers};
use trawl_kernel::netns::run_maybe_in;
use trawl_kernel::session::Session;
use trawl_kernel::{Error, Result};
use trawl_packet::build::{Mac, Tcp, Template, flags};

use crate::attach::Wish;
use crate::bundled::GUARD;
use crate::load::Program;
use crate::site::Site;
use crate::standing::Standing;

const PASS: u32 = 2;
const VERDICTS: [&str; 5] = ["aborted", "drop", "pass", "tx", "redirect"];
/// A neighbour whose address nobody asks for.
const NEIGHBOUR: Mac = [2, 0, 0, 0, 0, 1];

/// Whether the packets of a session come in by this interface, or by one that this one carries.
pub fn comes_by(session: &Session, site: &Site) -> Result<bool> {
    let server = session.server.ip();
    let is_here = || UdpSocket::bind((server, 0)).is_ok();
    if !run_maybe_in(site.namespace(), is_here)? {
        return Ok(false);
    }
    let mut netlink = Netlink::open(site.namespace())?;
    let ends = [
        netlink.interface_with(server)?,
        netlink.interface_towards(session.client.ip())?,
    ];
    let ways = carriers(ends.into_iter().flatten().collect(), &netlink.links()?);
    Ok(ways.contains(&site.index()))
}

/// A packet of a session, as it arrives at an interface with this address.
fn packet_of(session: &Session, mac: Mac) -> Option<Vec<u8>> {
    let template = Template::new().ethernet(NEIGHBOUR, mac);
    let template = match (session.client.ip(), session.server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => template.ipv4(client, server),
        (IpAddr::V6(client), IpAddr::V6(server)) => template.ipv6(client, server),
        _ => return None,
    };
    let tcp = Tcp {
        src: session.client.port(),
        dst: session.server.port(),
        flags: flags::ACK,
        ..Tcp::default()
    };
    Some(template.tcp(tcp).frame_len(64).build())
}

/// Refuses to replace a guard, whose rules would be dropped with it.
pub(crate) fn check_guard(site: &Site, wish: &Wish) -> Result<()> {
    if !(wish.careful && wish.replace) {
        return Ok(());
    }
    match Standing::all(site)?
        .iter()
        .find(|one| one.source() == GUARD)
    {
        Some(guard) => Err(Error::failed(
            format!("cannot replace the program on {}", site.label()),
            format!(
                "it is a guard (id {}): its rules would no longer be enforced",
                guard.id()
            ),
        )
        .fix("--prio N puts a program before or after it, --yes replaces it anyway")),
        None => Ok(()),
    }
}

/// Refuses a program that would cut the session.
pub(crate) fn check_session(site: &Site, wish: &Wish, program: &Program) -> Result<()> {
    let Some(session) = Session::of_this_command().filter(|_| wish.careful) else {
        return Ok(());
    };
    if !comes_by(&session, site)? {
        return Ok(());
    }
    let mac = Mac::try_from(site.link()?.mac.as_slice()).unwrap_or_default();
    // Programs in the place of a dispatcher's function cannot be asked, nor can those for a card.
    let answer = packet_of(&session, mac)
        .and_then(|packet| test_run::xdp(program.as_fd(), &packet, None, 1).ok());
    match answer {
        Some(answer) if answer.value != PASS => {
            let verdict = VERDICTS.get(answer.value as usize).unwrap_or(&"unknown");
            Err(Error::failed(
                format!("cannot attach {} to {}", program.name(), site.label()),
                format!(
                    "it would cut the SSH session from {}: the verdict on its packets is {verdict}",
                    session.client.ip()
                ),
            )
            .fix("--yes attaches it anyway"))
        }
        _ => Ok(()),
    }
}
