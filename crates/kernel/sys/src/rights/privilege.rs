//! Giving up privileges that a command does not need after its setup: another user, no capabilities, no means to gain
//! any.

use std::ffi::{CStr, CString};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub use rustix::thread::CapabilitySet as Capabilities;
use rustix::thread::{
    CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs,
};

use crate::files::create::own_user;
use crate::{Error, Result};

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    name: CString,
    uid: libc::uid_t,
    gid: libc::gid_t,
    home: CString,
}

impl User {
    pub fn find(name: &str) -> Result<Self> {
        let what = || format!("cannot change to user {name}");
        let name = CString::new(name).map_err(|e| Error::usage(what(), e))?;
        // SAFETY: the name is a C string, and the result points into static memory of libc's that stays unchanged until
        // the next such call; no other thread makes one. It is copied at once.
        let (uid, gid, home) = unsafe {
            let entry = libc::getpwnam(name.as_ptr());
            if entry.is_null() {
                return Err(Error::usage(what(), "no such user exists").fix("'getent passwd' lists the users"));
            }
            let home = CStr::from_ptr((*entry).pw_dir).to_owned();
            ((*entry).pw_uid, (*entry).pw_gid, home)
        };
        Ok(Self { name, uid, gid, home })
    }

    pub fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// Returns the numbers of the user and its group.
    pub fn ids(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    /// Changes to this user as a login does: with its groups, and its home in the environment. The process must have
    /// one thread.
    pub(crate) fn log_in(&self) -> Result<()> {
        self.become_it()?;
        for (name, value) in [(c"HOME", &self.home), (c"USER", &self.name), (c"LOGNAME", &self.name)] {
            // SAFETY: both are C strings, which the call copies; no other thread reads the environment.
            unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
        }
        Ok(())
    }

    /// Changes to this user with its groups. If this was root, all capabilities are lost.
    pub fn become_it(&self) -> Result<()> {
        // SAFETY: plain numbers and a C string that outlives the calls. libc changes all threads of the process.
        let changed = unsafe {
            libc::initgroups(self.name.as_ptr(), self.gid) == 0
                && libc::setgid(self.gid) == 0
                && libc::setuid(self.uid) == 0
        };
        if changed { Ok(()) } else { Err(self.cannot_become(std::io::Error::last_os_error())) }
    }
}

/// The privileges that a process keeps after its setup.
#[derive(Clone, Debug)]
pub struct KeptPrivileges {
    /// The user that it becomes; `None` to stay the same.
    pub user: Option<User>,
    pub capabilities: Capabilities,
}

impl KeptPrivileges {
    /// Gives up all other privileges for good, for this thread and all threads it starts later. From now on the process
    /// executes no programs, and makes no system call that a capture does not need.
    pub fn confine(&self) -> Result<()> {
        self.give_up_others()?;
        forbid(&[&BEYOND_FILES[..], &[libc::SYS_unshare]].concat());
        Ok(())
    }

    /// Gives up all other privileges for good, but may still execute programs.
    pub fn give_up_others(&self) -> Result<()> {
        // Only the present user may limit the bounding set, so this comes first.
        bound(self.capabilities);
        if let Some(user) = &self.user {
            set_keep_capabilities(true).map_err(cannot_give_up)?;
            user.become_it()?;
        }
        keep_only(self.capabilities)
    }
}

impl User {
    /// Runs `act` with this user's rights to files, for example to create a file that belongs to it.
    pub fn act_as<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let acted = std::thread::scope(|scope| {
            let acting = scope.spawn(|| self.become_in_thread().and_then(|()| act()));
            acting.join()
        });
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Changes the calling thread alone, which must end as this user.
    fn become_in_thread(&self) -> Result<()> {
        // SAFETY: plain numbers; the calls below libc's change the calling thread only.
        let changed = unsafe {
            libc::syscall(libc::SYS_setgroups, 1, std::ptr::from_ref(&self.gid)) == 0
                && libc::syscall(libc::SYS_setresgid, self.gid, self.gid, self.gid) == 0
                && libc::syscall(libc::SYS_setresuid, self.uid, self.uid, self.uid) == 0
        };
        if changed { Ok(()) } else { Err(self.cannot_become(std::io::Error::last_os_error())) }
    }

    fn cannot_become(&self, error: std::io::Error) -> Error {
        let what = format!("cannot change to user {}", self.name.to_string_lossy());
        Error::os(what, error).fix("run it as root, or leave out -Z")
    }
}

/// Becomes the owner of a directory for good, with the directory's group alone, if this is root and the owner is not: the
/// owner could make root write elsewhere. A directory that is missing has no owner.
pub fn become_owner(directory: &Path) -> Result<()> {
    let Ok(about) = std::fs::metadata(directory) else { return Ok(()) };
    let (uid, gid) = (about.uid(), about.gid());
    if uid == 0 || own_user() != 0 {
        return Ok(());
    }
    // SAFETY: plain numbers, and one group that outlives the call. libc changes all threads of the process.
    let changed = unsafe { libc::setgroups(1, &gid) == 0 && libc::setgid(gid) == 0 && libc::setuid(uid) == 0 };
    if !changed {
        let what = format!("cannot change to user {uid}, who owns {}", directory.display());
        return Err(Error::os(what, std::io::Error::last_os_error()).fix(format!("run it as user {uid}")));
    }
    keep_none()
}

fn cannot_give_up(error: rustix::io::Errno) -> Error {
    Error::os("cannot give up privileges", error.into())
}

/// Gives up all capabilities but these for good, for this thread and all it starts later: no program executed from now
/// on has more.
pub fn keep_only(capabilities: Capabilities) -> Result<()> {
    set_no_new_privs(true).map_err(cannot_give_up)?;
    let held = rustix::thread::capabilities(None).map_err(cannot_give_up)?;
    let kept = capabilities & held.permitted;
    bound(kept);
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: Capabilities::empty() })
        .map_err(cannot_give_up)
}

/// Limits the bounding set. Without CAP_SETPCAP it stays, but no_new_privs keeps any of it from being gained.
fn bound(kept: Capabilities) {
    for other in kept.complement().iter() {
        let _ = remove_capability_from_bounding_set(other);
    }
    let _ = clear_ambient_capability_set();
}

/// Gives up all capabilities, for commands that only read files which are already open.
pub fn keep_none() -> Result<()> {
    keep_only(Capabilities::empty())
}

/// System calls that neither a running capture nor the reading of files needs.
const BEYOND_FILES: [libc::c_long; 30] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
];

/// Forbids this process from executing programs, opening sockets, tracing others, mounting, and loading BPF programs
/// and modules.
pub fn forbid_all_but_files() {
    let sockets = [libc::SYS_socket, libc::SYS_socketpair, libc::SYS_setns, libc::SYS_unshare, libc::SYS_bpf];
    forbid(&[&BEYOND_FILES[..], &sockets].concat());
}

/// The kernel's number for native system calls: other architectures number theirs differently.
const NATIVE: u32 = if cfg!(target_arch = "aarch64") { 0xc000_00b7 } else { 0xc000_003e };
/// The bit that marks the numbers of x86-64's x32 calls.
const X32: u32 = 0x4000_0000;

/// Makes these calls fail with EPERM in all threads of the process. A kernel without seccomp filters restricts nothing,
/// which is not an error.
fn forbid(calls: &[libc::c_long]) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let insn = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let count = calls.len() as u8;
    // The filter's data begins with the number of the call; its architecture follows.
    let mut program = vec![
        insn(LOAD, 0, 0, 4),
        insn(EQUAL, 0, count + 3, NATIVE),
        insn(LOAD, 0, 0, 0),
        insn(AT_LEAST, count + 1, 0, X32),
    ];
    for (index, call) in (0u8..).zip(calls) {
        program.push(insn(EQUAL, count - index, 0, *call as u32));
    }
    program.push(insn(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    program.push(insn(RETURN, 0, 0, refusal));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the structure and the program that it points to outlive the call, which copies them.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            std::ptr::from_ref(&filter),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_user_is_reported() {
        let error = User::find("no-such-user-here").expect_err("there is none");
        assert!(error.to_string().contains("no such user"));
        assert!(User::find("root").is_ok());
    }

    #[test]
    fn privileges_that_were_given_up_stay_lost() {
        const ALONE: &str = "TRAWL_TEST_ALONE";
        // All threads are affected, so the test runs in a process of its own.
        if std::env::var_os(ALONE).is_none() {
            let own = std::env::current_exe().expect("its path");
            let tried = std::process::Command::new(own)
                .args(["--exact", "rights::privilege::tests::privileges_that_were_given_up_stay_lost"])
                .env(ALONE, "yes")
                .output()
                .expect("it runs");
            let has_run = String::from_utf8_lossy(&tried.stdout).contains("1 passed");
            return assert!(tried.status.success() && has_run, "{tried:?}");
        }
        keep_none().expect("giving up is always allowed");
        let held = rustix::thread::capabilities(None).expect("they can be read");
        assert!(held.effective.is_empty() && held.permitted.is_empty());
        forbid_all_but_files();
        let shell = std::process::Command::new("/bin/true").status();
        assert!(shell.is_err(), "no program can be executed");
        assert!(std::fs::read("/proc/self/stat").is_ok(), "files can be read");
    }
}
