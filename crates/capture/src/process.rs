//! The processes of packets: the programs that find them, and the stage that describes each process in the file before
//! the first packet that names it.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use std::rc::Rc;

use trawl_bpf::layout::process::{
    PROCESS_EXECUTED, PROCESS_FOUND, PROCESS_LISTED, PROCESS_NAMED, ProcessCounts, ProcessEvent, ProcessSettings,
    SOCKET_CODE,
};
use trawl_bpf::layout::{ALL, Shared, text_in};
use trawl_bpf::probe::{self, Capability};
use trawl_bpf::process_watch::{FrequentPrograms, ProcessWatch};
use trawl_packet::pcapng::block::{EnhancedPacket, blocks};
use trawl_packet::pcapng::note::{CgroupNote, Note, Owner, ProcessFacts, ProcessNote, SocketNote};
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::pcapng::{Process, write};
use trawl_pipeline::{Blocks, Pressure, Stage, Writer};
use trawl_sys::process::cgroup::Root;
use trawl_sys::{Error, Result, clock, netns, process};

use crate::event::Event;
use trawl_plan::options::{ProcessDetail, ProcessPlan};

/// Maximum number of remembered processes. Above it, the stage forgets the processes that no packet has named; if too
/// many are left, it forgets all.
const MOST_KNOWN: usize = 65_536;
/// Resolution of start times in /proc.
const START_RESOLUTION_NS: u64 = 10_000_000;
/// Length of the hexadecimal number that names a container.
const CONTAINER_DIGITS: usize = 64;

/// The attached programs that find the process of each packet.
#[derive(Debug)]
pub struct Processes {
    pub watch: ProcessWatch,
    pub cgroups: Root,
    /// Number of processes that packets name and that have no description.
    pub undescribed: Cell<u64>,
    /// Paths of cgroups, also of removed ones, by their numbers; empty if it is not known.
    paths: RefCell<HashMap<u64, Rc<str>>>,
}

/// The name of a process, and the container and pod that it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessName {
    pub name: Option<String>,
    pub container: Option<String>,
    pub pod: Option<String>,
}

impl Processes {
    /// Returns the name of a process, running or not. `cgroup` is the number of its cgroup, if that is known.
    pub fn name_of(&self, id: u32, cgroup: Option<u64>) -> ProcessName {
        let known = self.watch.known(id);
        let running =
            || fs::read_to_string(format!("/proc/{id}/comm")).ok().filter(|_| netns::in_first_process_namespace());
        let name = known.map(|known| text_in(&known.name)).or_else(|| Some(running()?.trim_end().to_owned()));
        let cgroup = cgroup.or(known.map(|known| known.cgroup)).filter(|cgroup| *cgroup != 0);
        let path = cgroup.and_then(|cgroup| self.path_of(cgroup));
        let path = path.as_deref();
        ProcessName {
            name,
            container: path.and_then(container_in).map(|id| id[..12].to_owned()),
            pod: path.and_then(pod_in),
        }
    }

    /// Returns the path of a cgroup, unless it was removed before it was first asked for.
    fn path_of(&self, cgroup: u64) -> Option<Rc<str>> {
        let mut paths = self.paths.borrow_mut();
        if !paths.contains_key(&cgroup) {
            paths.extend(shared(self.cgroups.paths()));
        }
        // The tree is not searched for each packet of a removed one.
        let path = paths.entry(cgroup).or_default();
        (!path.is_empty()).then(|| Rc::clone(path))
    }

    /// Returns an event if the programs do not see all uses of sockets.
    pub fn unseen(&self) -> Option<Event> {
        let uses = self.watch.missing.clone();
        (!uses.is_empty()).then_some(Event::ProcessesUnseen { uses })
    }
}

/// Opens the root of the cgroups.
pub fn cgroups() -> Result<Root> {
    Root::open().map_err(|e| {
        Error::os("cannot find the processes of packets", e)
            .fix("this requires root, and a kernel with cgroups of version 2")
    })
}

/// Attaches the programs that find the process of each packet.
pub fn attach(plan: &ProcessPlan, cgroups: Root, frequent: FrequentPrograms) -> Result<Processes> {
    if let Some((why, fix)) = probe::lack_of(&Capability::FOR_BPF) {
        return Err(Error::failed("cannot find the processes of packets", why).fix(fix));
    }
    let settings = settings(plan, &cgroups)?;
    let watch = ProcessWatch::attach(cgroups.as_fd(), &settings, frequent)?;
    let paths = RefCell::new(shared(cgroups.paths()).collect());
    Ok(Processes { watch, cgroups, undescribed: Cell::new(0), paths })
}

fn shared(paths: HashMap<u64, String>) -> impl Iterator<Item = (u64, Rc<str>)> {
    paths.into_iter().map(|(cgroup, path)| (cgroup, path.into()))
}

fn settings(plan: &ProcessPlan, cgroups: &Root) -> Result<ProcessSettings> {
    let mut settings = ProcessSettings {
        process: plan.process.unwrap_or(0),
        user: plan.user.unwrap_or(ALL as u32),
        commands: u32::from(plan.detail == ProcessDetail::Full),
        filters: u32::from(plan.filters()),
        ..ProcessSettings::zeroed()
    };
    if let Some(name) = &plan.name {
        let mut bytes = [0; 16];
        let length = name.len().min(bytes.len() - 1);
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        for (to, from) in settings.name.iter_mut().zip(bytes.chunks_exact(4)) {
            *to = u32::from_ne_bytes(from.try_into().unwrap_or_default());
        }
    }
    if let Some(wanted) = &plan.cgroup {
        settings.cgroup = find_cgroup(wanted, cgroups)?;
    }
    Ok(settings)
}

/// Finds a cgroup by its number, its path, its last component, or the beginning of its container's number.
fn find_cgroup(wanted: &str, cgroups: &Root) -> Result<u64> {
    let own = wanted.parse().ok();
    let is_meant = |number: u64, path: &str| {
        let last = path.rsplit('/').next().unwrap_or(path);
        own == Some(number)
            || path.trim_end_matches('/') == wanted.trim_end_matches('/')
            || last == wanted
            || container_in(path).is_some_and(|id| wanted.len() >= 6 && id.starts_with(wanted))
    };
    let paths = cgroups.paths();
    let mut found = paths.iter().filter(|(number, path)| is_meant(**number, path));
    let what = || format!("cannot choose the packets of {wanted}");
    match (found.next(), found.next()) {
        (Some((number, _)), None) => Ok(*number),
        (Some((_, one)), Some((_, other))) => {
            let why = format!("several cgroups have this name, among them {one} and {other}");
            Err(Error::usage(what(), why).fix("give the whole path"))
        }
        (None, _) => {
            Err(Error::usage(what(), "no cgroup or container of this name exists").fix("systemd-cgls lists them"))
        }
    }
}

/// Returns the number of the container whose cgroup this is: the last component with 64 hexadecimal digits.
fn container_in(path: &str) -> Option<&str> {
    let is_id = |word: &&str| word.len() == CONTAINER_DIGITS && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    path.rsplit('/').find_map(|part| part.split(['-', '.', ':']).find(is_id))
}

/// Returns the number of the pod whose cgroup this is.
pub fn pod_in(path: &str) -> Option<String> {
    let uid = |part: &str| {
        let (_, uid) = part.trim_end_matches(".slice").rsplit_once("pod")?;
        let plain = uid.replace('_', "-");
        let is_uid = plain.len() == 36 && plain.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        is_uid.then_some(plain)
    };
    path.rsplit('/').find_map(uid)
}

/// Reasons to name the owner of a socket, by the kernel programs' numbers. An owner that used the socket is certain.
const OWNERS: [Option<Owner>; 6] =
    [None, None, Some(Owner::Listener), Some(Owner::Existing), Some(Owner::Shared), Some(Owner::Sender)];

/// Descriptions of the processes with one number.
#[derive(Debug, Default)]
struct Known {
    /// The process's descriptions: as it was found, and after each new program.
    all: Vec<Process>,
    is_named: bool,
}

impl Known {
    /// Returns true if a packet named the process, and nothing described it yet.
    fn is_undescribed(&self) -> bool {
        self.is_named && self.all.is_empty()
    }
}

/// Stage that describes processes, before the packets that name them or on request.
#[derive(Debug)]
pub struct ProcessStage {
    processes: Rc<Processes>,
    detail: ProcessDetail,
    known: HashMap<u32, Known>,
    /// Nanoseconds since 1970 at which the machine started.
    boot: u64,
    /// True if /proc has the processes by the numbers that programs see.
    has_numbers: bool,
    /// Programs of the processes that ran at the start: a process without rights cannot find them later.
    programs: HashMap<u32, String>,
    /// Nanoseconds since the machine started at which they were listed.
    listed: u64,
    users: HashMap<u32, String>,
    has_begun: bool,
    out: Vec<u8>,
}

impl ProcessStage {
    pub fn new(processes: Rc<Processes>, detail: ProcessDetail) -> Self {
        Self {
            processes,
            detail,
            known: HashMap::new(),
            has_numbers: netns::in_first_process_namespace(),
            programs: programs(),
            listed: clock::since_boot(),
            boot: clock::wall().saturating_sub(clock::since_boot()),
            users: users(),
            has_begun: false,
            out: Vec::new(),
        }
    }

    /// Reads the programs' events since the last call, and appends the new descriptions.
    fn describe_events(&mut self) {
        for event in self.processes.watch.events() {
            match event.kind as usize {
                PROCESS_FOUND | PROCESS_LISTED => self.describe(&event, true),
                PROCESS_EXECUTED => self.describe(&event, false),
                PROCESS_NAMED => self.note_named(event.process),
                _ => {}
            }
        }
        if self.known.len() > MOST_KNOWN {
            self.known.retain(|_, known| known.is_named);
        }
        if self.known.len() > MOST_KNOWN {
            self.known.clear();
        }
    }

    /// Reads the programs' events since the last call.
    pub fn refresh(&mut self) {
        self.describe_events();
        self.out.clear();
    }

    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Returns the last description of a process.
    pub fn find(&mut self, id: u32) -> Option<&Process> {
        self.note_named(id);
        self.out.clear();
        self.known.get(&id)?.all.last()
    }

    /// Returns the name of a process, its container and its pod, as far as they are known.
    pub fn name_of(&mut self, id: u32) -> ProcessName {
        self.find(id).map_or_else(ProcessName::default, |known| ProcessName {
            name: known.name.clone(),
            container: known.container().map(str::to_owned),
            pod: known.pod().map(str::to_owned),
        })
    }

    /// Returns true for a process that has ended.
    pub fn has_ended(&self, id: u32) -> bool {
        self.has_numbers && process::started(id).is_none()
    }

    fn describe(&mut self, event: &ProcessEvent, is_new: bool) {
        let mut process = self.process(event);
        let now = self.boot + clock::since_boot();
        let known = self.known.entry(event.process).or_default();
        let was_undescribed = known.is_undescribed();
        // An earlier description came from /proc, whose times have this resolution, or the programs forgot the process.
        let is_same = |one: &Process| {
            let (one, other) = (one.start_ns.unwrap_or(0), process.start_ns.unwrap_or(0));
            one.abs_diff(other) <= START_RESOLUTION_NS
        };
        let is_known = is_new && known.all.first().is_some_and(is_same);
        if is_known {
            if known.all.last().is_some_and(|last| last.name == process.name) {
                return;
            }
            // The event of its new program was lost.
            process.start_ns = Some(now);
        } else if is_new {
            // A packet may have named the process before the system call that sent it described the process.
            known.all.clear();
        }
        if known.is_named {
            write_process(&mut self.out, self.detail, &process);
        }
        if was_undescribed {
            let undescribed = &self.processes.undescribed;
            undescribed.set(undescribed.get() - 1);
        }
        known.all.push(process);
    }

    /// Notes that a packet or a caller named the process, and appends its descriptions the first time.
    fn note_named(&mut self, id: u32) {
        let known = self.known.entry(id).or_default();
        if known.is_named {
            return;
        }
        known.is_named = true;
        // A process without an event had its sockets before the capture began.
        let is_new = known.all.is_empty();
        if is_new && self.has_numbers {
            let is_full = self.detail == ProcessDetail::Full;
            let mut found = running(id, is_full, self.boot, &self.users);
            if let Some(found) = &mut found {
                let started = found.start_ns.unwrap_or(0).saturating_sub(self.boot);
                let program = self.program_of(id, started);
                found.path = found.path.take().or(program);
            }
            self.known.entry(id).or_default().all.extend(found);
        }
        let known = self.known.entry(id).or_default();
        if known.is_undescribed() {
            let undescribed = &self.processes.undescribed;
            undescribed.set(undescribed.get() + 1);
        }
        for process in &known.all {
            write_process(&mut self.out, self.detail, process);
        }
    }

    /// Returns the program of a process that ran when the capture began.
    fn program_of(&self, id: u32, started: u64) -> Option<String> {
        let program = self.programs.get(&id);
        program.filter(|_| started < self.listed).cloned()
    }

    fn process(&mut self, event: &ProcessEvent) -> Process {
        let path = match event.path_length {
            // The event of its program was lost.
            0 if event.kind as usize == PROCESS_LISTED => {
                let began = process::started(event.process).filter(|_| self.has_numbers).map(process::nanoseconds_of);
                let is_it = began.is_some_and(|began| began.abs_diff(event.started) <= START_RESOLUTION_NS);
                let program = || fs::read_link(format!("/proc/{}/exe", event.process)).ok();
                let path = is_it.then(program).flatten().map(|path| path.to_string_lossy().into_owned());
                path.or_else(|| self.program_of(event.process, event.started))
            }
            // A forked process runs its parent's program.
            0 if event.kind as usize == PROCESS_FOUND => self.program_of(event.process, event.started).or_else(|| {
                let known = self.known.get(&event.parent)?;
                known.all.last()?.path.clone()
            }),
            _ => Some(path_in(event)).filter(|path| path.starts_with('/')),
        };
        let command: Vec<u8> = event.command.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let command = &command[..command.len().min(event.command_length as usize)];
        let comment = cgroup_comment(self.processes.path_of(event.cgroup).as_deref(), event.process, event.inner);
        Process {
            id: event.process,
            name: Some(text_in(&event.name)),
            path,
            command: (!command.is_empty()).then(|| command.strip_suffix(&[0]).unwrap_or(command).to_vec()),
            parent: Some(event.parent),
            user_id: Some(event.user),
            user: self.users.get(&event.user).cloned(),
            start_ns: Some(self.boot + event.started),
            comment,
        }
    }

    /// Adds a comment to each packet whose process is known.
    fn comment_packets(&mut self, bytes: &[u8]) {
        for block in blocks(bytes) {
            let text = block.enhanced_packet().and_then(|packet| match self.detail {
                ProcessDetail::Full => self.about_socket(&packet),
                _ => self.about_process(&packet),
            });
            match text {
                Some(text) => {
                    write::with_comment(&mut self.out, block.bytes, &text, Some(SOCKET_CODE as u16));
                }
                None => self.out.extend_from_slice(block.bytes),
            }
        }
    }

    fn about_process(&self, packet: &EnhancedPacket<'_>) -> Option<String> {
        let process = PacketOptions::parse(packet.options()).process?;
        let known = self.known.get(&process.id);
        let known = known.and_then(|known| known.all.last());
        let name = known.and_then(|known| known.name.as_deref());
        let cgroup = known.and_then(|known| CgroupNote::parse(known.comment.as_deref()?)).unwrap_or_default();
        let facts = ProcessFacts {
            process: ProcessNote { name: name.unwrap_or_default(), id: process.id },
            user: known.and_then(|known| known.user_id),
            container: cgroup.container,
            pod: cgroup.pod,
        };
        Some(facts.text())
    }

    /// Returns the cookie of the packet's socket, the cgroup, and how the process is known if the process has not used
    /// the socket.
    fn about_socket(&self, packet: &EnhancedPacket<'_>) -> Option<String> {
        let mut options = packet.options();
        let facts = options.find(|option| usize::from(option.code) == SOCKET_CODE)?;
        let (how, rest) = facts.value.split_first_chunk()?;
        let (cookie, rest) = rest.split_first_chunk()?;
        let cgroup = u64::from_le_bytes(*rest.first_chunk()?);
        let number = || (cgroup != 0).then(|| cgroup.to_string().into());
        let path = self.processes.path_of(cgroup);
        let note = SocketNote {
            cookie: Some(u64::from_le_bytes(*cookie)),
            owner: OWNERS.get(u32::from_le_bytes(*how) as usize).copied().flatten(),
            cgroup: path.as_deref().map(Cow::from).or_else(number),
        };
        Some(note.text())
    }

    fn send(&mut self, next: &mut dyn Writer) -> Result<()> {
        if !self.out.is_empty() {
            next.write(Blocks::Bytes(&self.out))?;
            self.out.clear();
        }
        Ok(())
    }
}

impl Stage for ProcessStage {
    fn push(&mut self, blocks: Blocks<'_>, next: &mut dyn Writer) -> Result<Pressure> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return next.write(blocks);
        }
        self.describe_events();
        self.send(next)?;
        if self.detail == ProcessDetail::Plain || blocks.bytes().is_empty() {
            return next.write(blocks);
        }
        self.comment_packets(blocks.bytes());
        let pressure = next.write(Blocks::Bytes(&self.out));
        self.out.clear();
        pressure
    }

    /// Reads events while no packets arrive as well, because the events' buffer is small. The descriptions precede the
    /// next packet.
    fn flush(&mut self, next: &mut dyn Writer) -> Result<Pressure> {
        if self.has_begun {
            self.describe_events();
        }
        next.flush()
    }
}

/// Appends the block, unless packets get comments instead.
fn write_process(out: &mut Vec<u8>, detail: ProcessDetail, process: &Process) {
    if detail != ProcessDetail::Comment {
        write::process(out, process);
    }
}

/// Returns a comment with the facts that no field of the block holds: the container, the pod, the cgroup, and the
/// number in the process's own namespace.
fn cgroup_comment(path: Option<&str>, process: u32, inner: u32) -> Option<String> {
    let pod = path.and_then(pod_in);
    let note = CgroupNote {
        container: path.and_then(container_in).map(|id| &id[..12]),
        pod: pod.as_deref(),
        cgroup: path.filter(|path| *path != "/"),
        inner_pid: Some(inner).filter(|inner| *inner != process),
    };
    Some(note.text()).filter(|text| !text.is_empty())
}

/// Returns the path of the program that a process has begun.
fn path_in(event: &ProcessEvent) -> String {
    if event.path_goes_up == 0 {
        return text_in(&event.path);
    }
    let bytes = event.path.iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take(event.path_length as usize).collect();
    let names = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let names = names.rev().map(String::from_utf8_lossy);
    names.fold(String::new(), |path, name| path + "/" + &name)
}

/// Returns the programs of all processes, if they have the numbers that programs in the kernel see.
fn programs() -> HashMap<u32, String> {
    if !netns::in_first_process_namespace() {
        return HashMap::new();
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let program = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let path = fs::read_link(entry.path().join("exe")).ok()?;
        Some((id, path.to_string_lossy().into_owned()))
    };
    entries.filter_map(program).collect()
}

/// Returns the names of users by their numbers.
fn users() -> HashMap<u32, String> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    text.lines().filter_map(user).collect()
}

/// Describes a running process.
fn running(id: u32, with_command: bool, boot: u64, users: &HashMap<u32, String>) -> Option<Process> {
    let directory = format!("/proc/{id}");
    let read = |name: &str| fs::read(format!("{directory}/{name}")).ok();
    let status = String::from_utf8_lossy(&read("status")?).into_owned();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next().map(str::to_owned)
    };
    let number = |name: &str| field(name)?.parse().ok();
    let path = fs::read_link(format!("{directory}/exe")).ok();
    let user_id = number("Uid:");
    let cgroups = fs::read_to_string(format!("{directory}/cgroup")).unwrap_or_default();
    let cgroup = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = inner.and_then(|inner| inner.split_whitespace().last()?.parse().ok());
    let command = read("cmdline").filter(|command| with_command && !command.is_empty());
    Some(Process {
        id,
        name: field("Name:"),
        path: path.map(|path| path.to_string_lossy().into_owned()),
        command: command.map(|command| command.strip_suffix(&[0]).unwrap_or(&command).to_vec()),
        parent: number("PPid:"),
        user_id,
        user: user_id.and_then(|id| users.get(&id).cloned()),
        start_ns: process::started(id).map(|ticks| boot + process::nanoseconds_of(ticks)),
        comment: cgroup_comment(cgroup, id, inner.unwrap_or(id)),
    })
}

/// Returns the counts of packets without a process.
pub fn counts(processes: &Processes) -> ProcessCounts {
    processes.watch.counts().unwrap_or_else(|_| ProcessCounts::zeroed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_and_pods_are_found_in_paths() {
        let id = "0123456789abcdef".repeat(4);
        let uid = "8a6e0804-2bd0-4672-b79d-d97027f9071a";
        for (path, has_pod) in [
            (format!("/system.slice/docker-{id}.scope"), false),
            (format!("/docker/{id}"), false),
            (format!("/machine.slice/libpod-{id}.scope/container"), false),
            (format!("/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{id}.scope", uid.replace('-', "_")), true),
            (format!("/kubepods/besteffort/pod{uid}/{id}"), true),
        ] {
            assert_eq!(container_in(&path), Some(id.as_str()), "{path}");
            assert_eq!(pod_in(&path).as_deref(), has_pod.then_some(uid), "{path}");
        }
        assert_eq!(container_in("/system.slice/ssh.service"), None);
        assert_eq!(pod_in("/user.slice/podman.service"), None);
    }

    #[test]
    fn this_process_is_described() {
        let own = running(std::process::id(), true, 0, &users()).expect("/proc");
        assert_eq!(own.id, std::process::id());
        assert!(own.path.is_some() && own.command.is_some() && own.start_ns > Some(0));
    }
}
