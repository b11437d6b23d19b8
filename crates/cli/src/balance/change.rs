//! Commands that put a balancer on an interface, change its table, and remove it.

use std::path::Path;

use serde::Serialize;
use trawl_balance::balancer::Done;
use trawl_balance::{Backend, Balancer, Table, Vip, file};
use trawl_guard::state as guard;
use trawl_program::Site;
use trawl_program::safety::SessionCare;
use trawl_program::unload::UnloadChoice;
use trawl_sys::netlink::XdpMode;
use trawl_sys::{Error, Result};

use super::{BackendAdd, BackendArgs, BalancerArgs, Drain, Load, VipAdd, VipRemove, Weight};
use crate::args::interface_and_rest;
use crate::json;
use crate::program_args::{TargetArgs, UnloadArgs, find_all};
use crate::terminal;

/// The state in force after a change, in JSON.
#[derive(Debug, Serialize)]
struct DoneDocument<'a> {
    interface: &'a str,
    id: u32,
    mode: Option<&'static str>,
    vips: usize,
    backends: usize,
    notices: &'a [String],
    warnings: &'a [String],
}

fn print_result(done: &Done, as_json: bool, message: String) -> Result<()> {
    let Done { balancer, table, notices, warnings } = done;
    if !as_json {
        let messages = notices.iter().chain(warnings);
        messages.for_each(|text| terminal::say(text));
    }
    let document = DoneDocument {
        interface: balancer.site.label(),
        id: balancer.installed.id(),
        mode: balancer.installed.mode().map(XdpMode::name),
        vips: table.vips.len(),
        backends: table.backends(),
        notices,
        warnings,
    };
    json::print_as(as_json, &document, || message)
}

fn plural(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

pub fn load(args: &Load) -> Result<()> {
    let attach = &args.attach;
    attach.verifier_log.begin()?;
    let (interface, rest) = interface_and_rest(args.interface.as_deref(), &args.words, "balance load")?;
    let table = match rest {
        [] => None,
        [file] => Some(file::read(Path::new(file))?),
        _ => {
            return Err(Error::usage("cannot load a balancer", "several files are named")
                .fix("trawl balance load IF [FILE.toml]"));
        }
    };
    let site = Site::find(&interface, attach.netns.as_deref())?;
    let request = attach.request(args.prio);
    let sites = [site];
    let care = attach.consent.care();
    attach.warn_of_attaching(&sites);
    let done = attach
        .consent
        .change(&sites, || guard::around(&sites, || Balancer::load(&sites[0], table, &request, args.flows, care)))?;
    let message = format!(
        "balancing on {} (id {}, {}): {}, {}\n",
        done.balancer.site.label(),
        done.balancer.installed.id(),
        done.balancer.installed.mode().map_or("", XdpMode::name),
        plural(done.table.vips.len(), "virtual address", "virtual addresses"),
        plural(done.table.backends(), "backend", "backends"),
    );
    print_result(&done, attach.json, message)
}

fn change(target: &BalancerArgs, message: String, change: impl FnOnce(&mut Table) -> Result<()>) -> Result<()> {
    let done = target.balancer()?.change(SessionCare::Without, change)?;
    print_result(&done, target.json, message)
}

pub fn add_vip(args: &VipAdd) -> Result<()> {
    let care = if args.yes { SessionCare::Without } else { SessionCare::ForTheSession };
    let done = args.target.balancer()?.change(care, |table| {
        let mut vip = Vip::new(args.vip, args.forward);
        vip.gue_port = args.gue_port;
        table.add_vip(vip);
        Ok(())
    })?;
    print_result(&done, args.target.json, format!("added {}\n", args.vip))
}

pub fn remove_vip(args: &VipRemove) -> Result<()> {
    change(&args.target, format!("removed {}\n", args.vip), |table| table.remove_vip(&args.vip).map(drop))
}

pub fn add_backend(args: &BackendAdd) -> Result<()> {
    let BackendArgs { vip, backend, target } = &args.which;
    let new = Backend {
        weight: args.weight,
        mac: args.mac,
        server_id: args.server_id,
        ..Backend::new(backend.to_canonical())
    };
    let message = format!("added the backend {backend} to {vip}\n");
    change(target, message, |table| table.add_backend(vip, new))
}

pub fn remove_backend(args: &BackendArgs) -> Result<()> {
    let BackendArgs { vip, backend, target } = args;
    let message = format!("removed the backend {backend} from {vip}\n");
    change(target, message, |table| table.remove_backend(vip, *backend).map(drop))
}

/// Changes a backend of the table.
fn set(which: &BackendArgs, message: String, set: impl FnOnce(&mut Backend)) -> Result<()> {
    change(&which.target, message, |table| table.backend_mut(&which.vip, which.backend).map(set))
}

pub fn drain(args: &Drain) -> Result<()> {
    let BackendArgs { vip, backend, .. } = &args.which;
    let message = if args.undo {
        format!("{backend} gets new flows of {vip} again\n")
    } else {
        format!("draining {backend}: no new flows of {vip}\n")
    };
    set(&args.which, message, |one| one.draining = !args.undo)
}

pub fn weight(args: &Weight) -> Result<()> {
    let BackendArgs { vip, backend, .. } = &args.which;
    let message = format!("{backend} of {vip} has weight {}\n", args.weight);
    set(&args.which, message, |one| one.weight = args.weight)
}

pub fn unload(args: &UnloadArgs) -> Result<()> {
    let TargetArgs { interfaces, netns, json } = &args.target;
    let mut found = Vec::new();
    for site in find_all(&interfaces.names(), netns)? {
        let is_named = |one: &Balancer| one.site.shares_namespace(&site) && one.site.index() == site.index();
        if !found.iter().any(is_named) {
            found.push(Balancer::at(site)?);
        }
    }
    if found.is_empty() {
        let target = BalancerArgs { on: None, netns: netns.clone(), json: *json };
        let name = |error: Error| match error.kind() {
            trawl_sys::error::ErrorKind::Usage => error.fix("name the interfaces to unload it from"),
            trawl_sys::error::ErrorKind::Failed => error,
        };
        found.push(target.balancer().map_err(name)?);
    }
    for balancer in &found {
        let which = UnloadChoice::One(balancer.installed.id());
        args.consent.check_unload(&balancer.site, which)?;
    }
    let (sites, programs): (Vec<Site>, Vec<_>) =
        found.into_iter().map(|Balancer { site, installed }| (site, installed)).unzip();
    args.consent.change(&sites, || {
        let mut both = sites.iter().zip(programs);
        both.try_for_each(|(site, installed)| installed.detach(site))
    })?;
    args.print_removed("the balancer", &sites)
}
