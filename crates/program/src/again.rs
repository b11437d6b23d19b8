//! How a program that is on an interface is loaded once more, with hooks for captures to enter.

use std::path::Path;

use trawl_kernel::netlink::XdpMode;

use crate::bundled::{GUARD, NAMES};
use crate::dispatcher::Dispatcher;
use crate::jump_chain;
use crate::route;
use crate::standing::Standing;
use trawl_attach::site::Site;

/// The command that does so, for a person. Of a chain's programs it is the attached one that is meant.
pub fn with_hooks(site: &Site, program: u32) -> String {
    let place = site.label();
    let dispatcher = Dispatcher::read(program);
    let members: Vec<u32> = dispatcher.iter().flat_map(Dispatcher::programs).collect();
    let wanted = |one: &Standing| one.id() == program || members.contains(&one.id());
    let all = Standing::all(site).unwrap_or_default();
    let Some(found) = all.iter().find(|one| wanted(one)) else {
        return format!("trawl xdp load {place} FILE.o --replace --keep-maps --tappable");
    };
    let source = found.source();
    match source {
        GUARD => return format!("trawl guard load {place} --tappable"),
        route::NAME => return format!("trawl route load {place} --tappable"),
        _ => {}
    }
    let what = match Path::new(source).is_absolute() {
        true => format!("{source} --prog {}", found.name()),
        // Those with a fixed verdict need no options.
        false if NAMES.contains(&source) && source != "redirect" => source.to_owned(),
        false => format!("{source}, with its options,"),
    };
    let mode = match found.mode() {
        Some(XdpMode::Skb) => " --mode skb",
        _ => "",
    };
    match jump_chain::after(program).is_empty() && members.len() <= 1 {
        true => format!("trawl xdp load {place} {what} --replace --keep-maps --tappable{mode}"),
        // Of two programs with the same maps the one without hooks goes when the other one is there.
        false => {
            let id = found.id();
            let priority = found
                .seat()
                .map_or_else(String::new, |seat| format!(" --prio {}", seat.priority));
            format!(
                "trawl xdp load {place} {what} --keep-maps --tappable{priority}{mode} && trawl xdp unload {place} {id}"
            )
        }
    }
}
