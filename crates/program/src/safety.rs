//! Protects the remote session that a command is typed in from a program that would cut it: the kernel runs the program
//! on a packet of that session before it is attached.

use std::collections::HashSet;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use trawl_attach::{AttachRequest, Site};
use trawl_bpf::program;
use trawl_bpf::test_run::{self, TestRunAnswer};
use trawl_packet::build::{Mac, Tcp, Template, flags};
use trawl_sys::netlink::{Netlink, carriers};
use trawl_sys::netns::run_maybe_in;
use trawl_sys::process::session::Session;
use trawl_sys::{Error, Result};

use crate::chain;
use crate::pins::{GUARD, Installed};
use trawl_sys::words::word;

const PASS: u32 = 2;
const SENDS_ON: [u32; 2] = [3, 4];
/// Address of a neighbour in test packets; any will do.
const NEIGHBOUR: Mac = [2, 0, 0, 0, 0, 1];

/// Protection of the SSH session that a command is typed in against being cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionCare {
    /// A dangerous change is refused.
    ForTheSession,
    Without,
}

/// Returns true if the packets of a session arrive by this interface, or by one that it carries.
pub fn arrives_by(session: &Session, site: &Site) -> Result<bool> {
    let server = session.server.ip();
    let is_here = || UdpSocket::bind((server, 0)).is_ok();
    if !run_maybe_in(site.namespace(), is_here)? {
        return Ok(false);
    }
    let mut netlink = Netlink::open(site.namespace())?;
    let ends = ends_of(session, &mut netlink)?;
    Ok(carriers(ends, &netlink.links()?).contains(&site.index()))
}

/// Returns the interfaces that the answers of a session leave by or that have its server's address.
pub fn ends_of(session: &Session, netlink: &mut Netlink) -> Result<HashSet<u32>> {
    let ends = [netlink.interface_with(session.server.ip())?, netlink.interface_towards(session.client.ip())?];
    Ok(ends.into_iter().flatten().collect())
}

/// Builds a packet of a session, as it arrives at an interface with this address.
fn packet_of(session: &Session, mac: Mac) -> Option<Vec<u8>> {
    let template = Template::new().ethernet(NEIGHBOUR, mac);
    let template = match (session.client.ip(), session.server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => template.ipv4(client, server),
        (IpAddr::V6(client), IpAddr::V6(server)) => template.ipv6(client, server),
        _ => return None,
    };
    let tcp = Tcp { src: session.client.port(), dst: session.server.port(), flags: flags::ACK, ..Tcp::default() };
    Some(template.tcp(tcp).frame_len(64).build())
}

/// Refuses a program that would cut the session: a whole chain, if `whole` is its first program. The session may need
/// the program that it replaces.
pub(crate) fn check_session(
    site: &Site,
    request: &AttachRequest,
    name: &str,
    whole: BorrowedFd<'_>,
    replaced: &[u32],
) -> Result<()> {
    let Some(packet) = arriving(site, request.careful)? else {
        return Ok(());
    };
    // A program that was made for a card cannot be run on a test packet either.
    match test_run::xdp(whole, &packet.bytes, None, 1) {
        Ok(answer) if answer.value != PASS => Err(Error::failed(
            format!("cannot attach {name} to {}", site.label()),
            format!(
                "it would cut the SSH session from {}: the verdict on its packets is {}",
                packet.session.client.ip(),
                verdict(answer.value)
            ),
        )
        .fix("--yes attaches it anyway")),
        Ok(_) => {
            let new = test_run::xdp_outcome(whole, &packet.bytes).ok();
            let changes = replaced.iter().find_map(|id| {
                let (how, left) = packet.is_changed_by(*id)?;
                (new.as_ref() != Some(&left)).then_some((*id, how))
            });
            match changes {
                Some((id, how)) => Err(packet
                    .needs(format!("cannot replace {id} on {}", site.label()), &how)
                    .fix("--yes replaces it anyway, --confirm 60s replaces it for a time")),
                None => Ok(()),
            }
        }
        Err(_) => Ok(()),
    }
}

fn verdict(value: u32) -> &'static str {
    chain::VERDICTS.get(value as usize).unwrap_or(&"unknown")
}

/// A packet of the session as it arrives at an interface.
struct Arriving {
    session: Session,
    bytes: Vec<u8>,
}

impl Arriving {
    /// Describes how a program forwards the session's packets or rewrites them; `None` if it does neither.
    fn is_changed_by(&self, program: u32) -> Option<(String, TestRunAnswer)> {
        let fd = program::open_by_id(program).ok()?;
        let left = test_run::xdp_outcome(fd.as_fd(), &self.bytes).ok()?;
        let how = match left.value {
            PASS if left.bytes == self.bytes => return None,
            PASS => "it rewrites its packets".to_owned(),
            value if SENDS_ON.contains(&value) => {
                format!("the verdict on its packets is {}", verdict(value))
            }
            _ => return None,
        };
        Some((how, left))
    }

    fn needs(&self, what: String, how: &str) -> Error {
        let client = self.session.client.ip();
        Error::failed(what, format!("the SSH session from {client} may need it: {how}"))
    }
}

/// Returns `None` if the session does not arrive by the interface, or the caller is not careful.
fn arriving(site: &Site, careful: bool) -> Result<Option<Arriving>> {
    let Some(session) = Session::of_this_command().filter(|_| careful) else {
        return Ok(None);
    };
    if !arrives_by(&session, site)? {
        return Ok(None);
    }
    let mac = Mac::try_from(site.link()?.mac.as_slice()).unwrap_or_default();
    let bytes = packet_of(&session, mac);
    Ok(bytes.map(|bytes| Arriving { session, bytes }))
}

/// Refuses to remove programs whose absence would be noticed too late: a guard, whose rules would no longer be
/// enforced; and if `careful`, a program that forwards or rewrites the session's packets.
pub(crate) fn check_absence(site: &Site, programs: &[u32], careful: bool) -> Result<()> {
    let what = |id: u32| format!("cannot unload {id} from {}", site.label());
    let guards = Installed::all(site)?;
    let guard = guards.iter().find(|one| one.source() == GUARD);
    if let Some(guard) = guard.filter(|one| programs.contains(&one.id())) {
        return Err(Error::failed(what(guard.id()), "it is a guard: its rules would no longer be enforced")
            .fix(format!("trawl guard unload {} removes it, and so does --yes", word(site.label()))));
    }
    let Some(packet) = arriving(site, careful)? else {
        return Ok(());
    };
    for id in programs {
        if let Some((how, _)) = packet.is_changed_by(*id) {
            return Err(packet
                .needs(what(*id), &how)
                .fix("--yes removes it anyway, --confirm 60s removes it for a time"));
        }
    }
    Ok(())
}
