//! Checks of a machine and its interfaces: supported features, obstacles to a capture, and their fixes.

mod attached;
mod interface;
mod offload;
pub mod versions;
mod veth;

use std::os::fd::AsFd;
use std::path::PathBuf;

use serde::Serialize;
use trawl_bpf::bpffs;
use trawl_bpf::probe::{self, Capability, KernelFeature, ProbeAnswer};
use trawl_bpf::process_watch::{self, Refusal};
use trawl_bpf::slow_watch;
use trawl_io::dpdk::{self, Presence};

use crate::process;
use crate::taps::trace;

pub use interface::examine as interface;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    Ok,
    /// Neither good nor bad.
    Info,
    /// A feature will not work, or behaves differently from what users expect.
    Warn,
    /// Prevents capturing.
    Problem,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Subject area: `system`, `privileges`, `kernel`, `bpffs`, `helpers`, or the interface.
    pub area: String,
    pub subject: String,
    pub state: CheckState,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Command, or else advice, that fixes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn new(area: &str, subject: &str, state: CheckState, text: impl Into<String>) -> Self {
        Self { area: area.to_owned(), subject: subject.to_owned(), state, text: text.into(), why: None, fix: None }
    }

    fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Returns true if a finding prevents capturing.
pub fn has_problem(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.state == CheckState::Problem)
}

/// Features without which at most the packet tap works.
const ESSENTIAL: [KernelFeature; 6] = [
    KernelFeature::Bpf,
    KernelFeature::MmapableArray,
    KernelFeature::LargeMap,
    KernelFeature::Xdp,
    KernelFeature::XdpLink,
    KernelFeature::PacketV3,
];

/// Returns the findings that do not depend on an interface.
pub fn machine() -> Vec<Finding> {
    let mut findings = vec![Finding::new("system", "kernel", CheckState::Info, trawl_sys::host::kernel_release())];
    findings.extend(Capability::ALL.into_iter().map(capability));
    findings.extend(KernelFeature::ALL.iter().map(|feature| judge(*feature, answer_of(*feature))));
    findings.extend(processes());
    findings.push(slow_connections());
    findings.push(file_system());
    findings.push(dpdk_helper());
    findings
}

/// Checks the hooks by which captures name the process of each packet.
fn processes() -> Vec<Finding> {
    let new = |state, text: String| Finding::new("kernel", "process", state, text);
    let purpose = "the process of each packet (--process)";
    if !probe::has_socket_of_file() {
        let finding = new(CheckState::Warn, format!("unavailable: {purpose}"));
        return vec![finding.why("the kernel is older than Linux 5.11")];
    }
    if let Some(why) = probe::lockdown_of_reads() {
        let text = format!("refused: {purpose}");
        return vec![new(CheckState::Warn, text).why(why)];
    }
    let cgroups = match process::cgroups() {
        Ok(cgroups) => cgroups,
        Err(error) => {
            let finding = new(CheckState::Warn, format!("unavailable: {purpose}"));
            return vec![finding.why(error.why()).fix("run trawl as root")];
        }
    };
    let refusals = process_watch::refusals(cgroups.as_fd());
    if refusals.is_empty() {
        return vec![new(CheckState::Ok, purpose.to_owned())];
    }
    let refused = |Refusal { hook, by }: Refusal| {
        new(CheckState::Warn, format!("refused: {purpose} at {hook}"))
            .why(format!("{by} is attached at the root cgroup and allows no other program"))
            .fix(format!(
                "attach it so that it allows others: bpftool cgroup attach ROOT {hook} id {} multi",
                by.program_id
            ))
    };
    refusals.into_iter().map(refused).collect()
}

/// Checks the tracepoints at which connections are measured.
fn slow_connections() -> Finding {
    let new = |state, text: String| Finding::new("kernel", "slow", state, text);
    let purpose = "why connections are slow (trawl slow)";
    if let Some(why) = slow_watch::obstacle() {
        return new(CheckState::Warn, format!("unavailable: {purpose}")).why(why);
    }
    if !slow_watch::sees_answers() {
        let finding = new(CheckState::Warn, format!("without answers of name servers: {purpose}"));
        return finding.why("the kernel is older than Linux 6.3, and allows no program at its functions");
    }
    if !slow_watch::sees_all_sockets() {
        let text = format!("{purpose}; a socket that is no open file of a process, only as it closes");
        return new(CheckState::Ok, text).why("the kernel refuses an iterator over the storage of sockets");
    }
    new(CheckState::Ok, purpose.to_owned())
}

/// Checks the DPDK helper. Few machines have DPDK, so the helper is worth a warning only if it is installed and
/// useless.
fn dpdk_helper() -> Finding {
    const BUILD: &str = "make build-dpdk";
    let new = |state, text: String| Finding::new("helpers", dpdk::PROGRAM, state, text);
    let useless = |program: PathBuf, why: &str| {
        let text = format!("the dpdk tap cannot be used: {}", program.display());
        new(CheckState::Warn, text).why(why).fix(BUILD)
    };
    match dpdk::presence() {
        Presence::Ready { program, dpdk } => {
            new(CheckState::Ok, format!("the dpdk tap, for {dpdk}: {}", program.display()))
        }
        Presence::NotThere => new(CheckState::Info, "not installed: the dpdk tap".to_owned()).fix(BUILD),
        Presence::DoesNotRun { program, said } => useless(program, &format!("it does not run: {said}")),
        Presence::OtherBuild { program } => useless(program, "it belongs to another build of trawl"),
    }
}

fn capability(capability: Capability) -> Finding {
    let new = |state, text: String| Finding::new("privileges", capability.name(), state, text);
    if probe::has_capability(capability) {
        return new(CheckState::Ok, capability.purpose().to_owned());
    }
    let text = format!("missing: {}", capability.purpose());
    match capability {
        // Only old kernels count maps against the limit, and there the map itself fails.
        Capability::SysResource if KernelFeature::LargeMap.probe().is_supported() => {
            new(CheckState::Info, text).why("not needed: this kernel does not limit locked memory for BPF")
        }
        Capability::SysResource | Capability::SysAdmin => new(CheckState::Warn, text).fix("run trawl as root"),
        _ => new(CheckState::Problem, text).fix("run trawl as root"),
    }
}

/// Returns the kernel's answer about a feature. For a supported tracing program, the answer is a refusal if the kernel
/// refuses another program that the tap needs too.
fn answer_of(feature: KernelFeature) -> &'static ProbeAnswer {
    let answer = feature.probe();
    match feature {
        KernelFeature::Fentry | KernelFeature::Fexit if answer.is_supported() => trace::refusal().unwrap_or(answer),
        _ => answer,
    }
}

fn judge(feature: KernelFeature, answer: &ProbeAnswer) -> Finding {
    let new = |state, text: String| Finding::new("kernel", feature.name(), state, text);
    let Some(why) = answer.why() else {
        return new(CheckState::Ok, feature.purpose().to_owned());
    };
    let state = if ESSENTIAL.contains(&feature) { CheckState::Problem } else { CheckState::Warn };
    let verb = match answer {
        ProbeAnswer::Refused { .. } => "refused",
        _ => "unavailable",
    };
    let finding = new(state, format!("{verb}: {}", feature.purpose())).why(why);
    match fix(feature, answer) {
        Some(fix) => finding.fix(fix),
        None => finding,
    }
}

fn fix(feature: KernelFeature, answer: &ProbeAnswer) -> Option<&'static str> {
    Some(match (feature, answer) {
        (KernelFeature::Jit, _) => "sysctl -w net.core.bpf_jit_enable=1",
        (KernelFeature::LargeMap, ProbeAnswer::Refused { .. }) => "ulimit -l unlimited",
        (KernelFeature::Fentry | KernelFeature::Fexit, _) => {
            "trawl capture -i IF --tappable FILE.o gives an attached program hooks for the capture, trawl xdp load IF FILE.o --replace --keep-maps --tappable for longer; --tap tc and --tap packet need none"
        }
        (KernelFeature::Freplace, _) => "nothing to do: chains by tail calls are used instead",
        (KernelFeature::Tcx, _) => "nothing to do: clsact is used instead",
        (KernelFeature::TaiClock, _) => "nothing to do: the monotonic clock and its offset are used instead",
        (_, ProbeAnswer::Refused { .. }) if !probe::missing_capabilities(&Capability::FOR_BPF).is_empty() => {
            "run trawl as root"
        }
        _ => return None,
    })
}

fn file_system() -> Finding {
    let mounts = bpffs::mounts();
    let Some(first) = mounts.first() else {
        return Finding::new("bpffs", "mount", CheckState::Warn, "no BPF file system is mounted here")
            .why("pinned hook maps cannot be found; `ip netns exec` hides it")
            .fix(format!("mount -t bpf -o mode=0700 bpf {}; or use --netns instead of ip netns exec", bpffs::USUAL));
    };
    let pins = bpffs::pinned().len();
    let things = if pins == 1 { "object" } else { "objects" };
    Finding::new("bpffs", "mount", CheckState::Ok, format!("{}, {pins} pinned {things}", first.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_features_are_problems_if_essential_and_warnings_otherwise() {
        let missing = ProbeAnswer::NotSupported { why: "x".to_owned() };
        assert_eq!(judge(KernelFeature::Xdp, &missing).state, CheckState::Problem);
        assert_eq!(judge(KernelFeature::Tcx, &missing).state, CheckState::Warn);
        assert_eq!(judge(KernelFeature::Xdp, &ProbeAnswer::Supported).state, CheckState::Ok);
    }

    #[test]
    fn refusal_is_reported_with_its_reason() {
        let refused = ProbeAnswer::Refused { errno: 1, why: "a policy".to_owned() };
        let finding = judge(KernelFeature::Fentry, &refused);
        assert!(finding.text.starts_with("refused"), "{finding:?}");
        assert_eq!(finding.why.as_deref(), Some("a policy"));
        let advice = finding.fix.expect("advice");
        assert!(
            advice.contains("trawl capture -i IF --tappable FILE.o") && advice.contains("trawl xdp load IF FILE.o "),
            "{advice}"
        );
    }

    #[test]
    fn each_feature_and_capability_is_named_once() {
        let findings = machine();
        for feature in KernelFeature::ALL {
            let times = findings.iter().filter(|f| f.subject == feature.name()).count();
            assert_eq!(times, 1, "{}", feature.name());
        }
        assert!(findings.iter().any(|f| f.subject == "CAP_NET_RAW"));
    }
}
