//! Finds the process that owns each socket: bpf/process/owners.bpf.c, attached at the root cgroup and at tracepoints.
//! The taps read its maps.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use trawl_sys::{Error, Result, errno, process};

use crate::kernel_types;
use crate::layout::process::{
    KnownProcess, PROCESS_LISTED, PROCESS_NAMED, ProcessCounts, ProcessEvent, ProcessSettings,
};
use crate::layout::{Shared, TapConfig};
use crate::object::{OWNERS, OWNERS_MAPS, TapProgram, Taps};
use crate::probe::attached::{self, Exclusive};
use crate::program::{self, LoadOptions, Traced};
use crate::table::Table;
use crate::{info, link, map, probe};

/// Place at which a program runs.
#[derive(Clone, Copy, Debug)]
enum Hook {
    /// The root cgroup: kind of program, attach type, and its name.
    Cgroup(u32, u32, &'static str),
    /// A tracepoint with the types of its arguments; and, for kernels without it, a program that runs as a function
    /// begins.
    Typed(&'static str, Entry),
    Raw(&'static str),
}

/// A program, and the function of the kernel at whose entry it runs.
type Entry = (&'static str, &'static str);

const SOCK: u32 = libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK;
const ADDRESS: u32 = libbpf_sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR;

/// All programs. Tracepoints come first, because the other programs use what these record.
const PROGRAMS: [(&str, Hook); 18] = [
    ("trawl_soft_begin", Hook::Raw("softirq_entry")),
    ("trawl_soft_end", Hook::Raw("softirq_exit")),
    ("trawl_executed", Hook::Raw("sched_process_exec")),
    ("trawl_made", Hook::Cgroup(SOCK, libbpf_sys::BPF_CGROUP_INET_SOCK_CREATE, "sock_create")),
    ("trawl_closed", Hook::Cgroup(SOCK, libbpf_sys::BPF_CGROUP_INET_SOCK_RELEASE, "sock_release")),
    ("trawl_bound4", Hook::Cgroup(SOCK, libbpf_sys::BPF_CGROUP_INET4_POST_BIND, "post_bind4")),
    ("trawl_bound6", Hook::Cgroup(SOCK, libbpf_sys::BPF_CGROUP_INET6_POST_BIND, "post_bind6")),
    ("trawl_connect4", Hook::Cgroup(ADDRESS, libbpf_sys::BPF_CGROUP_INET4_CONNECT, "connect4")),
    ("trawl_connect6", Hook::Cgroup(ADDRESS, libbpf_sys::BPF_CGROUP_INET6_CONNECT, "connect6")),
    ("trawl_send4", Hook::Cgroup(ADDRESS, libbpf_sys::BPF_CGROUP_UDP4_SENDMSG, "sendmsg4")),
    ("trawl_send6", Hook::Cgroup(ADDRESS, libbpf_sys::BPF_CGROUP_UDP6_SENDMSG, "sendmsg6")),
    ("trawl_receive4", Hook::Cgroup(ADDRESS, libbpf_sys::BPF_CGROUP_UDP4_RECVMSG, "recvmsg4")),
    ("trawl_receive6", Hook::Cgroup(ADDRESS, libbpf_sys::BPF_CGROUP_UDP6_RECVMSG, "recvmsg6")),
    ("trawl_accept4", Hook::Cgroup(ADDRESS, libbpf_sys::BPF_CGROUP_INET4_GETPEERNAME, "getpeername4")),
    ("trawl_accept6", Hook::Cgroup(ADDRESS, libbpf_sys::BPF_CGROUP_INET6_GETPEERNAME, "getpeername6")),
    ("trawl_connection", Hook::Cgroup(libbpf_sys::BPF_PROG_TYPE_SOCK_OPS, libbpf_sys::BPF_CGROUP_SOCK_OPS, "sock_ops")),
    ("trawl_sent", Hook::Typed("sock_send_length", ("trawl_sends", "security_socket_sendmsg"))),
    ("trawl_received", Hook::Typed("sock_recv_length", ("trawl_receives", "security_socket_recvmsg"))),
];
/// The programs that say whether a soft interrupt has interrupted the current process.
const SOFT_INTERRUPTS: [&str; 2] = ["trawl_soft_begin", "trawl_soft_end"];
/// The programs that run each time a process uses a socket.
const USES: [&str; 2] = ["trawl_sent", "trawl_received"];
/// The program that lists existing sockets, and the kernel's iterator that runs it.
const EXISTING: &str = "trawl_existing";
const ITERATOR: &str = "bpf_iter_task_file";
const EVENTS: &str = "process_events";
const SETTINGS: &str = "process_settings";
const COUNTS: &str = "process_counts";
const KNOWN: &str = "known_processes";
const UNTOLD: &str = "untold_processes";
const NAMESPACES: &str = "known_namespaces";

type Found = Rc<RefCell<Vec<Vec<u8>>>>;

/// The attached programs.
pub struct ProcessWatch {
    maps: Vec<(&'static str, OwnedFd)>,
    events: RingBuffer<'static>,
    found: Found,
    counts: Table,
    /// Number of lost events of which the tables have been read.
    restored: Cell<u64>,
    /// Descriptions of uses of sockets that the programs do not see here.
    pub missing: Vec<String>,
    links: Vec<OwnedFd>,
}

impl fmt::Debug for ProcessWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessWatch").field("missing", &self.missing).finish_non_exhaustive()
    }
}

/// Programs that run so often that they are left out if their results are not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrequentPrograms {
    /// Tell the packets of the current process from packets of soft interrupts.
    pub soft_interrupts: bool,
    /// See each use of a socket, also of one that a process got without a call of its own.
    pub uses: bool,
}

impl FrequentPrograms {
    fn include(self, name: &str) -> bool {
        (self.soft_interrupts || !SOFT_INTERRUPTS.contains(&name)) && (self.uses || !USES.contains(&name))
    }
}

fn fail(error: impl fmt::Display) -> Error {
    Error::failed("cannot find the processes of packets", error)
}

fn of_name<'m>(maps: &'m [(&'static str, OwnedFd)], name: &str) -> Result<&'m OwnedFd> {
    let found = maps.iter().find(|(one, _)| *one == name);
    found.map(|(_, map)| map).ok_or_else(|| fail(format!("no map {name}")))
}

/// A hook of the root cgroup at which the program of another tool allows no other program.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub hook: &'static str,
    pub by: Exclusive,
}

/// Returns the hooks at which the program of another tool allows no other program.
pub fn refusals(cgroup: BorrowedFd<'_>) -> Vec<Refusal> {
    let refusal = |(_, hook): &(&str, Hook)| refusal(*hook, cgroup);
    PROGRAMS.iter().filter_map(refusal).collect()
}

fn refusal(hook: Hook, cgroup: BorrowedFd<'_>) -> Option<Refusal> {
    let Hook::Cgroup(_, attach_type, hook) = hook else {
        return None;
    };
    let by = attached::exclusive(cgroup, attach_type)?;
    Some(Refusal { hook, by })
}

impl ProcessWatch {
    /// Attaches the programs at a cgroup, and lists the existing sockets.
    pub fn attach(cgroup: BorrowedFd<'_>, settings: &ProcessSettings, frequent: FrequentPrograms) -> Result<Self> {
        if !probe::has_socket_of_file() {
            return Err(fail("the kernel has no bpf_sock_from_file").fix("use Linux 5.11 or newer"));
        }
        let first = TapProgram::prepare(Taps::reading_kernel(OWNERS), PROGRAMS[0].0, &TapConfig::zeroed(), &[])?;
        let maps = OWNERS_MAPS
            .map(|name| {
                let map = first.map(name).ok_or_else(|| fail(format!("no map {name}")))?;
                Ok((name, map.try_clone_to_owned().map_err(fail)?))
            })
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        drop(first);
        map::write(of_name(&maps, SETTINGS)?.as_fd(), 0, settings).map_err(fail)?;
        let found = Found::default();
        let queue = Rc::clone(&found);
        let number = info::map(of_name(&maps, EVENTS)?.as_fd()).map_err(fail)?.id;
        let handle = MapHandle::from_map_id(number).map_err(fail)?;
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&handle, move |event: &[u8]| {
                queue.borrow_mut().push(event.to_vec());
                0
            })
            .map_err(fail)?;
        let events = builder.build().map_err(fail)?;
        let counts = of_name(&maps, COUNTS)?.try_clone().and_then(Table::new).map_err(fail)?;
        let (missing, links) = (Vec::new(), Vec::new());
        let mut watch = Self { maps, events, found, counts, restored: Cell::new(0), missing, links };
        for (name, hook) in PROGRAMS.into_iter().filter(|(name, _)| frequent.include(name)) {
            watch.add(name, hook, cgroup)?;
        }
        watch.list_existing()?;
        Ok(watch)
    }

    fn prepare(&self, name: &str) -> Result<TapProgram> {
        TapProgram::prepare(Taps::reading_kernel(OWNERS), name, &TapConfig::zeroed(), &self.maps())
    }

    fn add(&mut self, name: &'static str, hook: Hook, cgroup: BorrowedFd<'_>) -> Result<()> {
        let mut options = LoadOptions::new(name, program::RAW_TRACEPOINT);
        match hook {
            Hook::Cgroup(kind, attach_type, _) => {
                options.kind = kind;
                options.expected_attach_type = attach_type;
            }
            Hook::Typed(tracepoint, entry) => {
                let Some(known) = kernel_types::tracepoint(tracepoint).map_err(fail)? else {
                    match self.enter(entry) {
                        Some(link) => self.links.push(link),
                        None => self.missing.push(format!("{tracepoint} (since Linux 6.3)")),
                    }
                    return Ok(());
                };
                options.kind = program::TRACING;
                options.expected_attach_type = program::ATTACH_TYPED_TRACEPOINT;
                options.traced = Some(Traced { program: None, function: known.type_id });
            }
            Hook::Raw(_) => {}
        }
        let loaded = self.prepare(name)?.load(&options)?;
        let link = match hook {
            Hook::Cgroup(_, attach_type, _) => link::attach_cgroup(loaded.as_fd(), cgroup, attach_type),
            Hook::Typed(..) => link::attach_tracing(loaded.as_fd()),
            Hook::Raw(tracepoint) => link::attach_raw_tracepoint(loaded.as_fd(), tracepoint),
        };
        match link {
            Ok(link) => self.links.push(link),
            Err(error) => match refusal(hook, cgroup) {
                Some(Refusal { hook, by }) if error.raw_os_error() == Some(errno::EPERM) => {
                    self.missing.push(format!("{hook} ({by} allows no other program there)"));
                }
                _ => return Err(Error::os("cannot find the processes of packets", error)),
            },
        }
        Ok(())
    }

    /// Attaches a program at the entry of a function; returns `None` if the kernel does not allow it.
    fn enter(&self, (name, function): Entry) -> Option<OwnedFd> {
        let function = kernel_types::find(kernel_types::FUNCTION, function).ok()??;
        let options = LoadOptions {
            expected_attach_type: program::ATTACH_FENTRY,
            traced: Some(Traced { program: None, function }),
            ..LoadOptions::new(name, program::TRACING)
        };
        let loaded = self.prepare(name).ok()?.load(&options).ok()?;
        link::attach_tracing(loaded.as_fd()).ok()
    }

    fn list_existing(&self) -> Result<()> {
        let function = kernel_types::find(kernel_types::FUNCTION, ITERATOR).map_err(fail)?;
        let Some(function) = function else {
            return Ok(());
        };
        let loaded = self.prepare(EXISTING)?.load(&LoadOptions {
            expected_attach_type: program::ATTACH_ITERATOR,
            traced: Some(Traced { program: None, function }),
            ..LoadOptions::new(EXISTING, program::TRACING)
        })?;
        link::iterate(loaded.as_fd()).map_err(fail)
    }

    /// Returns the maps that taps share, by their names in the sources.
    pub fn maps(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        self.maps.iter().map(|(name, map)| (*name, map.as_fd())).collect()
    }

    /// Makes the selected processes stop when they execute a program in a network namespace that is not among the
    /// returned ones, until [`KnownNamespaces::forget`].
    pub fn stop_in_unknown_namespaces(&self) -> Result<KnownNamespaces> {
        let map = of_name(&self.maps, NAMESPACES)?.try_clone().map_err(fail)?;
        let known = KnownNamespaces(Table::new(map).map_err(fail)?);
        known.add(STOPPING)?;
        Ok(known)
    }

    /// Returns the events since the last call. If events were lost, the tables replace them.
    pub fn events(&self) -> Vec<ProcessEvent> {
        // An interrupted call leaves the events for the next one.
        let _ = self.events.consume();
        let whole = |bytes: Vec<u8>| {
            let mut room = ProcessEvent::zeroed().to_bytes();
            let length = bytes.len().min(room.len());
            room[..length].copy_from_slice(&bytes[..length]);
            ProcessEvent::from_bytes(&room)
        };
        // Programs write the tables before they count an event as lost, and count it before they record packets that
        // depend on it.
        let lost = self.counts().map_or(0, |counts| counts.lost_events);
        let mut events: Vec<ProcessEvent> = self.found.take().into_iter().filter_map(whole).collect();
        if lost > self.restored.replace(lost) {
            events.extend(self.listed().unwrap_or_default());
        }
        events
    }

    /// Returns the processes of the tables: descriptions of all, and names of those whose event was lost.
    fn listed(&self) -> Result<Vec<ProcessEvent>> {
        let table = |name| of_name(&self.maps, name)?.try_clone().and_then(Table::new).map_err(fail);
        let (known, untold) = (table(KNOWN)?, table(UNTOLD)?);
        let mut events = Vec::new();
        for key in known.keys().map_err(fail)? {
            let value = known.lookup(&key).map_err(fail)?;
            let (Some(process), Some(value)) = (number(&key), value.and_then(|value| KnownProcess::from_bytes(&value)))
            else {
                continue;
            };
            events.push(ProcessEvent {
                kind: PROCESS_LISTED as u32,
                process,
                started: value.started,
                cgroup: value.cgroup,
                parent: value.parent,
                user: value.user,
                inner: value.inner,
                name: value.name,
                ..ProcessEvent::zeroed()
            });
        }
        for key in untold.keys().map_err(fail)? {
            untold.delete(&key).map_err(fail)?;
            let named = |process| ProcessEvent { kind: PROCESS_NAMED as u32, process, ..ProcessEvent::zeroed() };
            events.extend(number(&key).map(named));
        }
        Ok(events)
    }

    /// Returns a process that has used a socket.
    pub fn known(&self, id: u32) -> Option<KnownProcess> {
        let table = of_name(&self.maps, KNOWN).ok()?.try_clone().and_then(Table::new).ok()?;
        KnownProcess::from_bytes(&table.lookup(&id.to_ne_bytes()).ok()??)
    }

    /// Returns the counts of all CPUs.
    pub fn counts(&self) -> Result<ProcessCounts> {
        let mut sum = ProcessCounts::zeroed();
        let values = self.counts.lookup(&0u32.to_ne_bytes()).map_err(fail)?.unwrap_or_default();
        for one in values.chunks(size_of::<ProcessCounts>()) {
            if let Some(one) = ProcessCounts::from_bytes(one) {
                sum.lost_events += one.lost_events;
                sum.unknown += one.unknown;
                sum.undecided += one.undecided;
                sum.begun_before += one.begun_before;
            }
        }
        Ok(sum)
    }
}

impl AsFd for ProcessWatch {
    /// Becomes readable once there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the buffer's own, which lives as long as this value.
        unsafe { BorrowedFd::borrow_raw(self.events.epoll_fd()) }
    }
}

fn number(key: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(key.try_into().ok()?))
}

/// Network namespaces in which processes do not stop.
#[derive(Debug)]
pub struct KnownNamespaces(Table);

/// Key whose presence makes processes stop in all other namespaces.
const STOPPING: u32 = 0;

impl KnownNamespaces {
    /// Adds a namespace by its inode.
    pub fn add(&self, inode: u32) -> Result<()> {
        self.0.update(&inode.to_ne_bytes(), &0u32.to_ne_bytes(), 0).map_err(fail)
    }

    /// Lets processes execute programs in all namespaces. After this call, no program sends another stop signal.
    pub fn forget(&self) -> Result<()> {
        self.0.delete(&STOPPING.to_ne_bytes()).map_err(fail)?;
        process::wait_for_kernel_readers()
    }

    /// Returns the descriptor that a process needs to call `forget`.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
