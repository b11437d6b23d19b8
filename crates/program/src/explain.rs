//! Explains refusals by the kernel, the driver or libbpf: the reason, and the command that fixes it.

mod verifier;

use std::os::fd::AsFd;
use std::path::Path;

use trawl_attach::explain::program_above;
use trawl_attach::{Conflict, Present, ProgramOwner, Site};
use trawl_bpf::loader::{LoadFailure, ProgramEntry};
use trawl_bpf::probe::{Capability, lack_of};
use trawl_bpf::{bpffs, info};
use trawl_sys::Error;
use trawl_sys::errno::ENOSPC;
use trawl_sys::error::copy_of;
use trawl_sys::words::word;

/// Explains a conflict with the programs on the interface, and how to resolve it.
pub fn conflict(site: &Site, program: &str, is_from_file: bool, conflict: Conflict) -> Error {
    let label = site.label();
    let attach = format!("cannot attach to {label}");
    let join = format!("cannot join the chain on {label}");
    let typed = word(label);
    match conflict {
        Conflict::Occupied { by } => occupied(site, &by),
        Conflict::HooksInDispatcher { by } => Error::failed(
            attach,
            format!(
                "{}, and programs with hooks cannot join such a chain",
                chain_of(&by)
            ),
        )
        .fix(format!("leave out --tappable, for a bundled program with --prio N: trawl capture -i {typed} --program NAME sees the programs of this chain without hooks; --replace replaces the whole chain; trawl xdp unload {typed} --all removes it")),
        Conflict::OtherMode { mode } => {
            Error::failed(join, format!("it runs in {} mode", mode.name())).fix(format!("use --mode {}, or --replace to replace the whole chain", mode.name()))
        }
        Conflict::PacketsInPieces => Error::failed(
            join,
            format!(
                "its programs accept packets in several pieces, and {program} only whole ones"
            ),
        )
        .fix("compile it with SEC(\"xdp.frags\"), or load it first"),
        Conflict::ChainFull { programs } => {
            Error::failed(join, format!("it has {programs} programs, the maximum")).fix(
                format!("trawl xdp unload {typed} ID makes room; trawl xdp status shows the programs"),
            )
        }
        Conflict::Above { interface } => program_above(
            format!("cannot attach {program} to {label}"),
            site,
            &interface,
        ),
        Conflict::Guard { id } => Error::failed(
            format!("cannot replace the program on {label}"),
            format!("it is a guard (id {id}): its rules would no longer be enforced"),
        )
        .fix("--prio N puts a program before or after it, --yes replaces it anyway"),
        Conflict::NoPredecessor { running } => Error::failed(
            format!("cannot keep the maps of the program on {label}"),
            format!(
                "no program on it is called {program}: {}",
                running.join(", ")
            ),
        )
        .fix("--replace without --keep-maps starts with new maps"),
        Conflict::ContentsLost { programs, maps } => Error::failed(
            format!("cannot replace {} on {label}", programs.join(", ")),
            format!(
                "the contents of its maps would be lost: {}",
                maps.join(", ")
            ),
        )
        .fix(if is_from_file {
            "--keep-maps gives them to the new program, --yes replaces it anyway"
        } else {
            "--yes replaces it anyway"
        }),
    }
}

fn chain_of(by: &Present) -> String {
    let programs = match by.kind {
        ProgramOwner::Dispatcher { programs } => programs,
        _ => 0,
    };
    format!("a chain by libxdp's protocol is on it (dispatcher {}, programs: {programs})", by.program_id)
}

fn occupied(site: &Site, by: &Present) -> Error {
    let (label, id) = (site.label(), by.program_id);
    let typed = word(label);
    let what = format!("cannot attach to {label}");
    let (name, chain) = match &by.kind {
        ProgramOwner::Dispatcher { .. } => {
            return Error::failed(what, chain_of(by)).fix(format!("--prio N puts the program into it; --replace replaces the whole chain; trawl xdp unload {typed} --all removes it"));
        }
        ProgramOwner::Installed { name, source, chain } => {
            (format!("{name}, which trawl loaded from {source},"), Some(chain.is_some()))
        }
        ProgramOwner::Other { name } => (name.clone().unwrap_or_else(|| "a program".to_owned()), None),
    };
    let join = match chain {
        Some(true) => "--prio N puts it into the present chain; ",
        Some(false) => "to have both, load each with --prio N; ",
        None => "",
    };
    Error::failed(what, format!("{name} is on it already (id {id}, {} mode)", by.mode.name()))
        .fix(format!("{join}--replace replaces it; trawl xdp unload {typed} {id} removes it"))
}

/// Text before the path of an unusable pin in libbpf's messages.
const PINNED_OTHERWISE: [&str; 2] = ["couldn't reuse pinned map at '", "couldn't retrieve pinned map '"];

/// Advice on compiling a source file to an object file.
const COMPILE: &str = "compile it for BPF: clang -O2 -g -target bpf -c prog.c -o prog.o";

/// Explains that a file is not an object file.
pub fn not_an_object(label: &str, bytes: &[u8]) -> Error {
    let why = match bytes {
        [] => "the file is empty",
        [b'#', ..] | [b'/', b'*' | b'/', ..] => "it looks like source text, not like an object file",
        _ => "it is not an ELF object file",
    };
    Error::failed(format!("cannot load {label}"), why).fix(COMPILE)
}

/// Explains that an ELF file is for another machine; `None` if it is not.
pub fn other_machine(label: &str, bytes: &[u8]) -> Option<Error> {
    /// `EI_CLASS` and `EI_DATA` of elf.h, and their values.
    const CLASS: usize = 4;
    const DATA: usize = 5;
    const CLASS_32: u8 = 1;
    const ORDERS: [(u8, &str); 2] = [(1, "little-endian"), (2, "big-endian")];
    let own = u8::from(cfg!(target_endian = "big"));
    let why = match (bytes.get(CLASS)?, bytes.get(DATA)?) {
        (&CLASS_32, _) => "it is a 32-bit ELF file, but BPF object files are 64-bit".to_owned(),
        (_, order) => {
            let (_, theirs) = ORDERS.iter().find(|(number, _)| number == order)?;
            let (_, ours) = ORDERS[usize::from(own)];
            if *theirs == ours {
                return None;
            }
            format!("it was compiled for {theirs} machines, and this one is {ours}")
        }
    };
    Some(Error::failed(format!("cannot load {label}"), why).fix(COMPILE))
}

/// Explains the failure of libbpf to parse an ELF file.
pub fn cannot_open(label: &str, failure: &LoadFailure) -> Error {
    let what = format!("cannot load {label}");
    if failure
        .warnings
        .iter()
        .any(|text| text.contains("not a valid BPF object") || text.contains("is not a valid eBPF"))
    {
        return Error::failed(what, "it is an ELF file, but not one for BPF").fix(COMPILE);
    }
    match libbpf_says(failure) {
        Some(says) if says.contains("legacy map definitions") => {
            Error::failed(what, "its maps are in the old format (SEC(\"maps\")), which libbpf 1.0 removed")
                .fix("write them as struct { __uint(type, …); … } NAME SEC(\".maps\"), and compile with -g")
        }
        Some(says) if says.contains("stripped object file") => {
            Error::failed(what, "its symbols, which name the programs and maps, were removed (strip)")
                .fix(format!("use llvm-strip -g, which keeps the symbols; or {COMPILE}"))
        }
        // For a truncated file, libbpf reports the missing end.
        Some(says) if says.starts_with("elf: ") => {
            Error::failed(what, format!("it is truncated or damaged; libbpf says: {says}")).fix(COMPILE)
        }
        Some(says) if says.starts_with("BTF is required") => {
            Error::failed(what, "it has no type information (BTF), which describes its maps").fix("compile it with -g")
        }
        Some(says) => libbpf_error(what, &says),
        None => Error::os(what, copy_of(&failure.error)),
    }
}

/// Returns true if the program calls functions that are reserved for programs under the GPL.
pub fn is_about_licence(failure: &LoadFailure) -> bool {
    failure.log.contains("GPL-restricted")
}

/// Explains that an object file has no program that could be attached to an interface.
pub fn no_program(what: &str, programs: &[ProgramEntry]) -> Error {
    let error = Error::failed(what, "it has no XDP program");
    if programs.is_empty() {
        return error.fix("give the function a section: SEC(\"xdp\")");
    }
    let others: Vec<_> = programs.iter().map(|one| format!("{} (section {})", one.name, one.section)).collect();
    error.fix(format!("it has only: {}", others.join(", ")))
}

/// Explains that a program of the file cannot be attached to an interface.
pub fn not_attachable(what: &str, program: &ProgramEntry) -> Error {
    let ProgramEntry { name, section, .. } = program;
    let why = match program.fed_by() {
        Some("cpumap") => {
            format!("{name} (section {section}) is for entries of a cpumap and cannot be attached to an interface")
        }
        Some(_) => {
            format!("{name} (section {section}) is for entries of a devmap and cannot be attached to an interface")
        }
        None => format!("{name} (section {section}) is not an XDP program"),
    };
    Error::failed(what, why)
}

/// Explains the refusal of a program or one of its maps.
pub fn cannot_load(label: &str, program: &str, failure: &LoadFailure) -> Error {
    let what = format!("cannot load {program} of {label}");
    // Without these capabilities the verifier is stricter, and its message would mislead.
    if let Some((why, how)) = lack_of(&Capability::FOR_BPF) {
        return Error::failed(what, why).fix(how);
    }
    if failure.error.raw_os_error() == Some(ENOSPC) && !failure.log.is_empty() {
        let why = "the verifier refuses it, and its log overflowed (a loop, probably)";
        return fixed(Error::failed(what, why), verifier::on_verifier("infinite loop"));
    }
    if let Some(found) = verifier::condense(&failure.log) {
        let error = Error::failed(what, format!("the verifier refuses it: {found}"));
        return fixed(error, verifier::on_verifier(&found.reason));
    }
    match libbpf_says(failure) {
        Some(says) => libbpf_error(what, &says),
        None => Error::os(what, copy_of(&failure.error)),
    }
}

fn libbpf_error(what: String, says: &str) -> Error {
    let mut pins = PINNED_OTHERWISE.iter().filter_map(|phrase| says.split_once(phrase));
    if let Some((_, path)) = pins.next()
        && let Some((path, _)) = path.split_once('\'')
    {
        return pinned_otherwise(what, Path::new(path));
    }
    if says.contains("failed to initialize slot") {
        let why = format!(
            "libbpf says: {says}; the kernel does not let a program of a dispatcher that makes tail calls be the target of one"
        );
        return Error::failed(what, why).fix("add --tappable, which loads it without a dispatcher");
    }
    let error = Error::failed(what, format!("libbpf says: {says}"));
    fixed(error, verifier::on_libbpf(says))
}

/// Explains that a pinned map does not suit the program.
fn pinned_otherwise(what: String, path: &Path) -> Error {
    let pinned = bpffs::open_map(path)
        .and_then(|fd| info::map(fd.as_fd()).map_err(|e| Error::os("cannot read the pinned object", e)));
    let is_directory = path.is_dir();
    let path = bpffs::usual_path(path);
    let path = path.display();
    let (why, remove) = match pinned {
        Ok(about) => (
            format!(
                "the map that is pinned at {path} differs from the file's: its type is {}, with {} entries, keys of {} and \
                 values of {} bytes, flags {:#x}",
                info::map_kind_name(about.kind),
                about.max_entries,
                about.key_size,
                about.value_size,
                about.flags
            ),
            "rm",
        ),
        Err(_) if is_directory => (format!("the file pins a map at {path}, but that is a directory"), "rmdir"),
        Err(_) => (format!("the object pinned at {path} is not a map"), "rm"),
    };
    Error::failed(what, why).fix(format!("name another directory, or, if it is no longer needed, {remove} {path}"))
}

fn fixed(error: Error, advice: Option<&str>) -> Error {
    match advice {
        Some(advice) => error.fix(advice.to_owned()),
        None => error,
    }
}

/// Explains that the program is accepted as it is, but not with hooks.
pub fn cannot_insert_hooks(label: &str, program: &str, failure: &LoadFailure) -> Error {
    let what = format!("cannot make {program} of {label} tappable");
    if let Some((why, how)) = lack_of(&Capability::FOR_BPF) {
        return Error::failed(what, why).fix(how);
    }
    let found = verifier::condense(&failure.log).map(|found| found.to_string());
    let why = match found.or_else(|| libbpf_says(failure)) {
        Some(reason) => format!("with hooks inserted, the verifier refuses it: {reason}"),
        None => Error::os("with hooks inserted, the kernel refuses it", copy_of(&failure.error)).to_string(),
    };
    Error::failed(what, why).fix("load it without --tappable")
}

/// Returns libbpf's first complaint, which is the cause of all others.
fn libbpf_says(failure: &LoadFailure) -> Option<String> {
    let is_hint = |text: &&String| {
        text.contains("permission error while running as root")
            || text.contains("-- BEGIN")
            || text.contains("Retrying without BTF")
    };
    let first = failure.warnings.iter().find(|text| !is_hint(text))?;
    let text = first.strip_prefix("libbpf: ").unwrap_or(first);
    Some(text.lines().next()?.trim().to_owned())
}
