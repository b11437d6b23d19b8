//! `trawl capture`: from the arguments to the final summary.

pub(crate) mod args;
pub(crate) mod display;
mod drops;
pub(crate) mod interfaces;
pub(crate) mod named_output;
mod peers;
mod pod;
mod processes;
pub(crate) mod progress;
pub(crate) mod recording;
mod remote;
mod stored;
mod tcpdump;
mod trigger;

use std::process::ExitCode;
use std::sync::Arc;

use trawl_capture::capture_site::CaptureSite;
use trawl_capture::event::Event;
use trawl_capture::filter::choose_for_filters;
use trawl_capture::own_traffic::{leave_out, own_traffic};
use trawl_capture::pods::{self, Pods};
use trawl_capture::session::Observer;
use trawl_capture::subject::Subject;
use trawl_plan::CapturePlan;
use trawl_sink::{Output, Outputs};
use trawl_sys::Result;
use trawl_sys::rights::privilege::User;

pub use args::Args;
use args::Environment;
use display::Display;
use progress::Terminal;

use crate::args::begin_verifier_log;
use crate::helpers::FLEET;
use crate::{json, published};

pub fn run(args: Args) -> Result<ExitCode> {
    if args.drops.asks_for_help() {
        return drops::list_reasons();
    }
    let mut plan = match &args.plan {
        Some(file) => args.only_plan(file)?,
        None => args.resolve(&Environment::here())?,
    };
    let display = args.display(&plan);
    if args.dry_run {
        return args::show_plan(&plan, display.json);
    }
    if args.lists_interfaces() {
        return interfaces::list(&plan, display.json);
    }
    if let Some(path) = &plan.verifier_log {
        begin_verifier_log(path)?;
    }
    if let Some(path) = &plan.options.peers.library {
        choose_for_filters(path);
    }
    if args.remote.are_named() {
        return remote::capture(&args.remote, &plan, &display);
    }
    if plan.store.is_some() {
        // Refused before anything is attached.
        FLEET.command()?;
    }
    let mut pods = pods::find(&mut plan)?;
    let of_pods = std::mem::take(&mut pods.interfaces);
    let mut sites = trawl_capture::sources::find(&plan.sources, plan.options.tap, of_pods)?;
    if let Some(pod) = &pods.on_host {
        let all = sites.iter_mut();
        all.for_each(|site| site.pod = Some(Arc::clone(pod)));
    }
    display.check_outputs(&plan, &sites)?;
    if let Some(wanted) = &plan.link_type {
        tcpdump::check_link_type(wanted, &sites)?;
    }
    if args.tcpdump.only_shows() {
        return args.tcpdump.show(&sites, plan.options.filter.as_ref());
    }
    carry_out(&plan, &display, sites, &pods)
}

/// Captures as planned, and compiles the summary.
fn carry_out(plan: &CapturePlan, display: &Display, sites: Vec<CaptureSite>, pods: &Pods) -> Result<ExitCode> {
    let mut plan = plan.clone();
    let joins = plan.options.across_namespaces;
    let user = plan.user.as_deref().map(User::find).transpose()?;
    let subject = Subject::prepare(&plan.command, &mut plan.options, joins, user.as_ref())?;
    let mut observer = Terminal::new(&plan, display, subject, pods);
    pods.events.iter().for_each(|event| observer.event(event));
    let account = plan.summary.as_deref();
    let account = account.map(|path| Output::open(path, plan.files.mode, user.as_ref())).transpose()?;
    let mut outputs =
        Outputs::open(&plan, display.shown(&plan), user.clone(), &mut observer, |event| json::event(event))?;
    observer.watch_readers(outputs.readers());
    plan.options.prompt |= outputs.are_awaited();
    if outputs.addresses().next().is_some() {
        (plan.options.memory, outputs.for_readers) = trawl_capture::memory::with_readers(plan.options.memory)?;
    }
    for address in outputs.addresses() {
        if let Some(traffic) = own_traffic(address, &sites) {
            let left_out = leave_out(&mut plan.options.filter, &traffic);
            observer.event(&Event::OwnTraffic { traffic, left_out });
        }
    }
    let (mut summary, ended, is_stored) =
        trawl_capture::run(&plan, sites, &mut observer, |attached, observer| match &plan.store {
            Some(store) => {
                let (summary, ended, outcome) = stored::record(attached, store, user, observer)?;
                Ok((summary, ended, stored::report(&outcome, &store.url)))
            }
            None => outputs.record(attached, observer).map(|(summary, ended)| (summary, ended, true)),
        })?;
    published::stopping();
    summary.readers = observer.readers();
    observer.finish();
    summary.notices = observer.take_events();
    let status = observer.end_subject();
    let code = observer.report(plan.options.time, &summary, &ended, account)?;
    if !is_stored {
        return Ok(ExitCode::FAILURE);
    }
    Ok(if code == ExitCode::SUCCESS { ExitCode::from(status) } else { code })
}
