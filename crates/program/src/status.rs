//! Which XDP programs are on an interface, and what is known of them.

use std::os::fd::AsFd;

use serde::Serialize;
use trawl_kernel::Result;
use trawl_kernel::bpf::{info, program};

use crate::attach::link_of;
use crate::site::Site;
use crate::standing::Standing;

/// One program on an interface.
#[derive(Clone, Debug, Serialize)]
pub struct Attached {
    /// `native`, `skb` or `offload`.
    pub mode: &'static str,
    pub id: u32,
    pub name: String,
    pub tag: String,
    /// The link that attaches it; `None` if it is attached by netlink.
    pub link: Option<u32>,
    /// The file that trawl loaded it from, or the bundled program; `None` if it is not trawl's.
    pub source: Option<String>,
}

/// An interface with its programs.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// As `-i` takes it.
    pub interface: String,
    pub programs: Vec<Attached>,
}

/// What is on the interface now.
pub fn of(site: &Site) -> Result<Status> {
    let standing = Standing::all(site)?;
    let mut programs = Vec::new();
    for present in site.link()?.xdp {
        let id = present.program_id;
        let ours = standing.iter().find(|one| one.id() == id);
        let about = program::open_by_id(id).and_then(|fd| info::program(fd.as_fd()));
        let (name, tag) = about.map_or_else(
            |_| (String::new(), String::new()),
            |about| (about.name, about.tag),
        );
        let link = link_of(site, present).and_then(|fd| info::link(fd.as_fd()).ok());
        programs.push(Attached {
            mode: present.mode.name(),
            id,
            name: ours.map_or(name, |ours| ours.name().to_owned()),
            tag,
            link: link.map(|about| about.id),
            source: ours.map(|ours| ours.source().to_owned()),
        });
    }
    Ok(Status {
        interface: site.label().to_owned(),
        programs,
    })
}
