//! Giving up what a command does not need once it is set up: another user, no capabilities, no way to gain any.

use std::ffi::CString;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::{Error, Result};

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    name: CString,
    uid: libc::uid_t,
    gid: libc::gid_t,
}

impl User {
    pub fn find(name: &str) -> Result<Self> {
        let what = || format!("cannot change to user {name}");
        let name = CString::new(name).map_err(|e| Error::usage(what(), e))?;
        // SAFETY: the name is a C string, and what is returned points into memory of libc's that stays as it is until
        // the next such call; no other thread makes one. It is copied at once.
        let (uid, gid) = unsafe {
            let entry = libc::getpwnam(name.as_ptr());
            if entry.is_null() {
                return Err(Error::usage(what(), "there is no such user")
                    .fix("'getent passwd' lists those there are"));
            }
            ((*entry).pw_uid, (*entry).pw_gid)
        };
        Ok(Self { name, uid, gid })
    }

    /// Changes to this user with its groups. All capabilities go with the change where this was root.
    pub fn become_it(&self) -> Result<()> {
        let what = || format!("cannot change to user {}", self.name.to_string_lossy());
        // SAFETY: plain numbers and a C string that outlives the calls. libc changes all threads of the process.
        let changed = unsafe {
            libc::initgroups(self.name.as_ptr(), self.gid) == 0
                && libc::setgid(self.gid) == 0
                && libc::setuid(self.uid) == 0
        };
        if changed {
            Ok(())
        } else {
            Err(Error::os(what(), std::io::Error::last_os_error())
                .fix("run it as root, or leave out -Z"))
        }
    }
}

/// Gives up all capabilities but these, for this thread and what it starts later, and any way to gain others: nothing
/// that is executed from now on has more rights than this.
pub fn keep_only(capabilities: CapabilitySet) -> Result<()> {
    let fail = |e: rustix::io::Errno| Error::os("cannot give up privileges", e.into());
    set_no_new_privs(true).map_err(fail)?;
    let held = rustix::thread::capabilities(None).map_err(fail)?;
    let kept = capabilities & held.permitted;
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )
    .map_err(fail)
}

/// Gives up all capabilities: for commands that only read files which are open already.
pub fn keep_none() -> Result<()> {
    keep_only(CapabilitySet::empty())
}

pub use rustix::thread::CapabilitySet as Capabilities;

/// From now on this process may not execute programs, open sockets, trace others, mount, or load BPF programs and
/// modules. Where the kernel has no seccomp filters, nothing is restricted, and that is no failure.
pub fn forbid_all_but_files() {
    let forbidden: [libc::c_long; 16] = [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_setns,
        libc::SYS_unshare,
        libc::SYS_bpf,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_kexec_load,
    ];
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let insn = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // The number of the call is the first field of what the filter is given.
    let mut program = vec![insn(LOAD, 0, 0, 0)];
    for (index, call) in forbidden.iter().enumerate() {
        let to_refusal = (forbidden.len() - index) as u8;
        program.push(insn(EQUAL, to_refusal, 0, *call as u32));
    }
    program.push(insn(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    program.push(insn(RETURN, 0, 0, refusal));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the structure and the program that it points to outlive the call, which copies them.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            std::ptr::from_ref(&filter),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_user_is_told() {
        let error = User::find("no-such-user-here").expect_err("there is none");
        assert!(error.to_string().contains("no such user"));
        assert!(User::find("root").is_ok());
    }

    #[test]
    fn what_was_given_up_stays_so() {
        let thread = std::thread::spawn(|| {
            keep_none().expect("giving up is always allowed");
            let held = rustix::thread::capabilities(None).expect("they can be read");
            assert!(held.effective.is_empty() && held.permitted.is_empty());
            forbid_all_but_files();
            let shell = std::process::Command::new("/bin/true").status();
            assert!(shell.is_err(), "no program can be executed");
            assert!(
                std::fs::read("/proc/self/stat").is_ok(),
                "files can be read"
            );
        });
        thread.join().expect("no panic");
    }
}
