//! A planned capture, from its first program to its end.

use trawl_sys::Result;

use crate::MAX_CAPTURED;
use crate::assembly::HostFeatures;
use crate::capture_site::CaptureSite;
use crate::event::Event;
use crate::loans;
use crate::session::{self, Attached, Observer};
use trawl_plan::CapturePlan;

/// Attaches the taps of a plan, and passes the capture to `record`, which ends it. A program that was lent hooks is
/// restored.
pub fn run<O: Observer, T>(
    plan: &CapturePlan,
    mut sites: Vec<CaptureSite>,
    observer: &mut O,
    record: impl FnOnce(Attached, &mut O) -> Result<T>,
) -> Result<T> {
    let options = &plan.options;
    let (loans, lent) = match &plan.tappable {
        Some(file) => loans::insert_hooks(&plan.sources, file)?,
        None => Default::default(),
    };
    lent.iter().for_each(|event| observer.event(event));
    loans::note(&loans, &mut sites);
    let attached = session::attach(&sites, options, HostFeatures::this(), observer)?;
    // A deleted namespace ends once no process holds it: the capture releases the namespaces of vanished interfaces.
    drop(sites);
    let geometry = attached.geometry();
    let snaplen = options.snaplen.min(geometry.max_captured());
    if snaplen < options.snaplen && options.snaplen < MAX_CAPTURED {
        observer.event(&Event::SnaplenReduced { bytes: snaplen });
    }
    if options.headers && (!plan.outputs.is_empty() || plan.store.is_some()) {
        observer.event(&Event::ChecksumsCoverPayload);
    }
    if let Some(trigger) = &options.trigger {
        observer.event(&Event::armed(trigger, geometry.pool_size as u64));
    }
    let recorded = record(attached, observer)?;
    loans::give_back(loans).for_each(|event| observer.event(&event));
    Ok(recorded)
}
