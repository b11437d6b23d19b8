//! What the kernel, the driver or libbpf refuses, in words: the reason, and the command that mends it.

use std::os::fd::AsFd;

use trawl_kernel::Error;
use trawl_kernel::bpf::loader::{LoadFailure, ProgramEntry};
use trawl_kernel::bpf::{info, program};
use trawl_kernel::errno::{EBUSY, EEXIST, EINVAL, ENOSPC, EOPNOTSUPP, EPERM, ERANGE};
use trawl_kernel::ethtool::{Ethtool, Feature};
use trawl_kernel::interface::Interface;
use trawl_kernel::netlink::{Peer, Refusal, XdpAttachment, XdpMode, veth_peer};
use trawl_kernel::netns::Namespace;
use trawl_kernel::probe::{Capability, missing_capabilities};

use crate::dispatcher::Dispatcher;
use crate::site::Site;
use crate::standing::Standing;
use crate::verifier;

/// What a page holds of a packet in native XDP, less the room that the kernel keeps for itself.
const LINEAR_MTU: u32 = 3498;

/// What makes an object file of a source.
const COMPILE: &str = "compile it for BPF: clang -O2 -g -target bpf -c prog.c -o prog.o";

/// A file that is something else.
pub fn not_an_object(label: &str, bytes: &[u8]) -> Error {
    let why = match bytes {
        [] => "the file is empty",
        [b'#', ..] | [b'/', b'*' | b'/', ..] => {
            "it looks like source text, not like an object file"
        }
        _ => "it is not an ELF object file",
    };
    Error::failed(format!("cannot load {label}"), why).mend(COMPILE)
}

/// An ELF file whose head says that it is not for this machine.
pub fn other_machine(label: &str, bytes: &[u8]) -> Option<Error> {
    /// `EI_CLASS` and `EI_DATA` of elf.h, and what stands there.
    const CLASS: usize = 4;
    const DATA: usize = 5;
    const CLASS_32: u8 = 1;
    const ORDERS: [(u8, &str); 2] = [(1, "little-endian"), (2, "big-endian")];
    let own = u8::from(cfg!(target_endian = "big"));
    let why = match (bytes.get(CLASS)?, bytes.get(DATA)?) {
        (&CLASS_32, _) => "it is a 32-bit ELF file, and those for BPF have 64".to_owned(),
        (_, order) => {
            let (_, theirs) = ORDERS.iter().find(|(number, _)| number == order)?;
            let (_, ours) = ORDERS[usize::from(own)];
            if *theirs == ours {
                return None;
            }
            format!("it was compiled for {theirs} machines, and this one is {ours}")
        }
    };
    Some(Error::failed(format!("cannot load {label}"), why).mend(COMPILE))
}

/// libbpf cannot make sense of an ELF file.
pub fn cannot_open(label: &str, failure: &LoadFailure) -> Error {
    let what = format!("cannot load {label}");
    if failure
        .warnings
        .iter()
        .any(|text| text.contains("not a valid BPF object") || text.contains("is not a valid eBPF"))
    {
        return Error::failed(what, "it is an ELF file, but not one for BPF").mend(COMPILE);
    }
    match libbpf_says(failure) {
        // Of a file that is cut off, libbpf misses what stands at its end.
        Some(says) if says.starts_with("elf: ") => Error::failed(
            what,
            format!("it is cut off or damaged; libbpf says: {says}"),
        )
        .mend(COMPILE),
        Some(says) if says.starts_with("BTF is required") => Error::failed(
            what,
            "it has no type information, by which its maps are described",
        )
        .mend("compile it with -g"),
        Some(says) => Error::failed(what, format!("libbpf says: {says}")),
        None => Error::os(what, again(&failure.error)),
    }
}

/// The program calls what is for programs under the GPL alone.
pub fn is_about_licence(failure: &LoadFailure) -> bool {
    failure.log.contains("GPL-restricted")
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
        let error = Error::failed(what, format!("the verifier refuses it: {reason}"));
        return match is_about_licence(failure) {
            true => error.mend("say in its source: char LICENSE[] SEC(\"license\") = \"GPL\";"),
            false => error,
        };
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
pub fn occupied(
    site: &Site,
    present: XdpAttachment,
    standing: &[Standing],
    tappable: bool,
) -> Error {
    let id = present.program_id;
    if let Some(dispatcher) = Dispatcher::read(id) {
        let there = format!(
            "a chain by libxdp's protocol is on it (dispatcher {id}, programs: {})",
            dispatcher.members.len()
        );
        let what = format!("cannot attach to {}", site.label());
        let otherwise = format!(
            "--replace takes the whole chain's place; trawl xdp unload {} --all takes it off",
            site.label()
        );
        return match tappable {
            true => Error::failed(
                what,
                format!("{there}, and programs with hooks cannot join such a chain"),
            )
            .mend(format!(
                "leave out --tappable, for a bundled program with --prio N: trawl capture -i {} -p NAME sees the programs \
                 of this chain without hooks; {otherwise}",
                site.label()
            )),
            false => Error::failed(what, there)
                .mend(format!("--prio N puts the program into it; {otherwise}")),
        };
    }
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
        "{}--replace puts the new one in its place; trawl xdp unload {} {id} takes it off",
        match ours.map(|ours| ours.seat().is_some()) {
            Some(true) => "--prio N puts it into the chain there; ",
            Some(false) => "to have both, load each with --prio N; ",
            None => "",
        },
        site.label()
    ))
}

/// The card does not take the program, or its maps.
pub fn cannot_offload(site: &Site, program: &str) -> Error {
    let driver = Interface::find(site.namespace(), site.name())
        .map_or_else(|_| "unknown".to_owned(), |about| about.hardware_text());
    Error::failed(
        format!("cannot load {program} for the card of {}", site.label()),
        format!("the card or its driver ({driver}) does not run XDP programs itself"),
    )
    .mend("--mode native, or --mode skb")
}

/// The kernel or the driver does not take the program.
pub fn cannot_attach(site: &Site, program: &str, mode: XdpMode, refusal: Refusal) -> Error {
    Attempt::new(site, program, mode, refusal).explain()
}

/// An attachment that was refused, and what is known of the interface.
struct Attempt<'a> {
    site: &'a Site,
    mode: XdpMode,
    refusal: Refusal,
    what: String,
    /// The kernel's or the driver's own words, in brackets.
    quoted: String,
    driver: String,
    interface: Option<Interface>,
    peer: Option<Peer>,
}

impl<'a> Attempt<'a> {
    fn new(site: &'a Site, program: &str, mode: XdpMode, refusal: Refusal) -> Self {
        let interface = Interface::find(site.namespace(), site.name()).ok();
        let link = site.link().ok();
        Self {
            what: format!(
                "cannot attach {program} to {} in {} mode",
                site.label(),
                mode.name()
            ),
            quoted: match &refusal.says {
                Some(says) => format!(" (the kernel says: {says})"),
                None => String::new(),
            },
            driver: interface
                .as_ref()
                .map_or_else(|| "unknown".to_owned(), Interface::hardware_text),
            interface,
            peer: link.and_then(|link| veth_peer(site.namespace(), &link).ok().flatten()),
            site,
            mode,
            refusal,
        }
    }

    fn fail(&self, why: impl std::fmt::Display) -> Error {
        Error::failed(self.what.clone(), format!("{why}{}", self.quoted))
    }

    fn says(&self, words: &[&str]) -> bool {
        let says = self.refusal.says.as_deref().unwrap_or_default();
        let says = says.to_ascii_lowercase();
        words.iter().any(|word| says.contains(word))
    }

    fn is_veth(&self) -> bool {
        self.driver == "veth"
    }

    fn explain(self) -> Error {
        let errno = self.refusal.errno;
        let silent = self.refusal.says.is_none();
        if errno == EPERM && silent {
            return Error::os(self.what, std::io::Error::from_raw_os_error(EPERM))
                .mend("it takes root (CAP_NET_ADMIN)");
        }
        if self.says(&["mtu", "too large", "single-buffer", "jumbo", "frame size"])
            || (errno == ERANGE && silent)
        {
            return self.too_large();
        }
        if self.says(&["queue", "tx ring", "channel"]) || (errno == ENOSPC && silent) {
            return self.too_few_queues();
        }
        let offloads = [
            "lro",
            "gro_hw",
            "gro-hw",
            "csum",
            "offload",
            "gso",
            "rxvlan",
            "header-split",
            "hds",
        ];
        if self.mode != XdpMode::Offload && self.says(&offloads) {
            return self.offload_in_the_way();
        }
        let same_place = self.site.label();
        match (self.mode, errno) {
            (XdpMode::Offload, EOPNOTSUPP | EINVAL) => self
                .fail(format!(
                    "the card or its driver ({}) does not run XDP programs itself",
                    self.driver
                ))
                .mend("--mode native, or --mode skb"),
            (XdpMode::Native, EOPNOTSUPP) => self
                .fail(format!("the driver ({}) has no native XDP", self.driver))
                .mend("--mode skb"),
            (_, EBUSY | EEXIST) => self
                .fail("another program is on it")
                .mend(format!("trawl xdp status -i {same_place} shows which")),
            _ => match &self.refusal.says {
                Some(says) => Error::failed(self.what.clone(), format!("the kernel says: {says}")),
                None => Error::os(self.what, std::io::Error::from_raw_os_error(errno)),
            },
        }
    }

    /// Packets that do not fit into a page come in pieces.
    fn too_large(self) -> Error {
        let others = "or compile the program with SEC(\"xdp.frags\"), if it copes with packets in several pieces; or \
                      --mode skb";
        let pieces = "for native XDP with a program that takes packets only in one piece";
        let of_peer = self.says(&["peer"]) || (self.is_veth() && !self.says(&["mtu"]));
        if !of_peer {
            let mtu = self.interface.as_ref().map_or(0, |about| about.mtu);
            return self
                .fail(format!("its MTU of {mtu} is too large {pieces}"))
                .mend(format!(
                    "{}ip link set {} mtu {LINEAR_MTU}; {others}",
                    self.site.prefix(),
                    self.site.name()
                ));
        }
        match &self.peer {
            Some(peer) => self
                .fail(format!(
                    "the MTU of its other end {}, {}, is too large {pieces}",
                    peer.link.name, peer.link.mtu
                ))
                .mend(format!(
                    "{}ip link set {} mtu {LINEAR_MTU}; {others}",
                    prefix_of(peer),
                    peer.link.name
                )),
            None => self
                .fail(format!("the MTU of its other end is too large {pieces}"))
                .mend(format!(
                    "ip link set mtu {LINEAR_MTU} on the other end; {others}"
                )),
        }
    }

    fn too_few_queues(self) -> Error {
        let (prefix, name) = (self.site.prefix(), self.site.name());
        let channels = |namespace: Option<&Namespace>, name: &str| {
            Ethtool::open(namespace, name).ok()?.channels().ok()
        };
        let own = channels(self.site.namespace(), name);
        let theirs = self
            .peer
            .as_ref()
            .and_then(|peer| channels(peer.namespace.as_ref(), &peer.link.name));
        if let (true, Some(own), Some(theirs), Some(peer)) =
            (self.is_veth(), own, theirs, &self.peer)
        {
            let mend = match theirs.tx <= own.max_rx {
                true => format!("{prefix}ethtool -L {name} rx {}", theirs.tx),
                false => format!(
                    "{}ethtool -L {} tx {}",
                    prefix_of(peer),
                    peer.link.name,
                    own.rx
                ),
            };
            return self
                .fail(format!(
                    "it has {} receive queues, too few for what the {} send queues of its other end {} send",
                    own.rx, theirs.tx, peer.link.name
                ))
                .mend(format!("{mend}; or --mode skb"));
        }
        let few = own.map_or_else(String::new, |own| {
            format!(
                " ({} in use of {})",
                own.combined.max(own.rx),
                own.max_combined.max(own.max_rx)
            )
        });
        self.fail(format!(
            "its queues{few} leave none for XDP to send from, or are too few"
        ))
        .mend(format!(
            "{prefix}ethtool -L {name} combined N, with N half of what there is; or --mode skb"
        ))
    }

    fn offload_in_the_way(self) -> Error {
        let (prefix, name) = (self.site.prefix(), self.site.name());
        let features = Ethtool::open(self.site.namespace(), name)
            .and_then(|ethtool| ethtool.features())
            .unwrap_or_default();
        // Those that drivers refuse XDP for, by the names that ethtool takes.
        let suspects = ["rx-lro", "rx-gro-hw", "rx-vlan-hw-parse", "rx-checksum"];
        let on: Vec<_> = suspects
            .into_iter()
            .filter(|suspect| {
                let named = |one: &&Feature| one.name == *suspect && one.on && one.changeable;
                features.iter().any(|one| named(&one))
            })
            .map(|suspect| format!("{suspect} off"))
            .collect();
        let mend = match on.is_empty() {
            true => format!("trawl doctor -i {} shows the offloads", self.site.label()),
            false => format!("{prefix}ethtool -K {name} {}", on.join(" ")),
        };
        self.fail("an offload is in the way")
            .mend(format!("{mend}; or --mode skb"))
    }
}

fn prefix_of(peer: &Peer) -> String {
    peer.namespace
        .as_ref()
        .map_or_else(String::new, Namespace::exec_prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the kind that drivers use, and what a person is told.
    #[test]
    fn the_words_of_drivers_are_understood() {
        let site = Site::find("lo", None).expect("every namespace has one");
        const LARGE: &str = "is too large for native XDP";
        const QUEUES: &str = "leave none for XDP to send from";
        const OFFLOAD: &str = "an offload is in the way";
        for (errno, says, expected) in [
            // virtio_net
            (
                EOPNOTSUPP,
                "Can't set XDP while host is implementing GRO_HW/CSUM, disable GRO_HW/CSUM first",
                OFFLOAD,
            ),
            (EINVAL, "MTU too large to enable XDP without frags", LARGE),
            (EINVAL, "MTU 9000 larger than limit 3506", LARGE),
            // ena
            (
                EINVAL,
                "Failed to set xdp program, the Rx/Tx channel count should be at most half of the maximum allowed channel count. The current queue count (8), the maximal queue count (8)",
                QUEUES,
            ),
            // bnxt
            (
                EOPNOTSUPP,
                "ethtool rx/tx channels must be combined to support XDP",
                QUEUES,
            ),
            // stmmac
            (EOPNOTSUPP, "Jumbo frames not supported", LARGE),
            // ice, i40e
            (
                EOPNOTSUPP,
                "MTU is too large for linear frames and XDP prog does not support frags",
                LARGE,
            ),
            // mlx5
            (
                EINVAL,
                "can't set XDP with LRO is on, disable LRO first",
                OFFLOAD,
            ),
            (EINVAL, "XDP is not supported with header-split", OFFLOAD),
            // The kernel itself.
            (
                EBUSY,
                "Driver already has an XDP program: it is attached otherwise",
                "another program is on it",
            ),
        ] {
            let refusal = Refusal {
                errno,
                says: Some(says.to_owned()),
            };
            let told = cannot_attach(&site, "filter", XdpMode::Native, refusal).to_string();
            assert!(told.contains(expected), "{says}: {told}");
            assert!(told.contains(says), "the driver's own words: {told}");
        }
    }
}
