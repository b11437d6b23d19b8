//! `trawl capture --tappable FILE.o`: hooks in the running XDP programs for the duration of a capture.

use std::path::Path;

use trawl_program::Site;
use trawl_program::swap::Loan;
use trawl_sys::Result;

use crate::capture_site::CaptureSite;
use crate::event::Event;
use trawl_plan::sources::Sources;

/// Inserts hooks into the program on each interface, and returns what was done. If one of them fails, all are removed
/// again.
pub fn insert_hooks(sources: &Sources, file: &Path) -> Result<(Vec<Loan>, Vec<Event>)> {
    let (mut loans, mut events) = (Vec::new(), Vec::new());
    for text in &sources.names {
        let site = Site::find(text, sources.netns.as_deref())?;
        match Loan::insert_hooks(&site, file)? {
            Some(loan) => {
                let inherited = loan.inherited();
                events.push(Event::HooksLent {
                    interface: site.label().to_owned(),
                    file: file.to_owned(),
                    program: inherited.from_name.clone(),
                    id: inherited.from_id,
                });
                loans.push(loan);
            }
            None => events.push(Event::HasHooks { interface: site.label().to_owned() }),
        }
    }
    Ok((loans, events))
}

/// Notes at each site the program that was lent hooks.
pub fn note(loans: &[Loan], sites: &mut [CaptureSite]) {
    if loans.is_empty() {
        return;
    }
    for site in sites {
        let attached = site.interface.xdp_attached(site.namespace.as_ref()).ok().flatten();
        let is_its = |(id, _): &(u32, &str)| attached.is_some_and(|attached| attached.program_id == *id);
        let lent = loans.iter().filter_map(Loan::lent).find(is_its);
        site.lent = lent.map(|(id, tag)| (id, tag.to_owned()));
    }
}

/// Restores the programs without hooks, and returns the failures.
pub fn give_back(loans: Vec<Loan>) -> impl Iterator<Item = Event> {
    loans.into_iter().filter_map(|loan| {
        let interface = loan.label().to_owned();
        (!loan.give_back()).then_some(Event::HooksNotReturned { interface })
    })
}
