//! What the kernel, the driver or libbpf refuses, in words: the reason, and the command that mends it.

use std::os::fd::AsFd;

use trawl_kernel::Error;
use trawl_kernel::bpf::loader::{LoadFailure, ProgramEntry};
use trawl_kernel::bpf::{info, program};
use trawl_kernel::errno::{EBUSY, EINVAL, ENOSPC, EOPNOTSUPP, EPERM, ERANGE};
use trawl_kernel::interface::Interface;
use trawl_kernel::netlink::{Refusal, XdpAttachment, XdpMode};
use trawl_kernel::probe::{Capability, missing_capabilities};

use crate::site::Site;
use crate::standing::Standing;
use crate::verifier;

/// What a page holds of a packet in native XDP, less the room that the kernel keeps for itself.
const LINEAR_MTU: u32 = 3498;

/// A file that is something else.
pub fn not_an_object(label: &str, bytes: &[u8]) -> Error {
    let why = match bytes {
        [] => "the file is empty",
        [b'#', ..] | [b'/', b'*' | b'/', ..] => {
            "it looks like source text, not like an object file"
        }
        _ => "it is not an ELF object file",
    };
    Error::failed(format!("cannot load {label}"), why)
        .mend("compile it for BPF: clang -O2 -g -target bpf -c prog.c -o prog.o")
}

/// libbpf cannot make sense of an ELF file.
pub fn cannot_open(label: &str, failure: &LoadFailure) -> Error {
    let what = format!("cannot load {label}");
    if failure
        .warnings
        .iter()
        .any(|text| text.contains("not a valid BPF object") || text.contains("is not a valid eBPF"))
    {
        return Error::failed(what, "it is an ELF file, but not one for BPF")
            .mend("compile it for BPF: clang -O2 -g -target bpf -c prog.c -o prog.o");
    }
    match libbpf_says(failure) {
        Some(says) => Error::failed(what, format!("libbpf says: {says}")),
        None => Error::os(what, again(&failure.error)),
    }
}

/// There is nothing in it that could be attached to an interface.
pub fn no_program(what: &str, programs: &[ProgramEntry]) -> Error {
    let error = Error::failed(what, "it has no XDP program");
    if programs.is_empty() {
        return error.mend("give the function a section: SEC(\"xdp\")");
    }
    let others: Vec<_> = programs
        .iter()
        .map(|one| format!("{} (section {})", one.name, one.section))
        .collect();
    error.mend(format!("it has only: {}", others.join(", ")))
}

/// A program or one of its maps was refused.
pub fn cannot_load(label: &str, program: &str, failure: &LoadFailure) -> Error {
    let what = format!("cannot load {program} of {label}");
    if let Some(reason) = verifier::condense(&failure.log) {
        return Error::failed(what, format!("the verifier refuses it: {reason}"));
    }
    let missing = missing_capabilities(&Capability::FOR_BPF);
    if failure.error.raw_os_error() == Some(EPERM) && !missing.is_empty() {
        let names: Vec<_> = missing.into_iter().map(Capability::name).collect();
        return Error::os(what, again(&failure.error))
            .mend(format!("run it as root, or with {}", names.join(", ")));
    }
    match libbpf_says(failure) {
        Some(says) => Error::failed(what, format!("libbpf says: {says}")),
        None => Error::os(what, again(&failure.error)),
    }
}

/// The program is fine as it is, but not with hooks in it.
pub fn cannot_fit(label: &str, program: &str, failure: &LoadFailure) -> Error {
    let what = format!("cannot make {program} of {label} tappable");
    let why = match verifier::condense(&failure.log).or_else(|| libbpf_says(failure)) {
        Some(reason) => format!("with hooks put in, the verifier refuses it: {reason}"),
        None => Error::os(
            "with hooks put in, the kernel refuses it",
            again(&failure.error),
        )
        .to_string(),
    };
    Error::failed(what, why).mend("load it without --tappable")
}

/// The first complaint is the cause; what follows is what came of it.
fn libbpf_says(failure: &LoadFailure) -> Option<String> {
    let is_hint = |text: &&String| {
        text.contains("permission error while running as root") || text.contains("-- BEGIN")
    };
    let first = failure.warnings.iter().find(|text| !is_hint(text))?;
    let text = first.strip_prefix("libbpf: ").unwrap_or(first);
    Some(text.lines().next()?.trim().to_owned())
}

fn again(error: &std::io::Error) -> std::io::Error {
    match error.raw_os_error() {
        Some(errno) => std::io::Error::from_raw_os_error(errno),
        None => error.kind().into(),
    }
}

/// Something is attached already.
pub fn occupied(site: &Site, present: XdpAttachment, standing: &[Standing]) -> Error {
    let id = present.program_id;
    let ours = standing.iter().find(|one| one.id() == id);
    let name = match ours {
        Some(ours) => format!(
            "{}, which trawl loaded from {},",
            ours.name(),
            ours.source()
        ),
        None => program::open_by_id(id)
            .and_then(|fd| info::program(fd.as_fd()))
            .map_or_else(|_| "a program".to_owned(), |about| about.name),
    };
    Error::failed(
        format!("cannot attach to {}", site.label()),
        format!(
            "{name} is on it already (id {id}, {} mode)",
            present.mode.name()
        ),
    )
    .mend(format!(
        "--replace puts the new one in its place; trawl xdp unload {} {id} takes it off",
        site.label()
    ))
}

/// The kernel or the driver does not take the program.
pub fn cannot_attach(site: &Site, program: &str, mode: XdpMode, refusal: Refusal) -> Error {
    let what = format!(
        "cannot attach {program} to {} in {} mode",
        site.label(),
        mode.name()
    );
    let says = refusal.says.clone().unwrap_or_default();
    let interface = Interface::find(site.namespace(), site.name()).ok();
    let driver = interface
        .as_ref()
        .map_or_else(|| "unknown".to_owned(), Interface::hardware_text);
    let mtu = interface.as_ref().map_or(0, |about| about.mtu);
    let quoted = match says.is_empty() {
        true => String::new(),
        false => format!(" (the kernel says: {says})"),
    };
    let words = says.to_ascii_lowercase();
    let has = |all: &[&str]| all.iter().any(|word| words.contains(word));
    let fail = |why: String| Error::failed(what.clone(), why);
    let prefix = site.prefix();
    let name = site.name();
    if refusal.errno == EPERM && says.is_empty() {
        return Error::os(what, std::io::Error::from_raw_os_error(EPERM))
            .mend("it takes root (CAP_NET_ADMIN)");
    }
    if has(&["mtu"]) || (refusal.errno == ERANGE && says.is_empty()) || has(&["too large"]) {
        let whose = match has(&["peer"]) {
            true => {
                "the MTU of its peer is too large for native XDP with a program that takes packets only in one piece"
            }
            false => {
                "its MTU is too large for native XDP with a program that takes packets only in one piece"
            }
        };
        let where_to = match has(&["peer"]) {
            true => format!("on the peer of {name}: ip link set PEER mtu {LINEAR_MTU}"),
            false => format!("{prefix}ip link set {name} mtu {LINEAR_MTU}"),
        };
        let own = match has(&["peer"]) {
            true => String::new(),
            false => format!(" ({mtu})"),
        };
        return fail(format!("{whose}{own}{quoted}")).mend(format!(
            "{where_to}; or compile the program with SEC(\"xdp.frags\"); or --mode skb"
        ));
    }
    if refusal.errno == ENOSPC || has(&["queue", "tx ring", "channel"]) {
        return fail(format!("it has too few queues{quoted}")).mend(format!(
            "see {prefix}ethtool -l {name}, set them with {prefix}ethtool -L {name}; or --mode skb"
        ));
    }
    if has(&[
        "lro",
        "gro_hw",
        "gro-hw",
        "csum",
        "offload",
        "rxvlan",
        "header-split",
        "hds",
    ]) {
        return fail(format!("an offload is in the way{quoted}")).mend(format!(
            "{prefix}ethtool -K {name} lro off rx-gro-hw off; trawl doctor -i {} shows more",
            site.label()
        ));
    }
    match (mode, refusal.errno) {
        (XdpMode::Offload, EOPNOTSUPP | EINVAL) => fail(format!(
            "the card ({driver}) runs no XDP programs itself{quoted}"
        ))
        .mend("--mode native, or --mode skb"),
        (XdpMode::Native, EOPNOTSUPP) => {
            fail(format!("the driver ({driver}) has no native XDP{quoted}")).mend("--mode skb")
        }
        (_, EBUSY) => fail(format!("another program is on it{quoted}"))
            .mend(format!("trawl xdp status -i {}", site.label())),
        (_, 0) => fail(says),
        _ => match says.is_empty() {
            true => Error::os(what, std::io::Error::from_raw_os_error(refusal.errno)),
            false => fail(format!("the kernel says: {says}")),
        },
    }
}
