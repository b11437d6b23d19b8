//! The virtual machine tier on hosts without support, or with a failing machine: `scripts/test --vm` with stand-ins for
//! the programs that it calls.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use trawl_tests::lab::Directory;
use trawl_tests::{tools_or_skip, wait_until};

/// Directories in which the scripts find programs and write their files.
struct Place {
    directory: Directory,
    path: String,
}

impl Place {
    /// Prepends these stand-ins, each a shell script, to the path.
    fn new(stand_ins: &[(&str, &str)]) -> Option<Self> {
        let tools = ["bash", "awk", "tee", "mktemp", "flock", "jq", "setpriv"];
        if !tools_or_skip(&tools) {
            return None;
        }
        let directory = Directory::new();
        let programs = directory.path().join("programs");
        fs::create_dir(&programs).expect("a directory");
        for (name, script) in stand_ins {
            let file = programs.join(name);
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its mode");
        }
        let usual = std::env::var("PATH").expect("a path");
        let path = format!("{}:{usual}", programs.display());
        Some(Self { directory, path })
    }

    /// Hides QEMU from the path, keeping all other programs.
    fn hide_qemu(&mut self) {
        let programs = self.directory.path().join("programs");
        for directory in std::env::split_paths(&std::env::var_os("PATH").expect("a path")) {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if !name.to_string_lossy().starts_with("qemu") {
                    // The first program of a name in the path is the one that runs.
                    let _ = symlink(entry.path(), programs.join(name));
                }
            }
        }
        self.path = programs.display().to_string();
    }

    fn target(&self) -> PathBuf {
        self.directory.path().join("target")
    }

    /// Creates the files by which the scripts find that the kernel exists and that the programs are built.
    fn have_all(&self) {
        let machine = self.target().join("machine");
        let modules = machine.join("kernel/lib/modules/6.1");
        for directory in
            [machine.join("kernel/boot"), machine.join("busybox/bin"), self.target().join("vm"), modules.clone()]
        {
            fs::create_dir_all(directory).expect("a directory");
        }
        let busybox = machine.join("busybox/bin/busybox");
        fs::write(&busybox, "#!/bin/sh\ncat >/dev/null\n").expect("a file");
        fs::set_permissions(&busybox, fs::Permissions::from_mode(0o755)).expect("its mode");
        for file in [
            machine.join("kernel.ready"),
            machine.join("busybox.ready"),
            machine.join("kernel/boot/vmlinuz-6.1"),
            modules.join("modules.dep"),
            modules.join("modules.builtin"),
            self.target().join("vm/trawl"),
            self.target().join("vm/trawl-bench"),
        ] {
            fs::write(file, "").expect("a file");
        }
    }

    fn start(&self, variables: &[(&str, &str)]) -> Child {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a directory above");
        // A background shell and its children ignore SIGINT.
        Command::new("env")
            .arg("--default-signal=INT")
            .arg(root.join("scripts/test-vm"))
            .env("PATH", &self.path)
            .env("TMPDIR", self.directory.path())
            .env("CARGO_TARGET_DIR", self.target())
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the script starts")
    }

    fn run(&self, variables: &[(&str, &str)]) -> (Output, String) {
        let output = self.start(variables).wait_with_output().expect("its end");
        let both = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8_lossy(&both).into_owned();
        (output, said)
    }

    #[track_caller]
    fn assert_skipped(&self, why: &str) {
        let (output, said) = self.run(&[]);
        assert!(output.status.success(), "{said}");
        let line = format!("test virtual_machine ... ignored, {why}");
        assert!(said.contains(&line), "{said}");
        assert!(said.contains("0 failed; 1 ignored"), "{said}");
    }

    /// Checks that the stand-in for QEMU, which has written its process id, is gone.
    #[track_caller]
    fn assert_no_machine(&self) {
        let number = fs::read_to_string(self.target().join("number")).expect("a number");
        let process = format!("/proc/{}/stat", number.trim());
        wait_until("the machine is gone", || fs::read_to_string(&process).map_or(true, |stat| stat.contains(") Z ")));
        let left: Vec<_> = fs::read_dir(self.directory.path())
            .expect("the directory")
            .flatten()
            .map(|entry| entry.file_name())
            .filter(|name| name != "programs" && name != "target")
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

const QEMU: &str = "qemu-system-x86_64";
const CARGO: (&str, &str) = ("cargo", "true");
/// Prints to its console, and then hangs.
const HANGS: (&str, &str) = (
    QEMU,
    "echo the last words >\"$CARGO_TARGET_DIR/machine/0/console.log\"\n\
     echo $$ >\"$CARGO_TARGET_DIR/written\"; mv \"$CARGO_TARGET_DIR/written\" \"$CARGO_TARGET_DIR/number\"\n\
     exec sleep 1000",
);

#[test]
fn another_architecture_is_skipped() {
    let Some(place) = Place::new(&[("uname", "echo aarch64")]) else {
        return;
    };
    place.assert_skipped("the host is not an x86-64 machine");
}

#[test]
fn host_without_qemu_is_skipped() {
    let Some(mut place) = Place::new(&[]) else {
        return;
    };
    place.hide_qemu();
    place.assert_skipped("qemu-system-x86_64 is not installed (apt-get install qemu-system-x86)");
}

#[test]
fn unavailable_kernel_is_skipped() {
    let stand_ins = [(QEMU, "exit 9"), ("apt-get", "exit 100"), ("apt-cache", "true")];
    let Some(place) = Place::new(&stand_ins) else {
        return;
    };
    place.assert_skipped("its kernel cannot be fetched with apt");
}

#[test]
fn hanging_machine_fails_with_its_last_output() {
    let Some(place) = Place::new(&[CARGO, HANGS]) else {
        return;
    };
    place.have_all();
    for (limit, words) in [
        ("TRAWL_VM_BOOT_TIMEOUT", "had not started after 1 s"),
        ("TRAWL_VM_TIMEOUT", "was not done after 1 s"),
        ("TRAWL_VM_SILENCE", "printed nothing for 1 s"),
    ] {
        let (output, said) = place.run(&[(limit, "1")]);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("the last words\n"), "{said}");
        assert!(said.contains(words), "{said}");
        place.assert_no_machine();
    }
}

#[test]
fn machine_that_ends_early_fails_with_its_last_output() {
    let ends = "echo the last words >\"$CARGO_TARGET_DIR/machine/0/console.log\"; exit 0";
    let Some(place) = Place::new(&[CARGO, (QEMU, ends)]) else {
        return;
    };
    place.have_all();
    let (output, said) = place.run(&[]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the last words\n"), "{said}");
    assert!(said.contains("ended before its tests did"), "{said}");
}

#[test]
fn interrupted_machine_leaves_nothing() {
    for (signal, left) in [(Signal::INT, true), (Signal::TERM, true), (Signal::KILL, false)] {
        let Some(place) = Place::new(&[CARGO, HANGS]) else {
            return;
        };
        place.have_all();
        let mut script = place.start(&[]);
        let number = place.target().join("number");
        wait_until("the machine is started", || number.exists());
        kill_process(Pid::from_child(&script), signal).expect("it runs");
        let status = script.wait().expect("its end");
        assert!(!status.success());
        // A script that is killed at once cannot remove its directory.
        if left {
            place.assert_no_machine();
        } else {
            let process = format!("/proc/{}", fs::read_to_string(&number).expect("a number").trim());
            wait_until("the machine is gone", || !Path::new(&process).exists());
        }
    }
}
