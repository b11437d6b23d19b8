//! The base of the end-to-end tests: a lab for each test, the real binary started and stopped, its summary parsed, and
//! other tools as witnesses.

pub mod binary;
pub mod bundled;
pub mod capture;
pub mod frames;
pub mod generator;
pub mod lab;
pub mod pcapng;
pub mod programs;
pub mod running;
pub mod s3;
pub mod stage;
pub mod strace;
pub mod summary;
pub mod taps;
pub mod tiny;
pub mod tmux;
pub mod traffic;
pub mod turn;
pub mod wait;
pub mod wire;
pub mod witness;
pub mod xdp;

pub use capture::{Capture, Finished, trawl, trawl_in};
pub use lab::{Lab, LineLab};
pub use running::{Done, Running};
pub use summary::Summary;
pub use wait::{amount, wait_until};

use std::io::Write;

use trawl_bpf::probe::KernelFeature;

/// Formats a command line, and splits it into arguments: `args!("capture -i {near} -c 5 'udp port 53'")`.
#[macro_export]
macro_rules! args {
    ($($line:tt)*) => { $crate::split_line(format!($($line)*)) };
}

/// Splits a command line at the spaces outside single quotes. The text stays until the test program ends.
pub fn split_line(line: String) -> Vec<&'static str> {
    let mut is_quoted = false;
    let is_end = |letter| {
        is_quoted ^= letter == '\'';
        letter == ' ' && !is_quoted
    };
    let arguments = line.leak().split(is_end);
    arguments.map(|one| one.trim_matches('\'')).collect()
}

/// Reports that a test cannot run here, bypassing the test runner's capture of output: an unnoticed skip is as bad as a
/// test that passes without testing.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED: {name}: {reason}");
}

/// Returns whether this process is root; otherwise reports that the test is skipped.
pub fn root_or_skip() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("requires root");
    }
    root
}

/// Returns whether the kernel supports tracing programs; otherwise reports that the test is skipped. Such tests run in
/// the virtual machine.
pub fn tracing_or_skip() -> bool {
    if !root_or_skip() {
        return false;
    }
    [KernelFeature::Fentry, KernelFeature::Fexit, KernelFeature::Freplace].into_iter().all(feature_or_skip)
}

/// Returns whether the kernel has the feature; reports that the test is skipped if it is too old or a policy forbids
/// it.
pub fn feature_or_skip(feature: KernelFeature) -> bool {
    match feature.reason_to_skip() {
        None => true,
        Some(reason) => {
            skip(&reason);
            false
        }
    }
}

/// Returns whether a helper of trawl's is next to it; otherwise reports that the test is skipped.
pub fn helper_or_skip(program: &str, build: &str) -> bool {
    let is_built = binary::path().with_file_name(program).exists();
    if !is_built {
        skip(&format!("{program} is not built: {build}"));
    }
    is_built
}

/// Returns whether the programs for stores and agents are built; reports that the test is skipped if one is not.
pub fn fleet_or_skip() -> bool {
    helper_or_skip("trawl-fleet", "make build-fleet") && helper_or_skip("trawl-query", "make build-query")
}

/// Returns whether the programs that the test needs are installed; reports that it is skipped if one is missing.
pub fn tools_or_skip(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &&&str| std::env::split_paths(&path).any(|one| one.join(program).is_file());
    let missing = programs.iter().find(|program| !is_there(program));
    if let Some(program) = missing {
        skip(&format!("{program} is not installed"));
    }
    missing.is_none()
}
