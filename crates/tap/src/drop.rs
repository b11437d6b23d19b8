//! The `drop` tap: every socket buffer that the kernel frees because its packet was dropped, on all interfaces or some,
//! by a program at the tracepoint skb:kfree_skb. It looks at no single interface, so it is attached once for a capture.

mod names;
pub mod reasons;
mod words;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use trawl_kernel::bpf::addresses::kernel_addresses;
use trawl_kernel::bpf::kernel_types::{self, Tracepoint};
use trawl_kernel::bpf::object::{self, TapProgram};
use trawl_kernel::bpf::program::{self, LoadOptions, Traced};
use trawl_kernel::bpf::{info, link, map};
use trawl_kernel::kallsyms::Symbols;
use trawl_kernel::layout::drop::{
    DROP_FUNCTIONS, DROP_PLACES, DROP_REASON_WORDS, DROP_SCRATCH_SIZE, DropFunction, DropPlace,
    DropSettings, DropState, FOLLOWED_MAX, FollowedPacket,
};
use trawl_kernel::layout::{Shared, TRACE_COPY, TapConfig};
use trawl_kernel::netns::Namespace;
use trawl_kernel::{Error, Result, events, probe};

use crate::assembly::{Assembly, Carries, program_maps};
use crate::options::Drops;
use crate::site::Site;
use crate::{Attached, Choice, table};
use reasons::Reasons;
pub use words::{HOOK, Words};

const TRACEPOINT: &str = "kfree_skb";
/// Buffer, place and reason: since 5.17. The socket that was to receive the packet is the fourth, since 6.11.
const ARGUMENTS_WITH_REASON: usize = 3;
const ARGUMENTS_WITH_RECEIVER: usize = 4;
/// The functions that run XDP programs on socket buffers, and free what is dropped there.
const RUN_XDP: [&str; 2] = ["veth_xdp_rcv_skb", "do_xdp_generic"];
/// The functions that throw away what waits in the queues of a closing socket. Before 6.5 they give no reason.
const PURGE: [&str; 4] = [
    "sk_stream_kill_queues",
    "skb_queue_purge",
    "skb_queue_purge_reason",
    "inet_sock_destruct",
];
const EVERYWHERE: &str = "all interfaces";

/// Attaches the tap. With sites it looks only at what is dropped there; `at_xdp` are the sites where another tap sees
/// what XDP programs drop.
pub fn attach(
    sites: &[Site],
    at_xdp: &[&Site],
    asked: &Drops,
    assembly: &mut Assembly<'_>,
) -> Result<(Box<dyn Attached>, u32, Words)> {
    match assembly.options.tap {
        Choice::Drop => table::DROP.check(assembly.options)?,
        // The rest is asked of the tap beside it.
        _ => table::DROP.check_queue(assembly.options)?,
    }
    let namespace = asked.namespace.as_deref().map(Namespace::open);
    let namespace = namespace.transpose()?;
    let reasons = Reasons::of_kernel()?;
    let tracepoint = tracepoint(&reasons)?;
    let symbols = Symbols::read();
    let settings = settings(sites, at_xdp, asked, namespace.as_ref(), &reasons, &symbols)?;
    let rings = assembly.rings_apart()?;
    let label = match (sites, &namespace) {
        ([], None) => EVERYWHERE.to_owned(),
        ([], Some(namespace)) => format!("{EVERYWHERE} of {}", namespace.label()),
        (sites, _) => {
            let labels: Vec<&str> = sites.iter().map(|site| site.label.as_str()).collect();
            labels.join(", ")
        }
    };
    let ids = assembly.add_point_apart(label, format!("unknown ({HOOK})"), &rings, HOOK, HOOK)?;
    let mut config = assembly.config(&rings);
    config.first = ids.record(0, Carries::Nothing);
    config.write_queue = 0;
    config.names_receiver = u32::from(tracepoint.arguments >= ARGUMENTS_WITH_RECEIVER);
    config.with_stack = u32::from(asked.stack);
    if let Some(found) = kernel_addresses() {
        let halves = |address: u64| (address as u32, (address >> 32) as u32);
        (config.first_address_low, config.first_address_high) = halves(found.first_address);
        (config.first_page_low, config.first_page_high) = halves(found.first_page);
    }
    let scratch = map::create_mmapable_array(
        "trawl_scratch",
        DROP_SCRATCH_SIZE as u32,
        events::cpu_count() as u32,
    )?;
    let told = map::create_mmapable_array("trawl_drop", size_of::<DropSettings>() as u32, 1)?;
    map::write(told.as_fd(), 0, &settings)
        .map_err(|e| Error::os("cannot tell the program what to record", e))?;
    let block = match &assembly.options.filter {
        Some(filter) => Some(filter.copy_block(config.snaplen, TRACE_COPY as u16)?),
        None => None,
    };
    let mut maps = program_maps(&rings, None);
    maps.push(("drop_scratch", scratch.as_fd()));
    maps.push(("drop_settings", told.as_fd()));
    let followed = asked
        .follow
        .then(|| {
            let (key, value) = (size_of::<u64>(), size_of::<FollowedPacket>());
            let entries = FOLLOWED_MAX as u32;
            map::create_forgetful_table("trawl_followed", key as u32, value as u32, entries)
        })
        .transpose()?;
    if let Some(followed) = &followed {
        maps.push(("followed", followed.as_fd()));
    }
    let load = |place: &Place, typed: bool| load(place, typed, &config, &maps, block.as_deref());
    let (mode, attached) = match (asked.follow, probe::is_unwanted("tp_btf")) {
        (true, _) => {
            // The ends come first: what is seen at a beginning finds everything else in place.
            let all = STEPS.iter().map(|place| load(place, true));
            ("tp_btf", all.collect::<Result<Vec<_>>>()?)
        }
        (false, true) => ("raw_tp", vec![load(&DROPS, false)?]),
        (false, false) => match load(&DROPS, true) {
            Ok(attached) => ("tp_btf", vec![attached]),
            Err(error) => ("raw_tp", vec![load(&DROPS, false).map_err(|_| error)?]),
        },
    };
    let (programs, links) = attached.into_iter().unzip();
    assembly.set_mode(ids.point, mode);
    let attached = AttachedDrop {
        point: ids.point,
        programs,
        links,
        scratch,
    };
    Ok((
        Box::new(attached),
        ids.interface,
        Words::new(reasons, symbols),
    ))
}

/// A tracepoint, and the program for it; those with a filter have a name of their own.
struct Place {
    tracepoint: &'static str,
    program: &'static str,
    raw: &'static str,
    filters: bool,
}

const DROPS: Place = Place {
    tracepoint: TRACEPOINT,
    program: "trawl_drop",
    raw: "trawl_drop_raw",
    filters: true,
};

/// What a packet comes to on its way, the last first.
const STEPS: [Place; 5] = [
    step(TRACEPOINT, "trawl_free", false),
    step("consume_skb", "trawl_consume", false),
    step("net_dev_start_xmit", "trawl_transmit", false),
    step("net_dev_queue", "trawl_queue", true),
    step("netif_receive_skb", "trawl_receive", true),
];

const fn step(tracepoint: &'static str, program: &'static str, filters: bool) -> Place {
    Place {
        tracepoint,
        program,
        raw: "",
        filters,
    }
}

/// Loads the program for a tracepoint and attaches it.
fn load(
    place: &Place,
    typed: bool,
    config: &TapConfig,
    maps: &[(&str, BorrowedFd<'_>)],
    block: Option<&[u64]>,
) -> Result<(OwnedFd, OwnedFd)> {
    let block = block.filter(|_| place.filters);
    let base = if typed { place.program } else { place.raw };
    let name = match block {
        Some(_) => format!("{base}_f"),
        None => base.to_owned(),
    };
    let mut ready = TapProgram::prepare(object::DROP, &name, config, maps)?;
    if let Some(block) = block {
        ready.filter(block)?;
    }
    let mut options = LoadOptions {
        name: &name,
        kind: program::RAW_TRACEPOINT,
        license: "GPL",
        expected_attach_type: 0,
        flags: 0,
        ifindex: 0,
        traced: None,
    };
    if typed {
        let found = kernel_types::tracepoint(place.tracepoint)
            .map_err(|e| Error::os("cannot read the kernel's type information", e))?;
        let found = found.ok_or_else(|| {
            let what = format!("cannot look at the tracepoint {}", place.tracepoint);
            Error::failed(what, "the kernel has none of that name")
        })?;
        options.kind = program::TRACING;
        options.expected_attach_type = program::ATTACH_TYPED_TRACEPOINT;
        options.traced = Some(Traced {
            program: None,
            function: found.type_id,
        });
    }
    let loaded = ready.load(&options)?;
    let link = match typed {
        true => link::attach_tracing(loaded.as_fd()),
        false => link::attach_raw_tracepoint(loaded.as_fd(), place.tracepoint),
    };
    let link = link.map_err(|e| {
        Error::os("cannot look at the packets that the kernel drops", e)
            .fix("run as root, or with CAP_BPF and CAP_PERFMON")
    })?;
    Ok((loaded, link))
}

fn tracepoint(reasons: &Reasons) -> Result<Tracepoint> {
    let what = "cannot look at the packets that the kernel drops";
    let found = kernel_types::tracepoint(TRACEPOINT)
        .map_err(|e| Error::os("cannot read the kernel's type information", e))?;
    found
        .filter(|found| found.arguments >= ARGUMENTS_WITH_REASON && !reasons.is_empty())
        .ok_or_else(|| {
            Error::failed(what, "it does not tell for what reason it drops them")
                .fix("use Linux 5.17 or newer")
        })
}

fn settings(
    sites: &[Site],
    at_xdp: &[&Site],
    asked: &Drops,
    namespace: Option<&Namespace>,
    reasons: &Reasons,
    symbols: &Symbols,
) -> Result<DropSettings> {
    let mut settings = DropSettings {
        wanted: [u64::MAX; DROP_REASON_WORDS],
        no_loss: reasons.no_losses(),
        no_loss_in_group: reasons.no_loss_in_group(),
        wanted_of_subsystems: 1,
        no_losses_too: u32::from(asked.no_losses || asked.reasons.is_some()),
        reason_xdp: reasons.xdp(),
        places: 0,
        xdp_places: 0,
        functions: 0,
        purges: 0,
        reason_none: reasons.none(),
        purge: [DropFunction { from: 0, to: 0 }; DROP_FUNCTIONS],
        only: [DropPlace {
            netns: 0,
            ifindex: 0,
        }; DROP_PLACES],
        xdp: [DropPlace {
            netns: 0,
            ifindex: 0,
        }; DROP_PLACES],
        runs_xdp: [DropFunction { from: 0, to: 0 }; DROP_FUNCTIONS],
    };
    if let Some(list) = &asked.reasons {
        let wanted = reasons.parse(list)?;
        settings.wanted = reasons::bits(&wanted);
        settings.wanted_of_subsystems =
            u32::from(wanted.iter().any(|one| reasons::is_of_subsystem(*one)));
    }
    let mut only = sites
        .iter()
        .map(|site| place(site.namespace.as_ref(), site.interface.index))
        .collect::<Result<Vec<_>>>()?;
    if only.is_empty()
        && let Some(namespace) = namespace
    {
        only.push(place(Some(namespace), 0)?);
    }
    let at_xdp = at_xdp
        .iter()
        .map(|site| place(site.namespace.as_ref(), site.interface.index))
        .collect::<Result<Vec<_>>>()?;
    settings.places = fill(&mut settings.only, &only)?;
    settings.xdp_places = fill(&mut settings.xdp, &at_xdp)?;
    settings.functions = find(&mut settings.runs_xdp, symbols, &RUN_XDP);
    settings.purges = find(&mut settings.purge, symbols, &PURGE);
    Ok(settings)
}

/// Where these functions are in the running kernel, and how many pieces there are of them.
fn find(functions: &mut [DropFunction], symbols: &Symbols, names: &[&str]) -> u32 {
    let found: Vec<(u64, u64)> = names
        .iter()
        .flat_map(|name| symbols.ranges(name))
        .take(functions.len())
        .collect();
    for (to, (from, end)) in functions.iter_mut().zip(&found) {
        *to = DropFunction {
            from: *from,
            to: *end,
        };
    }
    found.len() as u32
}

fn fill(places: &mut [DropPlace], found: &[DropPlace]) -> Result<u32> {
    let Some(room) = places.get_mut(..found.len()) else {
        let why = format!("{DROP_PLACES} is the limit");
        return Err(
            Error::failed("cannot look for drops at so many interfaces", why)
                .fix("leave out -i to look at all"),
        );
    };
    room.copy_from_slice(found);
    Ok(found.len() as u32)
}

fn place(namespace: Option<&Namespace>, ifindex: u32) -> Result<DropPlace> {
    let (_, inode) = match namespace {
        Some(namespace) => namespace.identity(),
        None => Namespace::current()?.identity(),
    };
    Ok(DropPlace {
        netns: inode as u32,
        ifindex,
    })
}

#[derive(Debug)]
struct AttachedDrop {
    point: u32,
    programs: Vec<OwnedFd>,
    links: Vec<OwnedFd>,
    scratch: OwnedFd,
}

impl Attached for AttachedDrop {
    fn detach(&mut self) -> Vec<String> {
        self.links.clear();
        Vec::new()
    }

    /// Buffers that were freed while the program was at work on that CPU: the kernel does not run it once more, or it
    /// ends at once.
    fn losses(&mut self) -> Vec<(u32, &'static str, u64)> {
        let missed = |program: &OwnedFd| {
            info::program(program.as_fd()).map_or(0, |about| about.recursion_misses)
        };
        let missed: u64 = self.programs.iter().map(missed).sum();
        let interrupted: u64 = (0..events::cpu_count() as u32)
            .filter_map(|cpu| {
                let bytes = map::read(self.scratch.as_fd(), cpu).ok()?;
                Some(DropState::from_bytes(&bytes)?.interrupted)
            })
            .sum();
        match missed + interrupted {
            0 => Vec::new(),
            count => vec![(self.point, "interrupted", count)],
        }
    }
}
