//! Refusals of the dpdk tap, and its messages about missing parts.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{FlockOperation, fcntl_lock};
use trawl_tests::lab::{Directory, Files};
use trawl_tests::witness::run;
use trawl_tests::{args, binary, root_or_skip, skip, trawl};

use super::application::Application;

/// A second capture on a port is refused, and so are captures of unknown ports and queues.
#[test]
fn dpdk_refuses_impossible_captures() {
    let Some(application) = Application::on_null() else {
        return;
    };
    let _first = application.capture(&args!("-i dpdk:1 -Q out -w {}", application.lab.file("first.pcapng")));
    let cases: [(&[&str], i32, &str); 6] = [
        (&["-i", "dpdk:1"], 1, "another capture is on port 1 (process "),
        (&["-i", "dpdk:7"], 2, "its ports are 0,1"),
        (&["-i", "dpdk:0", "--queue", "3"], 2, "port 0 has no queue 3"),
        (&["-i", "dpdk:0", "--cpu", "0"], 2, "by CPU with the dpdk tap"),
        (&["-i", "eth0"], 2, "the dpdk tap requires dpdk:PORT"),
        (&["-i", "dpdk:0", "--time", "hw"], 2, "stamps packets by the processor's counter"),
    ];
    let file = application.lab.file("refused.pcapng");
    for (arguments, status, words) in cases {
        let base = args!("capture --tap dpdk --file-prefix {} -w {file}", application.prefix);
        let refused = trawl(&[&base[..], arguments].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert!(!fs::exists(&file).expect("it can be looked for"), "{arguments:?} left a file");
    }
    // The refused captures have left the port's received side free.
    application.capture(&["-i", "dpdk:1", "-Q", "in", "-c", "5", "-w", &file]).wait().summary_of_success();
}

/// A missing helper, application, or version is named in an error with its fix.
#[test]
fn dpdk_names_the_missing_part() {
    if !root_or_skip() {
        return;
    }
    let directory = Directory::new();
    let capture = |helper: &str, prefix: &str| {
        let output = Command::new(binary::path())
            .args(args!("capture --tap dpdk -i dpdk:0 --file-prefix {prefix} -c 1"))
            .env("TRAWL_DPDK", helper)
            .output()
            .expect("trawl runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (status, said) = capture("/nowhere/trawl-dpdk", "none");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("make build-dpdk"), "{said}");
    // The diagnostic commands report it too.
    let looked = |command: &str| {
        let output = Command::new(binary::path())
            .arg(command)
            .env("TRAWL_DPDK", "/nowhere/trawl-dpdk")
            .output()
            .expect("trawl runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for command in ["--version", "doctor", "taps"] {
        let said = looked(command);
        assert!(said.contains("make build-dpdk"), "{command}: {said}");
    }
    // The script acts as a helper of another build.
    let script = |text: &str| {
        let file = directory.path().join("helper");
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("a file");
        run("chmod", &["+x", &file.display().to_string()]);
        file.display().to_string()
    };
    let cases = [
        ("printf 'trawl-dpdk\\t999\\tDPDK 1\\n'; sleep 1", "belongs to another build of trawl"),
        ("printf 'fail\\tversion\\t23.11.0\\t22.11.11\\n'; exit 1", "the application has DPDK 23.11.0"),
        ("echo 'EAL: so it is' >&2; exit 3", "EAL: so it is"),
        ("kill -9 $$", "ended without an error message"),
    ];
    for (text, words) in cases {
        let (status, said) = capture(&script(text), "none");
        assert_eq!(status, Some(1), "{text}: {said}");
        assert!(said.contains(words), "{text}: {said}");
    }
    let helper = binary::path().with_file_name("trawl-dpdk");
    if helper.is_file() {
        let (status, said) = capture(&helper.display().to_string(), "none-such");
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("no DPDK application with the file prefix none-such is running"), "{said}");
    }
}

/// A primary's files under /run/dpdk, without a process.
struct Remains {
    directory: PathBuf,
    config: fs::File,
}

impl Remains {
    fn new(prefix: &str) -> Self {
        let directory = PathBuf::from("/run/dpdk").join(prefix);
        fs::create_dir_all(&directory).expect("a directory");
        let config = fs::File::create(directory.join("config")).expect("a file");
        Self { directory, config }
    }

    fn write(&self, magic: u32, version: u32) {
        let head = [magic.to_le_bytes(), version.to_le_bytes()].concat();
        self.config.write_all_at(&head, 0).expect("written");
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The helper recognises a dead primary, one of another version, and one that is starting before it joins them. Joining
/// a dead one would succeed.
#[test]
fn dpdk_names_the_fault_of_a_primary() {
    if !root_or_skip() {
        return;
    }
    let helper = binary::path().with_file_name("trawl-dpdk");
    if !helper.is_file() {
        skip("trawl-dpdk is not built: make build-dpdk");
        return;
    }
    let prefix = format!("trawlremains{}", std::process::id());
    let remains = Remains::new(&prefix);
    let refused = |words: &str| {
        let arguments = ["capture", "--tap", "dpdk", "-i", "dpdk:0", "--file-prefix"];
        let output = trawl(&[&arguments[..], &[&prefix]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    };
    const MAGIC: u32 = 19_820_526;
    remains.write(MAGIC, 99 << 24 | 11 << 16 | 2 << 8);
    refused("its process has ended");
    // A running primary holds this lock.
    fcntl_lock(&remains.config, FlockOperation::NonBlockingLockExclusive).expect("a lock");
    refused("the application has DPDK 99.11.2, trawl-dpdk");
    remains.write(0, 0);
    refused("has not finished its start");
}
