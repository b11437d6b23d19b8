//! `trawl capture --tappable FILE.o`: hooks in the running XDP programs for the duration of a capture.

use std::path::Path;

use trawl_program::Site;
use trawl_program::swap::Loan;
use trawl_sys::Result;

use crate::event::Event;
use crate::session::Observer;
use trawl_plan::sources::Sources;

/// Inserts hooks into the program on each interface. If one of them fails, all are removed again.
pub fn insert_hooks(sources: &Sources, file: &Path, observer: &mut dyn Observer) -> Result<Vec<Loan>> {
    let mut loans = Vec::new();
    for text in &sources.names {
        let site = Site::find(text, sources.netns.as_deref())?;
        match Loan::insert_hooks(&site, file)? {
            Some(loan) => {
                let inherited = loan.inherited();
                observer.event(&Event::HooksLent {
                    interface: site.label().to_owned(),
                    file: file.to_owned(),
                    program: inherited.from_name.clone(),
                    id: inherited.from_id,
                });
                loans.push(loan);
            }
            None => observer.event(&Event::HasHooks { interface: site.label().to_owned() }),
        }
    }
    Ok(loans)
}

/// Restores the programs without hooks.
pub fn give_back(loans: Vec<Loan>, observer: &mut dyn Observer) {
    for loan in loans {
        let interface = loan.label().to_owned();
        if !loan.give_back() {
            observer.event(&Event::HooksNotReturned { interface });
        }
    }
}
