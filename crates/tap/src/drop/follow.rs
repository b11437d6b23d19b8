//! Where packets are looked at on their way: tracepoints of the network stack, netfilter's hooks, and tc.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_ebpf::Insn;
use trawl_kernel::bpf::link::{self, TcxPlace};
use trawl_kernel::bpf::{kernel_types, object, program};
use trawl_kernel::layout::TapConfig;
use trawl_kernel::layout::drop::{
    STEP_BACKLOG, STEP_CONSUMED, STEP_DROPPED, STEP_GRO, STEP_NETFILTER_FIRST, STEP_NETFILTER_LAST,
    STEP_QDISC_IN, STEP_QDISC_OUT, STEP_QUEUED, STEP_READ, STEP_RECEIVED, STEP_SOCKET,
    STEP_TC_EGRESS, STEP_TC_INGRESS, STEP_TRANSMITTED,
};
use trawl_kernel::netns::{run_in, run_maybe_in};
use trawl_kernel::{Error, Result, errno};

use super::Along;
use super::load::{self, Loaded, Tracepoint};
use crate::assembly::Assembly;
use crate::notice::{Notice, Steps};

/// A tracepoint that packets come by.
struct Step {
    number: usize,
    tracepoint: &'static str,
    program: &'static str,
    /// A packet may be seen there first, if the filter lets it through.
    is_entry: bool,
}

/// The last ones first: what is seen at a beginning finds everything else in place.
const STEPS: [Step; 13] = [
    pass(STEP_DROPPED, "kfree_skb", "trawl_free"),
    pass(STEP_CONSUMED, "consume_skb", "trawl_consume"),
    pass(STEP_READ, "skb_copy_datagram_iovec", "trawl_pass"),
    pass(STEP_SOCKET, "sk_data_ready", "trawl_ready"),
    pass(STEP_SOCKET, "tcp_probe", "trawl_segment"),
    pass(STEP_TRANSMITTED, "net_dev_start_xmit", "trawl_pass"),
    pass(STEP_QDISC_OUT, "qdisc_dequeue", "trawl_pass_fourth"),
    pass(STEP_QDISC_IN, "qdisc_enqueue", "trawl_pass_third"),
    entry(STEP_QUEUED, "net_dev_queue"),
    entry(STEP_RECEIVED, "netif_receive_skb"),
    entry(STEP_BACKLOG, "netif_rx"),
    entry(STEP_GRO, "napi_gro_receive_entry"),
    entry(STEP_GRO, "napi_gro_frags_entry"),
];

/// Netfilter's families and hooks: NFPROTO_…, NF_INET_….
const FAMILIES: [u32; 2] = [2, 10];
const HOOKS: [u32; 5] = [0, 1, 2, 3, 4];
/// The priorities on both ends, the outermost first. The very first and the very last are not for programs. A program
/// gets no priority that anything else has, as connection tracking has the last but one at the input of IPv6.
const FIRST: Priorities = Priorities {
    outermost: i32::MIN + 1,
    inwards: 1,
};
const LAST: Priorities = Priorities {
    outermost: i32::MAX - 1,
    inwards: -1,
};
const PRIORITIES: i32 = 16;

#[derive(Clone, Copy)]
struct Priorities {
    outermost: i32,
    inwards: i32,
}

const fn pass(number: usize, tracepoint: &'static str, program: &'static str) -> Step {
    Step {
        number,
        tracepoint,
        program,
        is_entry: false,
    }
}

const fn entry(number: usize, tracepoint: &'static str) -> Step {
    Step {
        number,
        tracepoint,
        program: "trawl_enter",
        is_entry: true,
    }
}

pub fn attach(
    along: &Along,
    config: &TapConfig,
    maps: &[(&str, BorrowedFd<'_>)],
    block: Option<&[Insn]>,
    assembly: &mut Assembly,
) -> Result<Vec<Loaded>> {
    let at = |number: usize| TapConfig {
        step: number as u32,
        ..*config
    };
    let left_out = [
        (along.namespaces_left_out, Steps::Namespaces),
        (along.interfaces_left_out, Steps::Interfaces),
    ];
    for (count, of) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        let count = count as u64;
        assembly.notice(Notice::StepsLeftOut { of, count });
    }
    let mut attached = Vec::new();
    for step in &STEPS {
        let there = kernel_types::tracepoint(step.tracepoint)
            .map_err(|e| Error::os("cannot read the kernel's type information", e))?;
        if there.is_none() {
            assembly.notice(Notice::NoTracepoint {
                name: step.tracepoint.to_owned(),
            });
            continue;
        }
        let place = Tracepoint::at(object::FOLLOW, step.tracepoint, true).program(step.program);
        let block = block.filter(|_| step.is_entry);
        attached.push(load::load(&place, &at(step.number), maps, block)?);
    }
    for attach in [netfilter, traffic_control] {
        if let Err(error) = attach(along, &at, maps, block, &mut attached) {
            assembly.notice(Notice::NoSteps {
                why: error.to_string(),
            });
        }
    }
    Ok(attached)
}

/// Programs at both ends of each hook, in each namespace.
fn netfilter(
    along: &Along,
    at: &dyn Fn(usize) -> TapConfig,
    maps: &[(&str, BorrowedFd<'_>)],
    block: Option<&[Insn]>,
    attached: &mut Vec<Loaded>,
) -> Result<()> {
    // Packets that are local begin at the first end of a hook, and the last ends are in place by then.
    for (number, priorities) in [(STEP_NETFILTER_LAST, LAST), (STEP_NETFILTER_FIRST, FIRST)] {
        let block = block.filter(|_| number == STEP_NETFILTER_FIRST);
        let (ready, name) =
            load::prepare(object::FOLLOW, "trawl_netfilter", &at(number), maps, block)?;
        let options = load::options(&name, program::NETFILTER, program::ATTACH_NETFILTER);
        let loaded = ready.load(&options)?;
        let mut links = Vec::new();
        for namespace in &along.namespaces {
            let made = run_in(namespace, || -> std::io::Result<Vec<_>> {
                let mut links = Vec::new();
                for family in FAMILIES {
                    for hook in HOOKS {
                        links.push(outermost(&loaded, family, hook, priorities)?);
                    }
                }
                Ok(links)
            })?;
            let made = made.map_err(|e| {
                let place = namespace.label();
                Error::os(format!("no steps at netfilter's hooks of {place}"), e)
            })?;
            links.extend(made);
        }
        attached.push((loaded, links));
    }
    Ok(())
}

/// At the outermost priority that is free.
fn outermost(
    program: &OwnedFd,
    family: u32,
    hook: u32,
    priorities: Priorities,
) -> std::io::Result<OwnedFd> {
    let mut attempts = (0..PRIORITIES).map(|step| {
        let priority = priorities.outermost + step * priorities.inwards;
        link::attach_netfilter(program.as_fd(), family, hook, priority)
    });
    let is_decided = |result: &std::io::Result<OwnedFd>| !matches!(result, Err(error) if error.raw_os_error() == Some(errno::EBUSY));
    attempts
        .find(is_decided)
        .unwrap_or_else(|| Err(std::io::Error::from_raw_os_error(errno::EBUSY)))
}

/// A program before all others on both sides of each interface.
fn traffic_control(
    along: &Along,
    at: &dyn Fn(usize) -> TapConfig,
    maps: &[(&str, BorrowedFd<'_>)],
    _block: Option<&[Insn]>,
    attached: &mut Vec<Loaded>,
) -> Result<()> {
    for (number, side) in [
        (STEP_TC_EGRESS, program::ATTACH_TCX_EGRESS),
        (STEP_TC_INGRESS, program::ATTACH_TCX_INGRESS),
    ] {
        let (ready, name) =
            load::prepare(object::FOLLOW, "trawl_traffic", &at(number), maps, None)?;
        let loaded = ready.load(&load::options(&name, program::SCHED_CLS, side))?;
        let mut links = Vec::new();
        for site in &along.interfaces {
            let link = run_maybe_in(site.namespace.as_ref(), || {
                link::attach_tcx(loaded.as_fd(), site.interface.index, side, TcxPlace::First)
            })?;
            match link {
                Ok(link) => links.push(link),
                // It is gone by now.
                Err(error) if error.raw_os_error() == Some(errno::ENODEV) => {}
                Err(error) => {
                    let what = format!("no steps at tc on {}", site.label);
                    return Err(Error::os(what, error));
                }
            }
        }
        attached.push((loaded, links));
    }
    Ok(())
}
