//! Ability of drivers to send the frames that XDP programs redirect to their interfaces.

use trawl_attach::passing::XdpSending;
use trawl_attach::site::Site;
use trawl_sys::netlink::{XdpMode, xdp_abilities};
use trawl_sys::{Error, Result};

pub(crate) const IN_STACK: &str = "--mode skb sends them through the network stack";

/// Returns true if the driver sends redirected frames only while it has an XDP program, and has none.
pub fn needs_program(site: &Site) -> Result<bool> {
    let link = site.link()?;
    Ok(link.xdp.is_empty()
        && match XdpSending::of(site)? {
            XdpSending::WithProgram => true,
            XdpSending::Unknown => link.kind.is_none() && !link.is_loopback(),
            _ => false,
        })
}

/// Returns an error, with its reason, unless the driver accepts redirected frames.
pub(crate) fn sends_frames(site: &Site) -> Result<()> {
    if accepts_frames(site)? {
        return Ok(());
    }
    let why = match (XdpSending::of(site)?, site.link()?.xdp.first()) {
        (XdpSending::WithProgram | XdpSending::Unknown, Some(present)) => format!(
            "its driver accepts them only while it has a native XDP program, and the program {} is attached in {} mode",
            present.program_id,
            present.mode.name()
        ),
        _ => "its driver accepts none from other interfaces".to_owned(),
    };
    Err(Error::failed(format!("cannot send XDP frames out of {}", site.label()), why).fix(IN_STACK))
}

/// Returns true if the driver accepts redirected frames. Kernels before 6.3 do not report it: there, cards with
/// a native program are assumed to accept them, and of the virtual interfaces those of the kinds below do.
pub(crate) fn accepts_frames(site: &Site) -> Result<bool> {
    const ACCEPTING: [&str; 3] = ["veth", "tun", "bond"];
    if let Some(able) = xdp_abilities(site.namespace(), site.index())? {
        return Ok(able.redirect_target());
    }
    let link = site.link()?;
    Ok(match link.kind.as_deref() {
        Some(kind) => ACCEPTING.contains(&kind),
        None => link.xdp.iter().any(|one| one.mode == XdpMode::Native),
    })
}

/// Returns true if each interface sends redirected packets of several buffers. Kernels before 6.3 send none.
pub(crate) fn all_send_several_buffers<'a>(sites: impl IntoIterator<Item = &'a Site>) -> Result<bool> {
    for site in sites {
        if !sends_several_buffers(site)? {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn sends_several_buffers(site: &Site) -> Result<bool> {
    let abilities = xdp_abilities(site.namespace(), site.index())?;
    Ok(abilities.is_some_and(|able| able.sends_multi_buffer()))
}
