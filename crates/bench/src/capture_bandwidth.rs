//! `capture-bandwidth`: how fast packets that an XDP program drops can be recorded to a file, beside the bare drop,
//! beside a hook that only reads the clock, beside a tracing program, and beside tcpdump (after figure 2 of "xdpcap: XDP Packet Capture").

use trawl_kernel::Result;
use trawl_kernel::probe::Feature;

use super::mechanism::{Mechanism, Setting};
use super::{ClockCost, Conditions, Outcome, Plan, take_turns};

pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Outcome> {
    let mut mechanisms = vec![Mechanism::Bare, Mechanism::Clock, Mechanism::Trawl];
    let refusal = [Feature::Fentry, Feature::Fexit]
        .into_iter()
        .find_map(|feature| feature.probe().why());
    let mut left_out = Vec::new();
    match refusal {
        None => mechanisms.push(Mechanism::Traced),
        Some(why) => left_out.push(format!(
            "{}: the kernel takes no tracing programs here: {why}",
            Mechanism::Traced.name()
        )),
    }
    if plan.with_tcpdump {
        mechanisms.push(Mechanism::Tcpdump);
    }
    let conditions = Conditions::of(plan, &mechanisms);
    progress("the clock");
    let clock = Some(ClockCost::measure()?);
    let setting = Setting {
        plan,
        filter: None,
        variation: None,
    };
    let traffic = "UDP to the receiving host's discard port, all alike".to_owned();
    let mut failures = Vec::new();
    let group = take_turns(&setting, &mechanisms, traffic, &mut failures, progress);
    Ok(Outcome {
        experiment: "capture-bandwidth",
        conditions,
        groups: vec![group],
        clock,
        long_expressions: Vec::new(),
        left_out,
        failures,
    })
}
