//! A veth takes XDP frames only when its other end has an XDP program or GRO. Where it has neither, a program that
//! lets everything pass is put there for the length of the run.

use std::os::fd::{AsFd, OwnedFd};

use trawl_attach::Site;
use trawl_io::send::passing_program;
use trawl_sys::ethtool::Ethtool;
use trawl_sys::netlink::{Netlink, Peer, XdpMode, veth_peer};
use trawl_sys::{Error, Result};

const GRO: &str = "rx-gro";

/// Something that was put right, until this is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Fixed {
    _link: OwnedFd,
    told: String,
}

impl Fixed {
    pub fn told(&self) -> &str {
        &self.told
    }
}

/// Makes the other end of a veth take XDP frames, if it does not; an error says why it cannot.
pub(super) fn peer_takes_frames(interface: &str) -> Result<Option<Fixed>> {
    let link = Netlink::here()?.link(interface)?;
    if link.kind.as_deref() != Some("veth") {
        return Ok(None);
    }
    // What cannot be looked into may work: the trial shows.
    let Some(peer) = veth_peer(None, &link)? else {
        return Ok(None);
    };
    let label = peer.label();
    if !peer.link.is_up() {
        return Err(
            Error::failed(format!("its other end, {label}"), "it is down").fix(format!(
                "{}ip link set {} up",
                peer.exec_prefix(),
                peer.link.name
            )),
        );
    }
    let native = peer.link.xdp.iter().any(|one| one.mode == XdpMode::Native);
    if native || has_gro(&peer) {
        return Ok(None);
    }
    let cannot = |why: &str| {
        Error::failed(
            format!("its other end, {label}, has neither native XDP nor GRO"),
            format!("a program that lets everything pass could not be put there: {why}"),
        )
        .fix(format!(
            "{}ethtool -K {} gro on",
            peer.exec_prefix(),
            peer.link.name
        ))
    };
    let attach = || -> Result<OwnedFd> {
        let program = passing_program()?;
        let site = Site::named(peer.namespace.clone(), &peer.link.name)?;
        trawl_attach::hold(&site, program.as_fd(), Some(XdpMode::Native))
            .map(|(link, _)| link)
            .map_err(|refused| cannot(refused.explain(&site, "trawl_pass").why()))
    };
    let link = attach()?;
    Ok(Some(Fixed {
        _link: link,
        told: format!(
            "{label} takes XDP frames while this runs: an XDP program that lets everything pass is on it"
        ),
    }))
}

fn has_gro(peer: &Peer) -> bool {
    let ethtool = Ethtool::open(peer.namespace.as_ref(), &peer.link.name);
    ethtool
        .and_then(|ethtool| ethtool.feature(GRO))
        .ok()
        .flatten()
        == Some(true)
}
