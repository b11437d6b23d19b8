//! Hook points of followed packets: tracepoints of the network stack, netfilter's hooks, and tc.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_bpf::layout::TapConfig;
use trawl_bpf::layout::drop::{
    FOLLOW_HOOKS, STEP_BACKLOG, STEP_CONSUMED, STEP_DROPPED, STEP_GRO, STEP_IPSEC, STEP_NETFILTER_FIRST,
    STEP_NETFILTER_LAST, STEP_QDISC_IN, STEP_QDISC_OUT, STEP_QUEUED, STEP_READ, STEP_RECEIVED, STEP_SOCKET,
    STEP_TC_EGRESS, STEP_TC_INGRESS, STEP_TRANSMITTED,
};
use trawl_bpf::link::{self, TcxPosition};
use trawl_bpf::program::{self, LoadOptions, Traced};
use trawl_bpf::{kernel_types, map, object, probe};
use trawl_ebpf::Insn;
use trawl_sys::netlink::Netlink;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netns::{self, Namespace, NamespaceSearch, run_in, run_maybe_in};
use trawl_sys::{Error, Result, errno};

use super::programs::{Loaded, prepare_program, program_options};
use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{self, Event};
use trawl_plan::options::Drops;

/// Returns true if netfilter runs programs of its own at each hook, whether or not rules use it.
pub fn has_programs_at_hooks() -> bool {
    probe::kernel_is_at_least(6, 4)
}

/// Limits: each namespace costs twenty netfilter links, and each interface two tc links.
const MOST_NAMESPACES: usize = 64;
const MOST_INTERFACES: usize = 512;

/// Hook points at which packets are followed.
#[derive(Clone, Debug, Default)]
pub struct FollowPoints {
    /// Interfaces of entry: only packets first seen there are followed, if any are given.
    pub entries: Vec<CaptureSite>,
    /// Namespaces with netfilter hooks; `interfaces` have tc hooks.
    pub namespaces: Vec<Namespace>,
    pub interfaces: Vec<CaptureSite>,
    /// Number of namespaces beyond the limit.
    pub namespaces_left_out: usize,
    pub interfaces_left_out: usize,
}

impl FollowPoints {
    /// Finds all namespaces, or the named ones.
    pub fn find(asked: &Drops) -> Result<Self> {
        // An interface without a namespace in its name belongs to the one namespace, if exactly one is named.
        let namespace = match &asked.namespaces[..] {
            [one] if one != netns::CURRENT => Some(one.as_str()),
            _ => None,
        };
        let entry = |text: &String| CaptureSite::find(text, namespace);
        let entries = asked.entries.iter().map(entry).collect::<Result<_>>()?;
        let mut namespaces = Vec::new();
        if asked.within.is_empty() {
            NamespaceSearch::default().find(|one| {
                namespaces.push(one.clone());
                false
            });
        } else {
            for name in &asked.within {
                namespaces.push(Namespace::open(name)?);
            }
        }
        let namespaces_left_out = namespaces.len().saturating_sub(MOST_NAMESPACES);
        namespaces.truncate(MOST_NAMESPACES);
        let mut interfaces: Vec<CaptureSite> = namespaces.iter().flat_map(interfaces_of).collect();
        let interfaces_left_out = interfaces.len().saturating_sub(MOST_INTERFACES);
        interfaces.truncate(MOST_INTERFACES);
        Ok(Self { entries, namespaces, interfaces, namespaces_left_out, interfaces_left_out })
    }

    /// Returns the interfaces that have an XDP program.
    pub fn with_programs(&self) -> Vec<CaptureSite> {
        if !object::can_cast() {
            return Vec::new();
        }
        let has_program = |site: &&CaptureSite| {
            let found = site.interface.xdp_attached(site.namespace.as_ref());
            matches!(found, Ok(Some(_)))
        };
        let found = self.interfaces.iter().filter(has_program);
        found.cloned().collect()
    }
}

/// Returns the interfaces of a namespace; none if it was deleted meanwhile.
fn interfaces_of(namespace: &Namespace) -> Vec<CaptureSite> {
    let links = Netlink::open(Some(namespace)).and_then(|mut netlink| netlink.links());
    let site = |name: String| {
        let interface = Interface::find(Some(namespace), &name).ok()?;
        Some(CaptureSite {
            label: match namespace.name() {
                Some(one) => format!("{one}:{name}"),
                None => name,
            },
            namespace: Some(namespace.clone()),
            interface,
            one_of_any: true,
            pod: None,
            lent: None,
        })
    };
    let names = links.unwrap_or_default().into_iter().map(|link| link.name);
    names.filter_map(site).collect()
}

/// A tracepoint that packets pass.
struct Step {
    number: usize,
    tracepoint: &'static str,
    program: &'static str,
}

/// All steps, in reverse order of a packet's path: when the first step of a path is attached, all later ones already are.
const STEPS: [Step; 14] = [
    step(STEP_DROPPED, "kfree_skb", "trawl_free"),
    step(STEP_CONSUMED, "consume_skb", "trawl_consume"),
    step(STEP_READ, "skb_copy_datagram_iovec", "trawl_pass"),
    step(STEP_SOCKET, "sk_data_ready", "trawl_ready"),
    step(STEP_SOCKET, "inet_sock_set_state", "trawl_ready"),
    step(STEP_SOCKET, "tcp_probe", "trawl_segment"),
    step(STEP_TRANSMITTED, "net_dev_start_xmit", "trawl_pass"),
    step(STEP_QDISC_OUT, "qdisc_dequeue", "trawl_pass_fourth"),
    step(STEP_QDISC_IN, "qdisc_enqueue", "trawl_pass_third"),
    step(STEP_QUEUED, "net_dev_queue", "trawl_enter"),
    step(STEP_RECEIVED, "netif_receive_skb", "trawl_enter"),
    step(STEP_BACKLOG, "netif_rx", "trawl_enter"),
    step(STEP_GRO, "napi_gro_receive_entry", "trawl_enter"),
    step(STEP_GRO, "napi_gro_frags_entry", "trawl_enter"),
];

/// Numbers of the hooks at functions. The tracepoints come before; netfilter's function has two, its call and its return.
const AT_IPSEC: usize = STEPS.len();
const AT_NETFILTER: usize = AT_IPSEC + 1;
// The programs ignore a hook without a place in their scratch memory.
const _: () = assert!(AT_NETFILTER + 2 <= FOLLOW_HOOKS);

/// The program that the steps at tracepoints share.
const AT_TRACEPOINTS: &str = "trawl_steps";
/// Programs of steps at which packets may be seen first. They choose packets by their process.
const FIRST_SEEN: [&str; 4] = ["trawl_enter", "trawl_hook", ENCRYPT, CALL];
/// The program at the function through which IPsec sends packets, and the kernel's name of that function.
const ENCRYPT: &str = "trawl_encrypt";
const ENCRYPTS: &str = "xfrm_output";
/// The programs at the call and the return of the function that runs a hook of netfilter, and the kernel's name of
/// that function.
const CALL: &str = "trawl_call";
const RETURN: &str = "trawl_return";
const RUNS_HOOK: &str = "nf_hook_slow";

/// Netfilter's families and hooks: NFPROTO_…, NF_INET_….
const FAMILIES: [u32; 2] = [2, 10];
const HOOKS: [u32; 5] = [0, 1, 2, 3, 4];
/// The outermost priorities at both ends. Programs may not use the very first and the very last, nor a priority already
/// in use: connection tracking has the last but one at the input of IPv6.
const FIRST: Priorities = Priorities { outermost: i32::MIN + 1, inwards: 1 };
const LAST: Priorities = Priorities { outermost: i32::MAX - 1, inwards: -1 };
const PRIORITIES: i32 = 16;

#[derive(Clone, Copy, Debug)]
struct Priorities {
    outermost: i32,
    inwards: i32,
}

const fn step(number: usize, tracepoint: &'static str, program: &'static str) -> Step {
    Step { number, tracepoint, program }
}

pub fn attach(
    follow_points: &FollowPoints,
    config: &TapConfig,
    maps: &[(&str, BorrowedFd<'_>)],
    block: Option<&[Insn]>,
    assembly: &mut Assembly,
) -> Result<(Vec<Loaded>, Hooks)> {
    let steps = Steps { config, maps, block };
    let left_out = [
        (follow_points.namespaces_left_out, event::Steps::Namespaces),
        (follow_points.interfaces_left_out, event::Steps::Interfaces),
    ];
    for (count, of) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        let count = count as u64;
        assembly.event(Event::StepsLeftOut { of, count });
    }
    let at_tracepoints = program_options(AT_TRACEPOINTS, program::RAW_TRACEPOINT, 0);
    let at_tracepoints = steps.shared(&at_tracepoints)?;
    let mut attached = Vec::new();
    for (index, step) in STEPS.iter().enumerate() {
        let signature = kernel_types::tracepoint(step.tracepoint)
            .map_err(|e| Error::os("cannot read the kernel's type information", e))?;
        if signature.is_none() {
            assembly.event(Event::NoTracepoint { name: step.tracepoint.to_owned() });
            continue;
        }
        let options = program_options(step.program, program::RAW_TRACEPOINT, 0);
        let [first, second] = steps.pair(step.number, index, &options, &at_tracepoints)?;
        let attach = |program: &OwnedFd| {
            let link = link::attach_raw_tracepoint(program.as_fd(), step.tracepoint);
            link.map_err(|e| Error::os("cannot follow packets", e))
        };
        // A tracepoint runs its programs in the order in which they were attached.
        let links = vec![attach(&first)?, attach(&second)?, first];
        attached.push((second, links));
    }
    keep(at_tracepoints, &mut attached);
    let known = follow_points.namespaces.iter().map(|one| one.identity().1);
    let mut hooks = Hooks { namespaces: known.collect(), ..Hooks::default() };
    let mut report = |error: &Error| {
        assembly.event(Event::NoSteps { why: error.to_string() });
    };
    let runs_programs = has_programs_at_hooks();
    let at_all_hooks =
        runs_programs && netfilter(follow_points, &steps, &mut attached, &mut hooks).inspect_err(&mut report).is_ok();
    if !at_all_hooks {
        // Without netfilter's hooks, only this step shows packets before IPsec encrypts them.
        let _ = ipsec(&steps, &mut attached).inspect_err(&mut report);
    }
    if !runs_programs {
        let _ = netfilter_function(&steps, &mut attached).inspect_err(&mut report);
    }
    let _ = traffic_control(follow_points, &steps, &mut attached, &mut hooks).inspect_err(&mut report);
    Ok((attached, hooks))
}

/// Keeps a map open as long as the links of the last program.
fn keep(map: OwnedFd, attached: &mut [Loaded]) {
    if let Some((_, links)) = attached.last_mut() {
        links.push(map);
    }
}

/// Loader of the programs of the steps.
struct Steps<'a> {
    config: &'a TapConfig,
    maps: &'a [(&'a str, BorrowedFd<'a>)],
    block: Option<&'a [Insn]>,
}

impl Steps<'_> {
    /// Loads the program that the steps of one kind share, with the filter in it. Returns the map that holds it, which
    /// the kernel empties when the descriptor is closed.
    fn shared(&self, options: &LoadOptions<'_>) -> Result<OwnedFd> {
        // The field distinguishes programs that follow packets from programs at drops.
        let config = TapConfig { step: 1, ..*self.config };
        let map = map::create_prog_array("trawl_shared", 1)?;
        let mut maps = self.maps_for_known();
        maps.push(("shared_program", map.as_fd()));
        let (ready, name) = prepare_program(object::TAP_FOLLOW, options.name, &config, &maps, self.block)?;
        let loaded = ready.load(&LoadOptions { name: &name, ..options.clone() })?;
        map::set_program(map.as_fd(), 0, loaded.as_fd()).map_err(|e| Error::os("cannot follow packets", e))?;
        Ok(map)
    }

    /// Returns the maps of programs that do not choose packets by their process.
    fn maps_for_known(&self) -> Vec<(&str, BorrowedFd<'_>)> {
        let maps = self.maps.iter().copied();
        maps.filter(|(name, _)| *name != object::OWNERS_MAP).collect()
    }

    /// Loads the two programs of a step at a hook where the kernel does not run a program that it has interrupted.
    fn pair(&self, step: usize, hook: usize, options: &LoadOptions<'_>, shared: &OwnedFd) -> Result<[OwnedFd; 2]> {
        let config = TapConfig { step: step as u32, hook: hook as u32 + 1, ..*self.config };
        let second = TapConfig { is_second: 1, ..config };
        Ok([self.load_with(&config, options, shared)?, self.load_with(&second, options, shared)?])
    }

    /// Loads and attaches the two programs of a step at the call or the return of one of the kernel's functions.
    fn pair_at_function(&self, what: &str, step: usize, hook: usize, options: &LoadOptions<'_>) -> Result<Loaded> {
        // A program may only call programs with the same attach type.
        let shared = self.shared(&LoadOptions { name: AT_TRACEPOINTS, ..options.clone() })?;
        let [first, second] = self.pair(step, hook, options, &shared)?;
        let attach = |program: &OwnedFd| link::attach_tracing(program.as_fd()).map_err(|e| Error::os(what, e));
        // A function runs the program first that was attached last.
        let links = vec![attach(&second)?, attach(&first)?, first, shared];
        Ok((second, links))
    }

    /// Loads the program of one step.
    fn load(&self, step: usize, options: &LoadOptions<'_>, shared: &OwnedFd) -> Result<OwnedFd> {
        self.load_with(&TapConfig { step: step as u32, ..*self.config }, options, shared)
    }

    fn load_with(&self, config: &TapConfig, options: &LoadOptions<'_>, shared: &OwnedFd) -> Result<OwnedFd> {
        let mut maps = if FIRST_SEEN.contains(&options.name) { self.maps.to_vec() } else { self.maps_for_known() };
        maps.push(("shared_program", shared.as_fd()));
        let (ready, _) = prepare_program(object::TAP_FOLLOW, options.name, config, &maps, None)?;
        ready.load(options)
    }
}

/// Attaches a program where IPsec is about to encrypt a packet, if the kernel has IPsec.
fn ipsec(steps: &Steps<'_>, attached: &mut Vec<Loaded>) -> Result<()> {
    let Ok(function) = probe::kernel_function(ENCRYPTS) else {
        return Ok(());
    };
    let options = LoadOptions {
        traced: Some(Traced { program: None, function }),
        ..program_options(ENCRYPT, program::TRACING, program::ATTACH_FENTRY)
    };
    attached.push(steps.pair_at_function("no step where IPsec encrypts packets", STEP_IPSEC, AT_IPSEC, &options)?);
    Ok(())
}

/// Programs at the hooks of single namespaces, in the order in which they are attached: local packets begin at the
/// first end of a hook, and the last ends are attached by then. So are tc's sides: egress comes before ingress.
#[derive(Debug, Default)]
pub struct Hooks {
    netfilter: Vec<(OwnedFd, Priorities)>,
    traffic_control: Vec<(OwnedFd, u32)>,
    /// Inodes of the namespaces with hooks.
    namespaces: Vec<u64>,
}

impl Hooks {
    /// Attaches the programs in a further namespace.
    pub fn enter(&mut self, namespace: &Namespace, links: &mut Vec<OwnedFd>) -> Result<()> {
        let number = namespace.identity().1;
        if self.namespaces.contains(&number) || self.namespaces.len() >= MOST_NAMESPACES {
            return Ok(());
        }
        self.namespaces.push(number);
        for (program, priorities) in &self.netfilter {
            links.extend(netfilter_links(program, namespace, *priorities)?);
        }
        for site in interfaces_of(namespace) {
            for (program, side) in &self.traffic_control {
                links.extend(tc_link(program, &site, *side)?);
            }
        }
        Ok(())
    }
}

/// Attaches programs at the function that runs netfilter's hooks, for kernels whose netfilter runs no programs. The
/// kernel calls it only in namespaces that use the hook.
fn netfilter_function(steps: &Steps<'_>, attached: &mut Vec<Loaded>) -> Result<()> {
    let what = "no steps at netfilter's hooks";
    let function = probe::kernel_function(RUNS_HOOK).map_err(|e| Error::os(what, e))?;
    let sides =
        [(STEP_NETFILTER_LAST, RETURN, program::ATTACH_FEXIT), (STEP_NETFILTER_FIRST, CALL, program::ATTACH_FENTRY)];
    for (index, (step, name, kind)) in sides.into_iter().enumerate() {
        let options = LoadOptions {
            traced: Some(Traced { program: None, function }),
            ..program_options(name, program::TRACING, kind)
        };
        attached.push(steps.pair_at_function(what, step, AT_NETFILTER + index, &options)?);
    }
    Ok(())
}

/// Attaches programs at both ends of each hook, in each namespace.
fn netfilter(
    follow_points: &FollowPoints,
    steps: &Steps<'_>,
    attached: &mut Vec<Loaded>,
    hooks: &mut Hooks,
) -> Result<()> {
    let of_netfilter = |name| program_options(name, program::NETFILTER, program::ATTACH_NETFILTER);
    let shared = steps.shared(&of_netfilter("trawl_hooks"))?;
    for (number, priorities) in [(STEP_NETFILTER_LAST, LAST), (STEP_NETFILTER_FIRST, FIRST)] {
        let loaded = steps.load(number, &of_netfilter("trawl_hook"), &shared)?;
        let mut links = Vec::new();
        for namespace in &follow_points.namespaces {
            links.extend(netfilter_links(&loaded, namespace, priorities)?);
        }
        hooks.netfilter.push((duplicate(&loaded)?, priorities));
        attached.push((loaded, links));
    }
    keep(shared, attached);
    Ok(())
}

fn duplicate(program: &OwnedFd) -> Result<OwnedFd> {
    let copy = program.try_clone();
    copy.map_err(|e| Error::os("cannot follow packets", e))
}

/// Attaches a program to all hooks of a namespace.
fn netfilter_links(program: &OwnedFd, namespace: &Namespace, priorities: Priorities) -> Result<Vec<OwnedFd>> {
    let made = run_in(namespace, || -> std::io::Result<Vec<_>> {
        let mut links = Vec::new();
        for family in FAMILIES {
            for hook in HOOKS {
                links.push(outermost(program, family, hook, priorities)?);
            }
        }
        Ok(links)
    })?;
    made.map_err(|e| {
        let label = namespace.label();
        Error::os(format!("no steps at netfilter's hooks of {label}"), e)
    })
}

/// Attaches a program at the outermost free priority.
fn outermost(program: &OwnedFd, family: u32, hook: u32, priorities: Priorities) -> std::io::Result<OwnedFd> {
    let mut attempts = (0..PRIORITIES).map(|step| {
        let priority = priorities.outermost + step * priorities.inwards;
        link::attach_netfilter(program.as_fd(), family, hook, priority)
    });
    let is_decided =
        |result: &std::io::Result<OwnedFd>| !matches!(result, Err(error) if error.raw_os_error() == Some(errno::EBUSY));
    attempts.find(is_decided).unwrap_or_else(|| Err(std::io::Error::from_raw_os_error(errno::EBUSY)))
}

/// Attaches a program in front of all others on both sides of each interface.
fn traffic_control(
    follow_points: &FollowPoints,
    steps: &Steps<'_>,
    attached: &mut Vec<Loaded>,
    hooks: &mut Hooks,
) -> Result<()> {
    if !probe::kernel_is_at_least(6, 6) {
        let why = format!("programs at tcx need Linux 6.6, and this kernel is {}", trawl_sys::host::kernel_release());
        return Err(Error::failed("no steps at tc", why));
    }
    // No packet is first seen here.
    let unfiltered = Steps { block: None, ..*steps };
    let shared = unfiltered.shared(&program_options("trawl_traffics", program::SCHED_CLS, 0))?;
    for (number, side) in [(STEP_TC_EGRESS, program::ATTACH_TCX_EGRESS), (STEP_TC_INGRESS, program::ATTACH_TCX_INGRESS)]
    {
        // A program may only call programs with the same attach type.
        let options = program_options("trawl_traffic", program::SCHED_CLS, 0);
        let loaded = steps.load(number, &options, &shared)?;
        let mut links = Vec::new();
        for site in &follow_points.interfaces {
            links.extend(tc_link(&loaded, site, side)?);
        }
        hooks.traffic_control.push((duplicate(&loaded)?, side));
        attached.push((loaded, links));
    }
    keep(shared, attached);
    Ok(())
}

/// Attaches a program to one side of an interface; `None` if it was removed meanwhile.
fn tc_link(program: &OwnedFd, site: &CaptureSite, side: u32) -> Result<Option<OwnedFd>> {
    let link = run_maybe_in(site.namespace.as_ref(), || {
        link::attach_tcx(program.as_fd(), site.interface.index, side, TcxPosition::First)
    })?;
    match link {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.raw_os_error() == Some(errno::ENODEV) => Ok(None),
        Err(error) => Err(Error::os(format!("no steps at tc on {}", site.label), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_bpf::layout::Shared;
    use trawl_bpf::object::{TapProgram, Taps};
    use trawl_ebpf::{helper, op};

    /// Returns true if the program calls a helper.
    fn calls(name: &str, helper: i32) -> bool {
        let ready = TapProgram::prepare(Taps::reading_kernel(object::TAP_FOLLOW), name, &TapConfig::zeroed(), &[]);
        let ready = ready.unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut calls = ready.instructions().iter();
        calls.any(|one| one.code == op::CALL_CODE && one.src() == 0 && one.imm == helper)
    }

    fn is_root() -> bool {
        let is_root = probe::has_capability(probe::Capability::SysAdmin);
        if !is_root {
            eprintln!("SKIPPED: requires root");
        }
        is_root
    }

    /// Many kernels refuse this helper at netfilter and at tc.
    #[test]
    fn hooks_do_not_ask_for_the_process() {
        const GET_CURRENT_COMM: i32 = 16;
        if !is_root() {
            return;
        }
        for (name, expected) in [
            ("trawl_steps_f", true),
            ("trawl_hooks_f", false),
            ("trawl_hook", false),
            ("trawl_traffics", false),
            ("trawl_traffic", false),
        ] {
            assert_eq!(calls(name, GET_CURRENT_COMM), expected, "{name}");
        }
    }

    /// The kernel gives a program without tail calls a stack for each CPU, which a nested step would overwrite.
    #[test]
    fn programs_that_several_tracepoints_share_have_no_stack_of_their_own() {
        if !is_root() {
            return;
        }
        for name in [AT_TRACEPOINTS, "trawl_steps_f"] {
            assert!(calls(name, helper::TAIL_CALL), "{name}");
        }
    }
}
