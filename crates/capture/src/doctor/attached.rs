//! Programs attached to an interface, their owners, and the hook maps they offer.

use std::os::fd::AsFd;
use std::path::PathBuf;

use trawl_attach::Site;
use trawl_attach::site::all_directories;
use trawl_attach::snapshot;
use trawl_bpf::bpffs::{self, Object, Pinned};
use trawl_bpf::probe::attached::tcx;
use trawl_bpf::{info, map, program};
use trawl_program::reload;
use trawl_sys::netlink::tc::Direction;
use trawl_sys::netlink::{LinkRecord, Netlink, XdpAttachment};
use trawl_sys::netns::{Namespace, exec_prefix, run_maybe_in};

use super::{CheckState, Finding};
use crate::capture_chain;
use trawl_bpf::owners::Owners;
use trawl_program::reload::Reload;
use trawl_sys::words::{path_word, word};

/// Entries of a hook map: one for each XDP action.
const HOOK_ENTRIES: u32 = 5;
const LIBXDP_DISPATCHER: &str = "xdp_dispatcher";

/// A program array into which a capture could hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookMap {
    pub id: u32,
    pub name: String,
    pub entries: u32,
    pub path: Option<PathBuf>,
}

/// The programs on an interface's hooks.
#[derive(Debug)]
pub struct AttachedPrograms {
    pub findings: Vec<Finding>,
    /// Name of the XDP program, if any.
    pub xdp: Option<String>,
    /// True if the XDP program is trawl's own: a second capture may join it.
    pub xdp_is_trawl: bool,
    pub hooks: Vec<HookMap>,
    /// Command that loads the program with hooks.
    pub with_hooks: Option<Reload>,
    /// Commands that remove the programs that trawl loaded.
    removals: Vec<String>,
}

pub fn inspect(area: &str, namespace: Option<&Namespace>, interface: &LinkRecord) -> AttachedPrograms {
    let (owners, pins) = (Owners::read_all(), bpffs::pinned());
    let mut attached = AttachedPrograms {
        findings: Vec::new(),
        xdp: None,
        xdp_is_trawl: false,
        hooks: Vec::new(),
        with_hooks: None,
        removals: Vec::new(),
    };
    if let (Some(present), Ok(site)) = (interface.xdp.first(), Site::named(namespace.cloned(), &interface.name)) {
        attached.with_hooks = Some(reload::with_hooks(&site, present.program_id));
        attached.removals = reload::removals(&site);
    }
    let prefix = exec_prefix(namespace);
    for present in &interface.xdp {
        attached.add_xdp(area, present, interface, &prefix, &owners, &pins);
    }
    if interface.xdp.is_empty() {
        attached.findings.push(Finding::new(area, "XDP program", CheckState::Ok, "none"));
    }
    attached.hook_findings(area, &pins);
    for (ingress, name) in [(true, "tcx ingress"), (false, "tcx egress")] {
        let found =
            run_maybe_in(namespace, || tcx(interface.index, ingress)).ok().and_then(Result::ok).unwrap_or_default();
        for one in found {
            let mut text = describe_program(one.program_id, &owners, &pins);
            if let Some(id) = one.link_id {
                text.push_str(&format!(", by link {id}{}", held(owners.of_link(id))));
            }
            attached.findings.push(Finding::new(area, name, CheckState::Info, text));
        }
    }
    let Ok(mut netlink) = Netlink::open(namespace) else {
        return attached;
    };
    for direction in [Direction::Ingress, Direction::Egress] {
        for filter in netlink.filters(interface.index, direction).unwrap_or_default() {
            let program = filter.program_id.map(|id| describe_program(id, &owners, &pins));
            let text = format!(
                "{}, priority {}, {}",
                filter.name,
                filter.handle.priority,
                program.unwrap_or_else(|| "unknown program".to_owned())
            );
            let subject = format!("clsact {}", direction.name());
            attached.findings.push(Finding::new(area, &subject, CheckState::Info, text));
        }
    }
    attached
}

impl AttachedPrograms {
    fn add_xdp(
        &mut self,
        area: &str,
        present: &XdpAttachment,
        interface: &LinkRecord,
        prefix: &str,
        owners: &Owners,
        pins: &[Pinned],
    ) {
        let id = present.program_id;
        let mut text = format!("{}, {} mode", describe_program(id, owners, pins), present.mode.name());
        let mut finding = Finding::new(area, "XDP program", CheckState::Info, "");
        let removal = (!self.removals.is_empty()).then(|| format!("to remove it: {}", self.removals.join("; ")));
        let link = snapshot::link_of(interface.index, *present);
        match link.and_then(|fd| info::link(fd.as_fd()).ok()).map(|about| about.id) {
            Some(link) => {
                text.push_str(&format!(", by link {link}{}{}", held(owners.of_link(link)), pin_of_link(link, pins)));
                if let Some(removal) = removal {
                    finding = finding.why("a link holds it, which ip link and bpftool cannot replace").fix(removal);
                }
            }
            None => {
                text.push_str(", by netlink");
                let by_netlink = || {
                    format!(
                        "to detach it: {prefix}ip link set dev {} {} off",
                        word(&interface.name),
                        match present.mode {
                            trawl_sys::netlink::XdpMode::Native => "xdpdrv",
                            trawl_sys::netlink::XdpMode::Skb => "xdpgeneric",
                            trawl_sys::netlink::XdpMode::Offload => "xdpoffload",
                        }
                    )
                };
                finding = finding.why("it stays until it is detached").fix(removal.unwrap_or_else(by_netlink));
            }
        }
        finding.text = text;
        let about = program::open_by_id(id).and_then(|fd| info::program(fd.as_fd()));
        if let Ok(about) = about {
            if about.name == LIBXDP_DISPATCHER {
                finding.why = Some(dispatcher(interface.index, id, pins));
            }
            self.xdp_is_trawl = capture_chain::is_member(&about.name);
            self.hooks.extend(about.map_ids.iter().filter_map(|map| hook_map(*map, pins)));
            self.xdp = Some(about.name);
        } else {
            self.xdp = Some(format!("number {id}"));
        }
        self.findings.push(finding);
    }

    fn hook_findings(&mut self, area: &str, pins: &[Pinned]) {
        for hook in &self.hooks {
            let pin = match &hook.path {
                Some(path) => format!("pinned at {}", path.display()),
                None => "not pinned".to_owned(),
            };
            let text = format!("{} (map {}, {} entries), {pin}", hook.name, hook.id, hook.entries);
            self.findings.push(Finding::new(area, "hook map", CheckState::Ok, text));
        }
        let of_program: Vec<u32> = self.hooks.iter().map(|hook| hook.id).collect();
        // Maps pinned by trawl belong to the program of one interface: this interface's are listed above.
        let sites = all_directories();
        let is_of_site = |pin: &Pinned| sites.iter().any(|site| pin.path.starts_with(site));
        let others = pinned_hooks(pins).filter(|(pin, about)| !of_program.contains(&about.id) && !is_of_site(pin));
        for (pin, about) in others {
            let text = format!(
                "{} (map {}, {} entries), pinned at {}, not known to be used here",
                about.name,
                about.id,
                about.max_entries,
                pin.path.display()
            );
            self.findings.push(
                Finding::new(area, "hook map", CheckState::Info, text)
                    .fix(format!("if a program here makes tail calls through it: --hook {}", path_word(&pin.path))),
            );
        }
    }
}

fn pinned_hooks(pins: &[Pinned]) -> impl Iterator<Item = (&Pinned, &info::MapInfo)> {
    pins.iter().filter_map(|pin| match &pin.object {
        Object::Map(about) if is_hook(about) => Some((pin, about)),
        _ => None,
    })
}

fn is_hook(about: &info::MapInfo) -> bool {
    about.kind == map::PROG_ARRAY && about.max_entries >= HOOK_ENTRIES && about.name != capture_chain::MAP_NAME
}

fn hook_map(id: u32, pins: &[Pinned]) -> Option<HookMap> {
    let about = map::open_by_id(id).and_then(map::info).ok().filter(is_hook)?;
    let path = pinned_hooks(pins).find(|(_, pinned)| pinned.id == id).map(|(pin, _)| pin.path.clone());
    Some(HookMap { id, name: about.name, entries: about.max_entries, path })
}

fn describe_program(id: u32, owners: &Owners, pins: &[Pinned]) -> String {
    let mut text = match program::open_by_id(id).and_then(|fd| info::program(fd.as_fd())) {
        Ok(about) => format!("{} (id {id}, tag {})", about.name, about.tag),
        Err(_) => format!("id {id}"),
    };
    let pin = pins.iter().find(|pin| matches!(&pin.object, Object::Program(about) if about.id == id));
    if let Some(pin) = pin {
        text.push_str(&format!(", pinned at {}", pin.path.display()));
    }
    text.push_str(&held(owners.of_program(id)));
    text
}

fn held(holders: &[String]) -> String {
    match holders {
        [] => String::new(),
        holders => format!(", held by {}", holders.join(", ")),
    }
}

fn pin_of_link(id: u32, pins: &[Pinned]) -> String {
    let pin = pins.iter().find(|pin| matches!(&pin.object, Object::Link(about) if about.id == id));
    pin.map_or_else(String::new, |pin| format!(", pinned at {}", pin.path.display()))
}

/// Describes libxdp's dispatcher. libxdp pins the programs that the dispatcher runs in a directory named after it.
fn dispatcher(interface: u32, id: u32, pins: &[Pinned]) -> String {
    let directory = format!("dispatch-{interface}-{id}");
    let linked: Vec<_> = pins
        .iter()
        .filter(|pin| pin.path.parent().is_some_and(|parent| parent.ends_with(&directory)))
        .filter_map(|pin| match &pin.object {
            Object::Program(about) => Some(format!("{} (id {})", about.name, about.id)),
            _ => None,
        })
        .collect();
    if linked.is_empty() {
        "libxdp's dispatcher".to_owned()
    } else {
        format!("libxdp's dispatcher, which runs {}", linked.join(", "))
    }
}
