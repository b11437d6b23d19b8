//! `-- COMMAND`: runs a command in a cgroup of its own. The capture records only the command's packets, until it ends.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trawl_bpf::process_watch::KnownNamespaces;
use trawl_sys::events::Wake;
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{self, Namespace};
use trawl_sys::process::cgroup::{Group, Root};
use trawl_sys::process::held::HeldCommand;
use trawl_sys::process::warden::{Undo, Warden};
use trawl_sys::rights::privilege::{Capabilities, User};
use trawl_sys::{Error, Result, events, process};

use crate::capture_site::CaptureSite;
use crate::session::Attached;
use trawl_plan::options::CaptureOptions;

/// Time for which the capture continues after the command's end, while its connections are closed.
const LAST_PACKETS: Duration = Duration::from_millis(200);
/// Maximum time to wait for a command that was asked to end.
const TO_END: Duration = Duration::from_secs(2);
/// Interval between two reads of the network namespaces of its processes while they use the CPU.
const READ_INTERVAL: Duration = Duration::from_millis(1);
/// The longest interval while they do not: a process that enters a namespace after a silence and executes no program
/// there is noticed after this time.
const READ_RARELY: Duration = Duration::from_millis(500);
/// Capabilities needed to join the network namespaces of a command, through its processes, which other users may own.
pub const TO_ENTER: Capabilities =
    Capabilities::SYS_PTRACE.union(Capabilities::KILL).union(Capabilities::SYS_ADMIN).union(Capabilities::NET_ADMIN);
/// Capabilities needed to resume processes of other users, and to remove the cgroup.
const TO_VACATE: Capabilities = Capabilities::KILL
    .union(Capabilities::SYS_ADMIN)
    .union(Capabilities::DAC_OVERRIDE)
    .union(Capabilities::DAC_READ_SEARCH);
/// Maximum time for which its processes wait until a new namespace is captured.
const TO_JOIN: Duration = Duration::from_secs(10);

/// Maximum number of namespaces of a command that are held open.
const MOST_HELD: usize = 64;

/// Exit status if the command could not be started.
const NOT_STARTED: u8 = 1;

/// The command whose packets are captured.
#[derive(Debug)]
pub struct Subject {
    name: String,
    held: HeldCommand,
    /// Becomes readable once the command has ended.
    end: Option<OwnedFd>,
    /// Removes the cgroup with rights that the capture has given up, and if trawl is killed.
    warden: Warden,
    ended: Option<Instant>,
    /// Set if the command could not begin.
    refusal: Option<Error>,
    spaces: Option<Arc<Spaces>>,
}

/// The end of a command.
#[derive(Debug, Default)]
pub struct CommandEnd {
    /// Its exit status, as in a shell: 128 plus the number of the signal that ended it. 0 if trawl ends first.
    pub status: u8,
    /// Set if it failed, or could not be started.
    pub failure: Option<String>,
}

/// Task that removes the command's cgroup.
#[derive(Debug)]
struct Vacate(Arc<Group>);

impl Undo for Vacate {
    fn undo(&self) -> Result<()> {
        let removed = self.0.remove();
        removed.map_err(|e| Error::os("cannot remove the cgroup of the command", e))
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.0.root()]
    }

    /// The command may have started processes of other users.
    fn needed_capabilities(&self) -> Capabilities {
        TO_VACATE
    }
}

/// Task that lets processes enter new namespaces without being stopped: the programs that stop them may outlive a killed
/// trawl for a moment.
#[derive(Debug)]
struct EndStopping(Arc<KnownNamespaces>);

impl Undo for EndStopping {
    fn undo(&self) -> Result<()> {
        self.0.forget()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.0.descriptor().as_raw_fd()]
    }
}

impl Subject {
    /// Starts the command, as `user` if one is given, and holds it until `begin`. Limits the capture to its packets;
    /// with `joins`, the capture joins its network namespaces.
    pub fn prepare(
        words: &[String],
        options: &mut CaptureOptions,
        joins: bool,
        user: Option<&User>,
    ) -> Result<Option<Self>> {
        let Some(name) = words.first().cloned() else {
            return Ok(None);
        };
        let fail = |e| {
            Error::os(format!("cannot make a cgroup for {name}"), e)
                .fix("this requires root, and a kernel with cgroups of version 2")
        };
        let root = Root::open().map_err(fail)?;
        let group = Arc::new(Group::make(&root).map_err(fail)?);
        let mut warden = Warden::default();
        warden.watch([Box::new(Vacate(Arc::clone(&group))) as Box<dyn Undo>])?;
        let entrance = group.entrance().map_err(fail)?;
        let held = HeldCommand::start(words, entrance.as_fd(), user).inspect_err(|_| warden.carry_out())?;
        let plan = options.process.get_or_insert_default();
        plan.cgroup = Some(group.number().to_string());
        // Without it, the packets of all processes would be the command's.
        plan.optional = false;
        let spaces = joins.then(|| Spaces::new(group).map(Arc::new)).transpose()?;
        Ok(Some(Self { name, end: held.end(), held, warden, ended: None, refusal: None, spaces }))
    }

    /// Returns the longest time until the next call of `is_over`.
    pub fn attention(&self) -> Duration {
        match (&self.ended, &self.end) {
            (Some(ended), _) => LAST_PACKETS.saturating_sub(ended.elapsed()),
            (None, Some(_)) => Duration::MAX,
            (None, None) => LAST_PACKETS / 2,
        }
    }

    /// Returns descriptors that become readable once the command has ended, or its processes wait in a new namespace.
    pub fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        let end = self.end.as_ref().filter(|_| self.ended.is_none());
        let of_spaces = self.spaces.as_ref().map(|spaces| spaces.wake.as_fd());
        end.map(AsFd::as_fd).into_iter().chain(of_spaces).collect()
    }

    /// Makes the command's processes wait in new network namespaces until those are captured.
    pub fn watch(&mut self, attached: &Attached) -> Result<()> {
        // Without the spaces, no thread would resume the processes.
        let Some(spaces) = &self.spaces else {
            return Ok(());
        };
        if let Some(known) = attached.stop_in_unknown_namespaces()? {
            let known = Arc::new(known);
            let undo = EndStopping(Arc::clone(&known));
            self.warden.watch([Box::new(undo) as Box<dyn Undo>])?;
            spaces.known.get_or_init(|| known);
        }
        if let Some(executions) = attached.executions()? {
            spaces.executions.get_or_init(|| executions);
        }
        Ok(())
    }

    /// Releases the command, once its packets are seen.
    pub fn begin(&mut self) {
        if let Some(spaces) = &self.spaces {
            spaces.watched.call_once(|| Spaces::watch(spaces));
        }
        if let Err(error) = self.held.release() {
            self.refusal = Some(error);
        }
    }

    /// Returns true some time after the command ended.
    pub fn is_over(&mut self) -> bool {
        if self.ended.is_none() && self.held.ended().is_some() {
            self.ended = Some(Instant::now());
        }
        self.ended.is_some_and(|ended| ended.elapsed() >= LAST_PACKETS)
    }

    /// Returns the network namespaces of the command, if their interfaces are captured.
    pub fn spaces(&self) -> Option<&Arc<Spaces>> {
        self.spaces.as_ref()
    }

    /// Ends the command if it still runs.
    pub fn end(mut self) -> CommandEnd {
        if let Some(error) = self.refusal.take() {
            return CommandEnd { status: NOT_STARTED, failure: Some(error.to_string()) };
        }
        let Some(status) = self.held.ended() else {
            return CommandEnd::default();
        };
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        CommandEnd {
            status: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
            failure: (!status.success()).then(|| format!("{}: {status}", self.name)),
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Some(spaces) = &self.spaces {
            spaces.is_over.store(true, Ordering::Relaxed);
        }
        self.held.terminate();
        let asked = Instant::now();
        while self.held.ended().is_none() && asked.elapsed() < TO_END {
            thread::sleep(Duration::from_millis(1));
        }
        self.warden.carry_out();
    }
}

/// The network namespaces of a command's processes.
#[derive(Debug)]
pub struct Spaces {
    group: Arc<Group>,
    known: OnceLock<Arc<KnownNamespaces>>,
    /// The namespaces that were found, up to a limit: they stay usable after the command.
    held: Mutex<Vec<Namespace>>,
    /// Number of those that `entered` has returned.
    returned: AtomicUsize,
    /// Number of namespaces that were found, and of those whose interfaces are captured.
    found: AtomicU64,
    joined: AtomicU64,
    /// The value of `found` for which interfaces are being searched.
    joining: AtomicU64,
    /// Readable while a namespace waits for being captured.
    wake: Wake,
    /// Becomes readable once a process executes a program.
    executions: OnceLock<OwnedFd>,
    watched: Once,
    is_over: AtomicBool,
}

type Identity = (u64, u64);

fn identity_of(process: &str) -> Option<Identity> {
    let about = fs::metadata(format!("/proc/{process}/ns/net")).ok()?;
    Some((about.dev(), about.ino()))
}

impl Spaces {
    fn new(group: Arc<Group>) -> Result<Self> {
        Ok(Self {
            group,
            known: OnceLock::new(),
            held: Mutex::default(),
            returned: AtomicUsize::new(0),
            found: AtomicU64::new(0),
            joined: AtomicU64::new(0),
            joining: AtomicU64::new(0),
            wake: Wake::new()?,
            executions: OnceLock::new(),
            watched: Once::new(),
            is_over: AtomicBool::new(false),
        })
    }

    /// Returns the namespaces, with the processes in them.
    fn all(&self) -> HashMap<Identity, Vec<u32>> {
        let mut all: HashMap<Identity, Vec<u32>> = HashMap::new();
        for process in self.group.processes() {
            if let Some(identity) = identity_of(&process.to_string()) {
                all.entry(identity).or_default().push(process);
            }
        }
        all
    }

    /// Starts a thread that finds new namespaces, and stops the processes in them until their interfaces are captured.
    fn watch(spaces: &Arc<Self>) {
        let spaces = Arc::clone(spaces);
        let own = identity_of("self");
        spaces.note(own);
        thread::spawn(move || {
            let mut known: HashSet<Identity> = own.into_iter().collect();
            let mut rest = READ_INTERVAL;
            let mut cpu_time = None;
            let mut has_executed = false;
            while !spaces.is_over.load(Ordering::Relaxed) {
                for (identity, processes) in spaces.all() {
                    if known.insert(identity) {
                        spaces.wait_for_join(&processes);
                        spaces.note([identity]);
                        // The kernel's programs stopped further processes when they executed a program.
                        for process in spaces.all().remove(&identity).unwrap_or_default() {
                            let _ = process::resume(process);
                        }
                    }
                }
                let before = std::mem::replace(&mut cpu_time, spaces.group.cpu_time());
                let is_idle = before.is_some() && before == cpu_time;
                rest = if is_idle { (rest * 2).min(READ_RARELY) } else { READ_INTERVAL };
                // After an execution, the capture's own thread needs a moment to read it.
                has_executed = match spaces.executions.get() {
                    Some(executions) if !has_executed => !events::is_quiet(executions.as_fd(), rest),
                    _ => {
                        thread::sleep(READ_INTERVAL);
                        false
                    }
                };
            }
        });
    }

    fn note(&self, namespaces: impl IntoIterator<Item = Identity>) {
        for (_, inode) in namespaces {
            let added = self.known.get().map(|known| known.add(inode as u32));
            // A failure is no reason to end the capture.
            let _ = added.transpose();
        }
    }

    fn wait_for_join(&self, processes: &[u32]) {
        for process in processes {
            let _ = process::stop(*process);
        }
        let mut held = self.held.lock();
        if held.len() < MOST_HELD {
            let mut opened = processes.iter().map(|process| Namespace::of_pid(*process));
            held.extend(opened.find_map(Result::ok));
        }
        drop(held);
        let began = Instant::now();
        let number = self.found.fetch_add(1, Ordering::Relaxed) + 1;
        self.wake.ring();
        while self.joined.load(Ordering::Relaxed) < number
            && began.elapsed() < TO_JOIN
            && !self.is_over.load(Ordering::Relaxed)
        {
            thread::sleep(READ_INTERVAL);
        }
    }

    /// Returns true if processes wait for interfaces to be captured. The interfaces that `appeared`
    /// last returned are captured by the next call.
    pub fn is_urgent(&self) -> bool {
        let joined = self.joining.load(Ordering::Relaxed);
        if self.joined.swap(joined, Ordering::Relaxed) < joined {
            self.wake.clear();
        }
        self.found.load(Ordering::Relaxed) > joined
    }

    /// Returns the namespaces that were found since the last call.
    pub fn entered(&self) -> Vec<Namespace> {
        self.joining.store(self.found.load(Ordering::Relaxed), Ordering::Relaxed);
        let held = self.held.lock();
        let before = self.returned.swap(held.len(), Ordering::Relaxed);
        held[before..].to_vec()
    }

    /// Returns the namespace whose inode has this number, if the command entered it.
    pub fn numbered(&self, number: u64) -> Option<Namespace> {
        let held = self.held.lock();
        held.iter().find(|one| one.identity().1 == number).cloned()
    }

    /// Returns the interfaces that are not among the known ones.
    pub fn appeared(&self, known: &[CaptureSite]) -> Vec<CaptureSite> {
        self.joining.store(self.found.load(Ordering::Relaxed), Ordering::Relaxed);
        let known: HashSet<(Identity, u32)> =
            known.iter().filter_map(|site| Some((site.namespace.as_ref()?.identity(), site.interface.index))).collect();
        let names: HashMap<Identity, String> =
            netns::list().into_iter().filter_map(|name| Some((netns::identity_of(&name)?, name))).collect();
        let mut found = Vec::new();
        let own = identity_of("self");
        for (identity, processes) in self.all() {
            let Some(process) = processes.first().filter(|_| Some(identity) != own) else {
                continue;
            };
            let name = names.get(&identity).cloned().unwrap_or_else(|| process.to_string());
            let links = Namespace::open(&name).and_then(|open| Netlink::open(Some(&open))?.links());
            for link in links.unwrap_or_default() {
                if !known.contains(&(identity, link.index)) {
                    found.extend(CaptureSite::find(&format!("{name}:{}", link.name), None));
                }
            }
        }
        found
    }
}
