//! The taps of one site, attached when a capture starts or later.

use std::rc::Rc;

use trawl_sys::Result;

use super::promiscuous::Promiscuous;
use super::{AtSite, Observer};
use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::Event;
use crate::select::select;
use crate::{dpdk, pcap};

/// Attaches the taps of a site; tells whether one of them sees verdicts.
pub(super) fn attach_at(
    index: usize,
    site: &CaptureSite,
    assembly: &mut Assembly,
    taps: &mut Vec<AtSite>,
    promiscuous: &mut Promiscuous,
) -> Result<bool> {
    let options = Rc::clone(&assembly.options);
    site.check_queue(&options)?;
    let selection = select(site, &options)?;
    for tap in &selection.taps {
        let attached = match tap.attach(index, site, assembly) {
            Ok(attached) => attached,
            // A way is shown without the steps there.
            Err(error) if options.follows() => {
                assembly.event(Event::NoSteps {
                    why: error.to_string(),
                });
                continue;
            }
            Err(error) => return Err(error),
        };
        taps.push(AtSite::new(index, tap.name(), attached));
    }
    let own_sockets = ["packet", pcap::NAME, dpdk::NAME];
    let sees_beside_socket = selection
        .taps
        .iter()
        .any(|tap| !own_sockets.contains(&tap.name()));
    // Taps with sockets of their own see to it themselves.
    if options.promiscuous && sees_beside_socket && !site.interface.loopback {
        promiscuous.add(site)?;
    }
    if options.follows() && selection.taps.is_empty() {
        let present = site.interface.xdp_attached(site.namespace.as_ref());
        let program = present
            .ok()
            .flatten()
            .map_or(0, |present| present.program_id);
        assembly.event(Event::NoHooks {
            interface: site.label.clone(),
            reload: site.with_hooks(program),
        });
    }
    if let Some(reason) = selection.why {
        let names = selection.taps.iter().map(|tap| tap.name().to_owned());
        assembly.event(Event::UsingTaps {
            interface: site.label.clone(),
            taps: names.collect(),
            reason,
        });
    }
    Ok(selection.taps.iter().any(|tap| tap.facts().gives.verdict))
}

/// Says what there was to say while taps were attached.
pub(super) fn tell(assembly: &mut Assembly, observer: &mut dyn Observer) {
    for notice in assembly.notices.drain(..) {
        observer.event(&notice);
    }
    for notice in assembly.details.drain(..) {
        observer.detail(&notice);
    }
}
