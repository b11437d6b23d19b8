//! What puts a balancer on an interface, changes its table, and takes it off.

use serde::Serialize;
use trawl_attach::Request;
use trawl_balance::balancer::{Care, Done, Extras};
use trawl_balance::{Backend, Balancer, Table, Vip, file};
use trawl_guard::state as guard;
use trawl_program::Site;
use trawl_program::unload::Which;
use trawl_sys::netlink::XdpMode;
use trawl_sys::{Error, Result};

use super::{
    BackendAdd, BackendRemove, BalancerArgs, Drain, Load, Unload, VipAdd, VipRemove, Weight,
};
use crate::json;
use crate::terminal::{self, write_out};

/// What a change left in force.
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

fn tell(done: &Done, as_json: bool, said: &str) -> Result<()> {
    let Done {
        balancer,
        table,
        notices,
        warnings,
    } = done;
    if as_json {
        return json::print(&DoneDocument {
            interface: balancer.site.label(),
            id: balancer.installed.id(),
            mode: balancer.installed.mode().map(XdpMode::name),
            vips: table.vips.len(),
            backends: table.backends(),
            notices,
            warnings,
        });
    }
    let told = notices.iter().chain(warnings);
    told.for_each(|text| terminal::say(text));
    write_out(said)
}

fn plural(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

pub fn load(args: &Load) -> Result<()> {
    args.verifier_log.begin()?;
    let site = Site::find(&args.interface, args.netns.as_deref())?;
    let table = args.file.as_deref().map(file::read).transpose()?;
    let request = args.consent.limits(Request {
        mode: args.mode.map(XdpMode::from),
        replace: args.replace,
        ..Request::default()
    });
    let extras = Extras {
        priority: args.prio,
        tappable: args.tappable,
        flows: args.flows,
    };
    let sites = [site];
    let care = match args.consent.is_careful() {
        true => Care::ForTheSession,
        false => Care::Without,
    };
    let done = args.consent.change(&sites, || {
        guard::around(&sites, || {
            Balancer::load(&sites[0], table, &request, extras, care)
        })
    })?;
    let said = format!(
        "balancing on {} (id {}, {}): {}, {}\n",
        done.balancer.site.label(),
        done.balancer.installed.id(),
        done.balancer.installed.mode().map_or("", XdpMode::name),
        plural(
            done.table.vips.len(),
            "virtual address",
            "virtual addresses"
        ),
        plural(done.table.backends(), "backend", "backends"),
    );
    tell(&done, args.json, &said)
}

fn change(
    place: &BalancerArgs,
    care: Care,
    said: &str,
    change: impl FnOnce(&mut Table) -> Result<()>,
) -> Result<()> {
    let done = place.balancer()?.change(care, change)?;
    tell(&done, place.json, said)
}

pub fn add_vip(args: &VipAdd) -> Result<()> {
    let said = format!("added {}\n", args.vip);
    change(&args.place, args.consent.care(), &said, |table| {
        let mut vip = Vip::new(args.vip, args.forward.into());
        vip.gue_port = args.gue_port;
        table.add_vip(vip);
        Ok(())
    })
}

pub fn remove_vip(args: &VipRemove) -> Result<()> {
    let said = format!("removed {}\n", args.vip);
    change(&args.place, Care::Without, &said, |table| {
        table.remove_vip(&args.vip).map(drop)
    })
}

pub fn add_backend(args: &BackendAdd) -> Result<()> {
    let said = format!("added the backend {} to {}\n", args.backend, args.vip);
    let backend = Backend {
        weight: args.weight,
        mac: args.mac,
        server_id: args.server_id,
        ..Backend::new(args.backend.to_canonical())
    };
    change(&args.place, Care::Without, &said, |table| {
        table.add_backend(&args.vip, backend)
    })
}

pub fn remove_backend(args: &BackendRemove) -> Result<()> {
    let said = format!("removed the backend {} from {}\n", args.backend, args.vip);
    change(&args.place, Care::Without, &said, |table| {
        table.remove_backend(&args.vip, args.backend).map(drop)
    })
}

pub fn drain(args: &Drain) -> Result<()> {
    let said = match args.undo {
        true => format!("{} gets new flows of {} again\n", args.backend, args.vip),
        false => format!("draining {}: no new flows of {}\n", args.backend, args.vip),
    };
    change(&args.place, Care::Without, &said, |table| {
        table.backend_mut(&args.vip, args.backend)?.draining = !args.undo;
        Ok(())
    })
}

pub fn weight(args: &Weight) -> Result<()> {
    let said = format!(
        "{} of {} has weight {}\n",
        args.backend, args.vip, args.weight
    );
    change(&args.place, Care::Without, &said, |table| {
        table.backend_mut(&args.vip, args.backend)?.weight = args.weight;
        Ok(())
    })
}

/// What `balance unload --json` prints.
#[derive(Debug, Serialize)]
struct UnloadDocument<'a> {
    unloaded: Vec<&'a str>,
}

pub fn unload(args: &Unload) -> Result<()> {
    let mut found = Vec::new();
    for name in &args.interfaces {
        let site = Site::find(name, args.netns.as_deref())?;
        let is_named =
            |one: &Balancer| one.site.is_beside(&site) && one.site.index() == site.index();
        if !found.iter().any(is_named) {
            found.push(Balancer::at(site)?);
        }
    }
    if args.interfaces.is_empty() {
        let place = BalancerArgs {
            on: None,
            netns: args.netns.clone(),
            json: args.json,
        };
        let name = |error: Error| match error.kind() {
            trawl_sys::error::Kind::Usage => error.fix("name the interfaces to unload it from"),
            trawl_sys::error::Kind::Failed => error,
        };
        found.push(place.balancer().map_err(name)?);
    }
    for balancer in &found {
        let which = Which::One(balancer.installed.id());
        args.consent.check_unload(&balancer.site, which)?;
    }
    let (sites, programs): (Vec<Site>, Vec<_>) = found
        .into_iter()
        .map(|Balancer { site, installed }| (site, installed))
        .unzip();
    args.consent.change(&sites, || {
        let mut both = sites.iter().zip(programs);
        both.try_for_each(|(site, installed)| installed.detach(site))
    })?;
    let unloaded: Vec<&str> = sites.iter().map(Site::label).collect();
    match args.json {
        true => json::print(&UnloadDocument { unloaded }),
        false => write_out(&format!(
            "unloaded the balancer from {}\n",
            unloaded.join(", ")
        )),
    }
}
