//! The remote session that a command is typed in, and whether a program that is about to be attached would cut it: the
//! kernel runs the program on a packet of that session before it is attached.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use trawl_kernel::bpf::test_run;
use trawl_kernel::netlink::{Netlink, carriers};
use trawl_kernel::netns::run_maybe_in;
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

/// A connection by SSH: from its client to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub client: SocketAddr,
    pub server: SocketAddr,
}

impl Session {
    /// The one that this command is typed in, as the SSH server says it.
    pub fn of_this_command() -> Option<Self> {
        Self::parse(&std::env::var("SSH_CONNECTION").ok()?)
    }

    /// Client and server, each an address and a port.
    fn parse(connection: &str) -> Option<Self> {
        let words: Vec<&str> = connection.split_ascii_whitespace().collect();
        let end = |address: &str, port: &str| {
            let address: IpAddr = address.parse().ok()?;
            Some(SocketAddr::new(address.to_canonical(), port.parse().ok()?))
        };
        match words[..] {
            [client, its_port, server, port] => Some(Self {
                client: end(client, its_port)?,
                server: end(server, port)?,
            }),
            _ => None,
        }
    }

    /// Whether its packets come in by this interface, or by one that this one carries.
    pub fn comes_by(&self, site: &Site) -> Result<bool> {
        let server = self.server.ip();
        let is_here = || UdpSocket::bind((server, 0)).is_ok();
        if !run_maybe_in(site.namespace(), is_here)? {
            return Ok(false);
        }
        let mut netlink = Netlink::open(site.namespace())?;
        let ends = [
            netlink.interface_with(server)?,
            netlink.interface_towards(self.client.ip())?,
        ];
        let ways = carriers(ends.into_iter().flatten().collect(), &netlink.links()?);
        Ok(ways.contains(&site.index()))
    }

    /// A packet of it, as it arrives at an interface with this address.
    fn packet(&self, mac: Mac) -> Option<Vec<u8>> {
        let template = Template::new().ethernet(NEIGHBOUR, mac);
        let template = match (self.client.ip(), self.server.ip()) {
            (IpAddr::V4(client), IpAddr::V4(server)) => template.ipv4(client, server),
            (IpAddr::V6(client), IpAddr::V6(server)) => template.ipv6(client, server),
            _ => return None,
        };
        let tcp = Tcp {
            src: self.client.port(),
            dst: self.server.port(),
            flags: flags::ACK,
            ..Tcp::default()
        };
        Some(template.tcp(tcp).frame_len(64).build())
    }
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
    if !session.comes_by(site)? {
        return Ok(());
    }
    let mac = Mac::try_from(site.link()?.mac.as_slice()).unwrap_or_default();
    // Programs in the place of a dispatcher's function cannot be asked, nor can those for a card.
    let answer = session
        .packet(mac)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_what_the_server_says() {
        let session = Session::parse("10.0.0.1 50000 ::ffff:10.0.0.2 22").expect("one");
        assert_eq!(session.client, "10.0.0.1:50000".parse().expect("an end"));
        assert_eq!(session.server, "10.0.0.2:22".parse().expect("an end"));
        assert!(session.packet(NEIGHBOUR).is_some());
        for text in [
            "",
            "10.0.0.1 1 10.0.0.2",
            "a b c d",
            "10.0.0.1 1 10.0.0.2 99999",
        ] {
            assert_eq!(Session::parse(text), None, "{text}");
        }
    }
}
