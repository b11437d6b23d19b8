//! Programs that pass every packet, attached to devices whose drivers send redirected XDP frames only while they have a
//! program.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use trawl_bpf::loading;
use trawl_bpf::probe::kernel_is_at_least;
use trawl_bpf::program::{HAS_FRAGS, LoadOptions, XDP, returning};
use trawl_sys::netlink::{LinkRecord, XdpMode, xdp_abilities};
use trawl_sys::{Error, Result};

use crate::apply::hold;
use crate::site::Site;

/// The program's name, by which trawl recognizes it.
pub const NAME: &str = "trawl_pass";
/// Time that a card may need for its link after a reset.
const LINK_PATIENCE: Duration = Duration::from_secs(15);
const CHECK_EVERY: Duration = Duration::from_millis(2);

/// Conditions under which a driver sends XDP frames that are redirected to its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpSending {
    Always,
    /// The driver sends frames while it has an XDP program.
    WithProgram,
    Never,
    /// Kernels before 6.3 do not report the conditions.
    Unknown,
    /// The veth sends frames while its other end is ready, which the kernel reports with a delay.
    AsOtherEnd,
}

impl XdpSending {
    pub fn of(site: &Site) -> Result<Self> {
        if site.link()?.kind.as_deref() == Some("veth") {
            return Ok(Self::AsOtherEnd);
        }
        Ok(match xdp_abilities(site.namespace(), site.index())? {
            None => Self::Unknown,
            Some(able) if able.redirect_target() => Self::Always,
            Some(able) if able.native() => Self::WithProgram,
            Some(_) => Self::Never,
        })
    }
}

/// Returns true if a veth sends XDP frames while its other end has GRO. Before Linux 5.13, that end needs a native
/// program.
pub fn gro_suffices() -> bool {
    kernel_is_at_least(5, 13)
}

/// Attaches a program in native mode that passes every packet, until the link is closed, and waits until the card can
/// send again.
pub fn hold_passing(site: &Site) -> Result<OwnedFd> {
    const XDP_PASS: i32 = 2;
    let options = LoadOptions { flags: HAS_FRAGS, ..LoadOptions::new(NAME, XDP) };
    let program = loading::try_load(&returning(XDP_PASS), &options, None)
        .map_err(|e| Error::os("cannot load a program", e).fix("this requires root (CAP_BPF)"))?;
    let before = site.link()?;
    let (held, _) =
        hold(site, program.as_fd(), Some(XdpMode::Native)).map_err(|refused| refused.explain(site, NAME))?;
    wait_for_link(site, &before)?;
    Ok(held)
}

/// Waits until a card that the attachment has reset has its link again.
fn wait_for_link(site: &Site, before: &LinkRecord) -> Result<()> {
    let start = Instant::now();
    while before.is_running() && !site.link()?.is_running() {
        if start.elapsed() > LINK_PATIENCE {
            return Err(Error::failed(
                format!("{} has no link", site.label()),
                format!(
                    "it has not come back within {} seconds after an XDP program was attached",
                    LINK_PATIENCE.as_secs()
                ),
            ));
        }
        std::thread::sleep(CHECK_EVERY);
    }
    Ok(())
}
