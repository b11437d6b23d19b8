//! Commands that load a program on an interface again, with hooks for captures.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use trawl_attach::site::Site;
use trawl_attach::snapshot;
use trawl_sys::netlink::XdpMode;

use crate::chain;
use crate::chain::dispatcher::Dispatcher;
use crate::pins::{BALANCE, GUARD, Installed, NAMES, ROUTE};
use trawl_sys::words::word;

/// The program that trawl attaches to devices that accept XDP frames only with one.
const HELPER: &str = "trawl_pass";

/// Instructions for loading the program on an interface again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reload {
    pub interface: String,
    pub how: ReloadMethod,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReloadMethod {
    /// The program was not loaded by trawl.
    Unknown,
    Guard,
    Route,
    Balance,
    /// Helper that trawl attached for another program, or for the duration of a command. It lets every packet pass.
    Helper,
    Program {
        source: String,
        /// Its name in the file, if it is from one.
        program: Option<String>,
        skb: bool,
        /// The program without hooks, unloaded once the new one is in its chain.
        beside: Option<ReplacedProgram>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplacedProgram {
    pub id: u32,
    pub priority: Option<u32>,
}

/// Writes the command that loads the program again, with hooks.
impl fmt::Display for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, how } = self;
        let interface = word(interface);
        let (source, program, skb, beside) = match how {
            ReloadMethod::Unknown => {
                return write!(f, "trawl xdp load {interface} FILE.o --replace --keep-maps --tappable");
            }
            ReloadMethod::Guard => return write!(f, "trawl guard load {interface} --tappable"),
            ReloadMethod::Route => return write!(f, "trawl route load {interface} --tappable"),
            ReloadMethod::Balance => return write!(f, "trawl balance load {interface} --tappable"),
            ReloadMethod::Helper => {
                return f.write_str("it is trawl's own and lets every packet pass: capture with --tap tc");
            }
            ReloadMethod::Program { source, program, skb, beside } => (source, program, *skb, beside),
        };
        let what = match program {
            Some(program) => format!("{} --prog {}", word(source), word(program)),
            None => word(source).into_owned(),
        };
        let mode = if skb { " --mode skb" } else { "" };
        let Some(beside) = beside else {
            return write!(f, "trawl xdp load {interface} {what} --replace --keep-maps --tappable{mode}");
        };
        // Of two programs with the same maps, the one without hooks is removed when the other one is attached.
        let priority = beside.priority.map_or_else(String::new, |priority| format!(" --prio {priority}"));
        write!(
            f,
            "trawl xdp load {interface} {what} --keep-maps --tappable{priority}{mode} && trawl xdp unload {interface} {}",
            beside.id
        )
    }
}

impl Reload {
    /// Returns the commands that give the program hooks. The first one gives them for one capture only, and changes
    /// nothing permanently.
    pub fn advice(&self) -> String {
        let Self { interface, how } = self;
        let file = match how {
            ReloadMethod::Unknown => "FILE.o",
            ReloadMethod::Program { source, .. } if source.ends_with(".o") => source,
            _ => return format!("load it with hooks and use --tap tailcall: {self}"),
        };
        let (interface, file) = (word(interface), word(file));
        format!(
            "give it hooks for this capture, from the file that it was loaded from: trawl capture -i {interface} --tappable {file}; or \
             load it with hooks and use --tap tailcall: {self}"
        )
    }
}

/// Returns how to load this program again with hooks. In a chain, the attached program is meant.
pub fn with_hooks(site: &Site, program: u32) -> Reload {
    Reload { interface: site.label().to_owned(), how: how(site, program) }
}

/// Returns the command that removes a program loaded by trawl. A link holds it: iproute2 and bpftool cannot replace it.
pub fn removal(interface: &str, source: &str, id: u32) -> String {
    let interface = word(interface);
    match source {
        GUARD => format!("trawl guard unload {interface}"),
        ROUTE => format!("trawl route unload {interface}"),
        BALANCE => format!("trawl balance unload {interface}"),
        _ => format!("trawl xdp unload {interface} {id}"),
    }
}

/// Returns the commands that remove trawl's programs on an interface.
pub fn removals(site: &Site) -> Vec<String> {
    let all = Installed::all(site).unwrap_or_default();
    let command = |one: &Installed| removal(site.label(), one.source(), one.id());
    all.iter().map(command).collect()
}

fn how(site: &Site, program: u32) -> ReloadMethod {
    let dispatcher = Dispatcher::read(program);
    let members: Vec<u32> = dispatcher.iter().flat_map(Dispatcher::programs).collect();
    let wanted = |one: &Installed| one.id() == program || members.contains(&one.id());
    let all = Installed::all(site).unwrap_or_default();
    let Some(found) = all.iter().find(|one| wanted(one)) else {
        return match snapshot::name_of(program).as_deref() {
            Some(HELPER) => ReloadMethod::Helper,
            _ => ReloadMethod::Unknown,
        };
    };
    let source = found.source();
    match source {
        GUARD => return ReloadMethod::Guard,
        ROUTE => return ReloadMethod::Route,
        BALANCE => return ReloadMethod::Balance,
        _ => {}
    }
    let is_file = Path::new(source).is_absolute();
    // Programs with a fixed verdict need no options.
    let source = if is_file || (NAMES.contains(&source) && source != "redirect") {
        source.to_owned()
    } else {
        format!("{source}, with its options,")
    };
    let is_alone = chain::after(program).is_empty() && members.len() <= 1;
    ReloadMethod::Program {
        source,
        program: is_file.then(|| found.name().to_owned()),
        skb: found.mode() == Some(XdpMode::Skb),
        beside: (!is_alone)
            .then(|| ReplacedProgram { id: found.id(), priority: found.seat().map(|seat| seat.priority) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_for_one_capture_are_offered_first() {
        let advice = |how| {
            let interface = "eth0".to_owned();
            Reload { interface, how }.advice()
        };
        let unknown = advice(ReloadMethod::Unknown);
        let for_capture = unknown.find("trawl capture -i eth0 --tappable FILE.o");
        assert!(for_capture < unknown.find("trawl xdp load eth0 FILE.o"), "{unknown}");
        assert!(for_capture.is_some(), "{unknown}");
        let guard = advice(ReloadMethod::Guard);
        assert!(!guard.contains("trawl capture") && guard.contains("trawl guard load eth0 --tappable"), "{guard}");
    }
}
