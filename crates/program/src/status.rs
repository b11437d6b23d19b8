//! Which XDP programs are on an interface, and all that can be known of them.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use trawl_kernel::bpf::{functions, info, program, statistics};
use trawl_kernel::bpffs::{self, Object, Pinned};
use trawl_kernel::confirm::Reverted;
use trawl_kernel::owners::Owners;
use trawl_kernel::{Error, Result};

use crate::dispatcher::Dispatcher;
use crate::installed::{self, Installed};
use crate::jump_chain;
use crate::redirects::{self, Names, Redirect};
use crate::revert;
use trawl_attach::look;
use trawl_attach::site::Site;

/// An interface with its programs.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// As `-i` takes it.
    pub interface: String,
    pub namespace: Option<String>,
    pub index: u32,
    pub programs: Vec<Attached>,
    /// The last change with a time limit, if it was reverted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverted: Option<Reverted>,
}

/// A program that is attached to an interface.
#[derive(Clone, Debug, Serialize)]
pub struct Attached {
    /// `native`, `skb` or `offload`.
    pub mode: &'static str,
    #[serde(flatten)]
    pub program: About,
    pub kind: Kind,
    /// The link that attaches it; `None` if it is attached by netlink.
    pub link: Option<u32>,
    /// Several that may be it: links name an interface by its number, which others have in other namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub one_of_links: Vec<u32>,
    /// Those that run one after the other, where it is the head of a chain.
    pub chain: Vec<Member>,
}

/// Whose program it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Put there by `trawl`.
    Trawl,
    /// The head of a chain by libxdp's protocol, no matter what loaded it.
    Dispatcher,
    /// Anyone else's.
    Plain,
}

/// A member of a chain.
#[derive(Clone, Debug, Serialize)]
pub struct Member {
    pub position: usize,
    pub priority: u32,
    /// The verdicts after which the next one runs.
    pub chain_actions: Vec<String>,
    #[serde(flatten)]
    pub program: About,
}

/// What is known of any program.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    pub id: u32,
    /// The whole name of its function.
    pub name: String,
    pub tag: String,
    /// The file that trawl loaded it from, or the bundled program's name; `None` if it is not trawl's.
    pub source: Option<String>,
    /// Processes that hold it, or the link that attaches it, open.
    pub held_by: Vec<String>,
    pub pins: Vec<PathBuf>,
    pub maps: Vec<u32>,
    /// Where it can redirect packets to.
    pub redirects: Vec<Redirect>,
    /// For one that trawl put on the other end of a veth: the program that cannot do without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helps: Option<String>,
    /// What it needs of other interfaces, was given by trawl, and has lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// `None` while the kernel does not count, for members of a chain, which are counted with its head, and for a
    /// program that went while it was measured.
    pub runs: Option<Runs>,
}

/// How often a program ran, and how long that took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Runs {
    pub count: u64,
    pub ns: u64,
    pub ns_per_packet: Option<f64>,
    /// For measured ones, the time they were counted in.
    pub seconds: Option<f64>,
}

impl Runs {
    fn new(count: u64, ns: u64, seconds: Option<f64>) -> Self {
        Self {
            count,
            ns,
            ns_per_packet: (count > 0).then(|| ns as f64 / count as f64),
            seconds,
        }
    }
}

/// What is on each of these interfaces. With a time to measure for, the kernel counts for that long how often each
/// program runs; else the counts are those since it began to, if it does. It changes nothing.
pub fn of(sites: &[Site], measure: Option<Duration>) -> Result<Vec<Status>> {
    let look = Look {
        owners: Owners::look(),
        pins: bpffs::pinned(),
        counting: statistics::are_on(),
    };
    let mut all = Vec::new();
    for site in sites {
        match look.at(site) {
            Ok(status) => all.push(status),
            // It went away since the interfaces were listed: there is nothing to tell of it.
            Err(_) if site.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(time) = measure {
        self::measure(&mut all, time)?;
    }
    Ok(all)
}

/// What is asked once for all programs of an interface.
struct Known {
    installed: Vec<Installed>,
    names: Names,
}

impl Known {
    fn find(&self, program: u32) -> Option<&Installed> {
        self.installed.iter().find(|one| one.id() == program)
    }
}

/// What is asked once for all interfaces.
struct Look {
    owners: Owners,
    pins: Vec<Pinned>,
    counting: bool,
}

impl Look {
    fn at(&self, site: &Site) -> Result<Status> {
        let known = Known {
            installed: Installed::all(site)?,
            names: Names::of(site),
        };
        let mut programs = Vec::new();
        for present in site.link()?.xdp {
            let mut program = self.about(present.program_id, &known);
            let links = look::links_of(site.index(), present);
            let links = links.iter().filter_map(|fd| info::link(fd.as_fd()).ok());
            let mut links: Vec<u32> = links.map(|about| about.id).collect();
            let link = match links.as_slice() {
                [_] => links.pop(),
                _ => None,
            };
            if let Some(link) = link {
                program.take_holders(self.owners.of_link(link));
                program.helps = installed::helped_by(link).map(|(site, name, id)| match site {
                    Some(site) => format!("{name} (id {id}) on {}", site.label()),
                    None => format!("{name} (id {id})"),
                });
            }
            if let Some(ours) = known.find(program.id) {
                program.lost = ours.lost(site);
            }
            let dispatcher = Dispatcher::read(program.id);
            let is_ours = program.source.is_some() || program.helps.is_some();
            let kind = match dispatcher {
                Some(_) => Kind::Dispatcher,
                None if is_ours => Kind::Trawl,
                None => Kind::Plain,
            };
            programs.push(Attached {
                mode: present.mode.name(),
                program,
                kind,
                link,
                one_of_links: links,
                chain: match dispatcher {
                    Some(found) => self.chain(&found, &known),
                    None => self.jumps(present.program_id, &known),
                },
            });
        }
        Ok(Status {
            interface: site.label().to_owned(),
            namespace: site.namespace().map(|one| one.label().to_owned()),
            index: site.index(),
            programs,
            reverted: revert::reverted(site)?,
        })
    }

    fn chain(&self, dispatcher: &Dispatcher, known: &Known) -> Vec<Member> {
        let member = |one: &crate::dispatcher::Member| {
            let slot = dispatcher.config.slots.get(one.slot)?;
            Some(Member {
                position: one.slot,
                priority: slot.priority,
                chain_actions: slot.actions.names(),
                program: self.linked(one.program, known),
            })
        };
        dispatcher.members.iter().filter_map(member).collect()
    }

    /// The chain of trawl's own that begins with a program.
    fn jumps(&self, head: u32, known: &Known) -> Vec<Member> {
        let after = jump_chain::after(head);
        if after.is_empty() {
            return Vec::new();
        }
        let member = |(position, id): (usize, u32)| {
            let ours = known.find(id);
            let seat = ours.and_then(Installed::seat);
            Member {
                position,
                priority: seat.map_or(0, |seat| seat.priority),
                chain_actions: seat.map_or_else(Vec::new, |seat| seat.actions().names()),
                program: self.linked(id, known),
            }
        };
        std::iter::once(head)
            .chain(after)
            .enumerate()
            .map(member)
            .collect()
    }

    /// What is known of a member of a chain. The kernel counts the runs of what it calls itself, and the time until that
    /// returns: they are the whole chain's.
    fn linked(&self, id: u32, known: &Known) -> About {
        About {
            runs: None,
            ..self.about(id, known)
        }
    }

    fn about(&self, id: u32, known: &Known) -> About {
        let ours = known.find(id);
        let mut about = About {
            id,
            name: String::new(),
            tag: String::new(),
            source: ours.map(|ours| ours.source().to_owned()),
            held_by: Vec::new(),
            pins: Vec::new(),
            maps: Vec::new(),
            redirects: Vec::new(),
            helps: None,
            lost: Vec::new(),
            runs: None,
        };
        let is_it = |pin: &&Pinned| matches!(&pin.object, Object::Program(found) if found.id == id);
        about.pins = self
            .pins
            .iter()
            .filter(is_it)
            .map(|pin| bpffs::usual_path(&pin.path))
            .collect();
        about.take_holders(self.owners.of_program(id));
        if let Ok(fd) = program::open_by_id(id)
            && let Ok(found) = info::program(fd.as_fd())
        {
            about.name = functions::name_of(fd.as_fd()).unwrap_or(found.name);
            about.tag = found.tag;
            about.maps = found.map_ids;
            about.runs = self
                .counting
                .then(|| Runs::new(found.run_count, found.run_time_ns, None));
        }
        // The name it has in its file says more than the one the kernel keeps.
        if let Some(ours) = ours {
            about.name = ours.name().to_owned();
        }
        about.redirects = redirects::of(id, &about.name, &about.maps, &known.names);
        about
    }
}

impl About {
    fn take_holders(&mut self, holders: &[String]) {
        for holder in holders {
            if !self.held_by.contains(holder) {
                self.held_by.push(holder.clone());
            }
        }
    }

    /// `None` when the program is no more.
    fn counts(&self) -> Option<(u64, u64)> {
        let found = program::open_by_id(self.id).and_then(|fd| info::program(fd.as_fd()));
        found.ok().map(|found| (found.run_count, found.run_time_ns))
    }
}

fn measure(all: &mut [Status], time: Duration) -> Result<()> {
    let _counting = statistics::enable().map_err(|e| {
        Error::os("cannot measure how long programs run", e).fix(format!(
            "this requires root (CAP_SYS_ADMIN) and Linux {} or newer",
            "5.8"
        ))
    })?;
    let mut programs: Vec<&mut About> = all
        .iter_mut()
        .flat_map(|one| &mut one.programs)
        .map(|one| &mut one.program)
        .collect();
    let before: Vec<_> = programs.iter().map(|one| one.counts()).collect();
    thread::sleep(time);
    for (about, before) in programs.iter_mut().zip(before) {
        about.runs = before.zip(about.counts()).map(|(before, after)| {
            Runs::new(
                after.0.saturating_sub(before.0),
                after.1.saturating_sub(before.1),
                Some(time.as_secs_f64()),
            )
        });
    }
    Ok(())
}
