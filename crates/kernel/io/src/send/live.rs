//! Live XDP frames: BPF_PROG_TEST_RUN sends the frames for which a program returns XDP_TX.
//!
//! The program runs as if the frame had been received on the interface, so XDP_TX sends it out of that interface. A
//! veth accepts such frames only if its peer has native XDP or GRO.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, ObjectBuilder, OpenMapMut};
use rustix::thread::{CpuSet, sched_getaffinity};
use trawl_bpf::layout::send::{SendPlan, SendState, SendVariant};
use trawl_bpf::probe::{KernelFeature, ProbeAnswer};
use trawl_bpf::program::{LoadOptions, XDP, returning};
use trawl_bpf::{link, object};
use trawl_sys::error::{Error, Result};
use trawl_sys::netlink::XdpMode;
use trawl_sys::netlink::ethtool::Ethtool;
use trawl_sys::netlink::{LinkRecord, Netlink, veth_peer};
use trawl_sys::netns::{Namespace, run_in_scratch};

use super::accepted::AcceptedFrames;
use super::{Burst, check_frame};

const XDP_TX: i32 = 3;
const LOOPBACK: u32 = 1;
/// Batch size, the kernel's default; a veth queue holds 256 frames, so a batch always fits an empty one.
const BATCH: u32 = 64;
/// Maximum number of frames of one run; its setup (about 30 µs) is then negligible.
pub const LARGEST_RUN: u64 = 1 << 20;

const PROGRAM: &str = "send_pattern";
const CANNOT_LOAD: &str = "cannot load the sending program";

/// Parameters of the program: see bpf/include/send.h.
#[derive(Clone, Copy, Debug)]
pub struct LivePlan<'a> {
    pub plan: SendPlan,
    pub variants: &'a [SendVariant],
    pub schedule: &'a [u32],
    pub lists: &'a [u64],
    pub state: SendState,
}

/// A program and its outgoing interface.
#[derive(Debug)]
pub struct LiveSender {
    program: OwnedFd,
    interface: u32,
    name: String,
    accepted: Accepted,
    /// Queue of a pinned thread.
    own: Option<OwnQueue>,
    batch: u32,
    _ready: Option<Ready>,
}

/// Source of the number of frames that the driver has accepted from XDP.
#[derive(Debug)]
enum Accepted {
    /// The driver's own counters of each queue.
    ByQueue(Ethtool),
    /// The kernel's tracepoint, where the frames of this thread are counted.
    ByTracepoint(Arc<AcceptedFrames>),
    /// No source: the kernel refuses the tracepoint's program.
    Unknown,
}

impl Accepted {
    fn find(counters: Ethtool) -> Self {
        if !by_queue(&counters, "tx_queue_", "_xdp_xmit").is_empty() {
            return Self::ByQueue(counters);
        }
        match AcceptedFrames::shared() {
            Some(counting) if counting.begin().is_ok() => Self::ByTracepoint(counting),
            _ => Self::Unknown,
        }
    }

    /// Returns the number of accepted frames, at this queue or in total; `None` if it is unknown. Frames that others
    /// send at the same time by other queues would hide refusals in the driver's counters.
    fn frames(&self, queue: Option<usize>) -> Option<u64> {
        match self {
            Self::ByQueue(counters) => {
                let counts = by_queue(counters, "tx_queue_", "_xdp_xmit");
                if counts.is_empty() {
                    return None;
                }
                let own = queue.and_then(|queue| counts.get(&queue));
                Some(own.copied().unwrap_or_else(|| counts.values().sum()))
            }
            Self::ByTracepoint(counting) => counting.sent(),
            Self::Unknown => None,
        }
    }
}

/// The queue that a CPU sends by, if the driver chooses it by CPU.
#[derive(Clone, Copy, Debug)]
struct OwnQueue {
    cpu: usize,
    queue: usize,
}

/// An attachment that keeps the program in the kernel's dispatcher of XDP programs. For a program outside of it, a run
/// adds and removes the program, and waits for all CPUs each time, 10 to 30 ms together. The program is attached to an
/// interface without packets: the loopback interface of a namespace of its own.
#[derive(Debug)]
struct Ready {
    _link: OwnedFd,
    _namespace: Namespace,
}

impl Ready {
    /// Attaches the program. A refusal only means that short runs take longer.
    fn make(program: BorrowedFd<'_>) -> Option<Self> {
        run_in_scratch(|| {
            Some(Self {
                _link: link::attach_xdp(program, LOOPBACK, XdpMode::Skb).ok()?,
                _namespace: Namespace::current().ok()?,
            })
        })
        .ok()?
    }
}

impl LiveSender {
    /// Sends frames unchanged, out of an interface of the calling thread's namespace.
    pub fn plain(name: &str) -> Result<Self> {
        let program = LoadOptions::new("trawl_send", XDP)
            .load(&returning(XDP_TX))
            .map_err(|e| Error::os(CANNOT_LOAD, e).fix("this requires root (CAP_BPF, CAP_NET_ADMIN)"))?;
        Self::with_program(name, program)
    }

    /// Makes each frame in the kernel.
    pub fn making(name: &str, plan: &LivePlan<'_>) -> Result<Self> {
        Self::with_program(name, load(plan)?)
    }

    fn with_program(name: &str, program: OwnedFd) -> Result<Self> {
        let link = Netlink::current()?.link(name)?;
        let counters = Ethtool::open(None, name)?;
        Ok(Self {
            _ready: Ready::make(program.as_fd()),
            program,
            interface: link.index,
            name: name.to_owned(),
            own: OwnQueue::find(&link, &counters),
            accepted: Accepted::find(counters),
            batch: BATCH,
        })
    }

    /// Sets the number of frames that the kernel makes before it hands them over.
    pub fn set_batch(&mut self, batch: u32) {
        self.batch = batch;
    }

    /// Returns the thread's own queue, unless the thread has been moved to other CPUs.
    fn own_queue(&self) -> Option<usize> {
        self.own.filter(OwnQueue::is_kept).map(|own| own.queue)
    }

    /// Returns true if the number of frames that the driver refuses is known.
    pub fn counts_accepted(&self) -> bool {
        !matches!(self.accepted, Accepted::Unknown)
    }

    /// Offers the frame, or the program's version of it, `count` times.
    pub fn burst(&mut self, frame: &[u8], count: u64) -> Result<Burst> {
        check_frame(frame)?;
        let count = count.min(LARGEST_RUN);
        if count == 0 {
            return Ok(Burst::default());
        }
        let queue = self.own_queue();
        let before = self.accepted.frames(queue);
        match self.run(frame, count as u32) {
            // A signal ends a run early; the driver's counters show its progress.
            Err(e) if e.kind() == io::ErrorKind::Interrupted && before.is_some() => {
                let after = self.accepted.frames(queue).unwrap_or(0);
                let sent = after.saturating_sub(before.unwrap_or(0));
                return Ok(Burst { sent, refused: 0 });
            }
            result => result.map_err(|e| self.explain(e, frame.len()))?,
        }
        let (Some(before), Some(after)) = (before, self.accepted.frames(queue)) else {
            return Ok(Burst { sent: count, refused: 0 });
        };
        let sent = after.saturating_sub(before).min(count);
        Ok(Burst { sent, refused: count - sent })
    }

    fn run(&self, frame: &[u8], count: u32) -> io::Result<()> {
        let context =
            libbpf_sys::xdp_md { data_end: frame.len() as u32, ingress_ifindex: self.interface, ..Default::default() };
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of_val(&context) as u32,
            repeat: count as i32,
            flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: self.batch.min(count),
            ..Default::default()
        };
        // SAFETY: frame and context are only read, with their true sizes, and outlive the call.
        let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut options) };
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }

    fn explain(&self, error: io::Error, length: usize) -> Error {
        let what = format!("cannot send live XDP frames out of {}", self.name);
        match error.raw_os_error() {
            Some(libc::EINVAL) => Error::failed(
                what,
                format!("the kernel has no live frames (before 5.18), or {length} bytes do not fit into a page"),
            )
            .fix("use --engine packet"),
            Some(libc::ENODEV) => Error::failed(what, "the interface is gone"),
            _ => Error::os(what, error),
        }
    }
}

impl OwnQueue {
    /// Finds the queue. A veth passes a frame to a queue of its other end: the CPU's number modulo the number of queues
    /// there. It counts the frame at its own queue of that number, if both ends have as many queues.
    fn find(link: &LinkRecord, counters: &Ethtool) -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| stays_on(&allowed, *cpu))?;
        let peer = veth_peer(None, link).ok()??;
        let far = Ethtool::open(peer.namespace.as_ref(), &peer.link.name).ok()?;
        let receiving = by_queue(&far, "rx_queue_", "_xdp_packets").len();
        let sending = by_queue(counters, "tx_queue_", "_xdp_xmit").len();
        let queue = cpu.checked_rem(receiving)?;
        (receiving == sending).then_some(Self { cpu, queue })
    }

    /// Returns true if the thread is still pinned to the CPU.
    fn is_kept(&self) -> bool {
        sched_getaffinity(None).is_ok_and(|allowed| stays_on(&allowed, self.cpu))
    }
}

fn stays_on(allowed: &CpuSet, cpu: usize) -> bool {
    allowed.is_set(cpu) && allowed.count() == 1
}

/// Returns the counters whose names have this form, by the queue number in the name.
fn by_queue(counters: &Ethtool, before: &str, after: &str) -> BTreeMap<usize, u64> {
    let queue = |name: &str| {
        let number = name.strip_prefix(before)?.strip_suffix(after)?;
        number.parse().ok()
    };
    let all = counters.statistics().unwrap_or_default();
    all.iter().filter_map(|(name, count)| Some((queue(name)?, *count))).collect()
}

/// Runs the program on a frame without sending anything, and returns the frames that it makes. Tests compare them with
/// the expected ones.
pub fn dry_run(plan: &LivePlan<'_>, frame: &[u8], count: usize) -> Result<Vec<Vec<u8>>> {
    let program = load(plan)?;
    let one = |_| {
        let mut out = vec![0; frame.len() + 256];
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            data_out: out.as_mut_ptr().cast(),
            data_size_out: out.len() as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: the frame is only read and the buffer for the result written, both with their true sizes; they
        // outlive the call.
        let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        if result < 0 {
            let error = io::Error::from_raw_os_error(-result);
            return Err(Error::os("cannot run the sending program", error));
        }
        if options.retval != XDP_TX as u32 {
            return Err(Error::failed("the sending program made no frame", format!("it answered {}", options.retval)));
        }
        out.truncate(options.data_size_out as usize);
        Ok(out)
    };
    (0..count).map(one).collect()
}

fn load(plan: &LivePlan<'_>) -> Result<OwnedFd> {
    if let ProbeAnswer::NotSupported { why } = KernelFeature::LiveFrames.probe() {
        let error = Error::failed("cannot send live XDP frames", why);
        return Err(error.fix("use --engine packet"));
    }
    let fail = |why: libbpf_rs::Error| Error::failed(CANNOT_LOAD, why);
    libbpf_rs::set_print(None);
    let mut open = ObjectBuilder::default().open_memory(object::SEND).map_err(fail)?;
    let entries = |map: &mut OpenMapMut<'_>, count: usize| map.set_max_entries(count.max(1) as u32);
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "variants" => entries(&mut map, plan.variants.len()),
            "schedule" => entries(&mut map, plan.schedule.len()),
            "lists" => entries(&mut map, plan.lists.len()),
            _ if name.ends_with(".rodata") => map.set_initial_value(bytes_of(&plan.plan)),
            _ => Ok(()),
        }
        .map_err(fail)?;
    }
    for mut one in open.progs_mut() {
        one.set_autoload(true);
    }
    let object = open.load().map_err(fail)?;
    let map = |name: &str| {
        object
            .maps()
            .find(|map| map.name().to_string_lossy() == name)
            .ok_or_else(|| Error::failed(CANNOT_LOAD, format!("its map {name} is missing")))
    };
    fill(&map("variants")?, plan.variants)?;
    fill(&map("schedule")?, plan.schedule)?;
    fill(&map("lists")?, plan.lists)?;
    fill(&map("state")?, &[plan.state])?;
    let program = object
        .progs()
        .find(|one| one.name().to_string_lossy() == PROGRAM)
        .ok_or_else(|| Error::failed(CANNOT_LOAD, "it is not in the object"))?;
    let program: BorrowedFd<'_> = program.as_fd();
    program.try_clone_to_owned().map_err(|e| Error::os(CANNOT_LOAD, e))
}

fn fill<T: Shared>(map: &impl MapCore, values: &[T]) -> Result<()> {
    for (index, value) in (0u32..).zip(values) {
        map.update(&index.to_ne_bytes(), bytes_of(value), MapFlags::ANY).map_err(|e| Error::failed(CANNOT_LOAD, e))?;
    }
    Ok(())
}

/// Types whose bytes can all be read: they have no uninitialised padding.
trait Shared: Copy {}

impl Shared for u32 {}
impl Shared for u64 {}
// These three are generated, and the generator checks that they have no padding.
impl Shared for SendPlan {}
impl Shared for SendState {}
impl Shared for SendVariant {}

fn bytes_of<T: Shared>(value: &T) -> &[u8] {
    // SAFETY: only types without padding are Shared; the bytes are those of a live value, borrowed as long.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}
