//! How a program that is on an interface is loaded once more, with hooks for captures to enter.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use trawl_attach::site::Site;
use trawl_attach::snapshot;
use trawl_sys::netlink::XdpMode;

use crate::bundled::{BALANCE, GUARD, NAMES, route};
use crate::chain::dispatcher::Dispatcher;
use crate::chain::tail_call;
use crate::pins::Installed;

/// The program that trawl attaches where a device accepts XDP frames only with one.
const HELPER: &str = "trawl_pass";

/// How to load the program on an interface once more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    pub interface: String,
    pub how: Again,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Again {
    /// trawl has not loaded it.
    Unknown,
    Guard,
    Route,
    Balance,
    /// trawl attached it beside another program, or for the time of a command. It lets every packet pass.
    Helper,
    Program {
        source: String,
        /// Its name in the file, where it is from one.
        program: Option<String>,
        skb: bool,
        /// The one without hooks, in whose chain the new one is put before that one is unloaded.
        beside: Option<Beside>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    pub id: u32,
    pub priority: Option<u32>,
}

/// The command that loads the program once more, with hooks.
impl fmt::Display for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, how } = self;
        let (source, program, skb, beside) = match how {
            Again::Unknown => {
                return write!(
                    f,
                    "trawl xdp load {interface} FILE.o --replace --keep-maps --tappable"
                );
            }
            Again::Guard => return write!(f, "trawl guard load {interface} --tappable"),
            Again::Route => return write!(f, "trawl route load {interface} --tappable"),
            Again::Balance => return write!(f, "trawl balance load {interface} --tappable"),
            Again::Helper => {
                return f.write_str(
                    "it is trawl's own and lets every packet pass: capture with --tap tc",
                );
            }
            Again::Program {
                source,
                program,
                skb,
                beside,
            } => (source, program, *skb, beside),
        };
        let what = match program {
            Some(program) => format!("{source} --prog {program}"),
            None => source.clone(),
        };
        let mode = if skb { " --mode skb" } else { "" };
        let Some(beside) = beside else {
            return write!(
                f,
                "trawl xdp load {interface} {what} --replace --keep-maps --tappable{mode}"
            );
        };
        // Of two programs with the same maps, the one without hooks is removed when the other one is attached.
        let priority = beside
            .priority
            .map_or_else(String::new, |priority| format!(" --prio {priority}"));
        write!(
            f,
            "trawl xdp load {interface} {what} --keep-maps --tappable{priority}{mode} && trawl xdp unload {interface} {}",
            beside.id
        )
    }
}

/// How that is done with this program. Of a chain's programs it is the attached one that is meant.
pub fn with_hooks(site: &Site, program: u32) -> Reload {
    Reload {
        interface: site.label().to_owned(),
        how: how(site, program),
    }
}

/// The command that removes a program which trawl loaded. A link holds it: iproute2 and bpftool cannot replace it.
pub fn removal(interface: &str, source: &str, id: u32) -> String {
    match source {
        GUARD => format!("trawl guard unload {interface}"),
        route::NAME => format!("trawl route unload {interface}"),
        BALANCE => format!("trawl balance unload {interface}"),
        _ => format!("trawl xdp unload {interface} {id}"),
    }
}

/// Commands that remove the programs that trawl loaded on an interface.
pub fn removals(site: &Site) -> Vec<String> {
    let all = Installed::all(site).unwrap_or_default();
    let command = |one: &Installed| removal(site.label(), one.source(), one.id());
    all.iter().map(command).collect()
}

fn how(site: &Site, program: u32) -> Again {
    let dispatcher = Dispatcher::read(program);
    let members: Vec<u32> = dispatcher.iter().flat_map(Dispatcher::programs).collect();
    let wanted = |one: &Installed| one.id() == program || members.contains(&one.id());
    let all = Installed::all(site).unwrap_or_default();
    let Some(found) = all.iter().find(|one| wanted(one)) else {
        return match snapshot::name_of(program).as_deref() {
            Some(HELPER) => Again::Helper,
            _ => Again::Unknown,
        };
    };
    let source = found.source();
    match source {
        GUARD => return Again::Guard,
        route::NAME => return Again::Route,
        BALANCE => return Again::Balance,
        _ => {}
    }
    let is_file = Path::new(source).is_absolute();
    let source = match is_file || (NAMES.contains(&source) && source != "redirect") {
        true => source.to_owned(),
        // Those with a fixed verdict need no options.
        false => format!("{source}, with its options,"),
    };
    let is_alone = tail_call::after(program).is_empty() && members.len() <= 1;
    Again::Program {
        source,
        program: is_file.then(|| found.name().to_owned()),
        skb: found.mode() == Some(XdpMode::Skb),
        beside: (!is_alone).then(|| Beside {
            id: found.id(),
            priority: found.seat().map(|seat| seat.priority),
        }),
    }
}
