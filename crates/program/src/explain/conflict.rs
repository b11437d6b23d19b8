//! Why a program cannot be put on an interface as it is now.

use std::path::Path;

use trawl_attach::plan::time::LoanRefusal;
use trawl_attach::{Conflict, Kind, Present, Site, explain::program_above};
use trawl_kernel::Error;

/// The reason why the program of this name finds no place, and what makes one.
pub fn conflict(site: &Site, program: &str, is_from_file: bool, conflict: Conflict) -> Error {
    let label = site.label();
    let attach = format!("cannot attach to {label}");
    let join = format!("cannot join the chain on {label}");
    match conflict {
        Conflict::Occupied { by } => occupied(site, &by),
        Conflict::HooksInDispatcher { by } => Error::failed(
            attach,
            format!(
                "{}, and programs with hooks cannot join such a chain",
                chain_of(&by)
            ),
        )
        .fix(format!("leave out --tappable, for a bundled program with --prio N: trawl capture -i {label} --program NAME sees the programs of this chain without hooks; --replace takes the whole chain's place; trawl xdp unload {label} --all removes it")),
        Conflict::OtherMode { mode } => {
            Error::failed(join, format!("it runs in {} mode", mode.name())).fix(format!("use --mode {}, or --replace to take the whole chain's place", mode.name()))
        }
        Conflict::PacketsInPieces => Error::failed(
            join,
            format!(
                "its programs take packets in several pieces, and {program} takes them in one only"
            ),
        )
        .fix("compile it with SEC(\"xdp.frags\"), or load it first"),
        Conflict::ChainFull { programs } => {
            Error::failed(join, format!("it has {programs} programs, the maximum")).fix(
                format!("trawl xdp unload {label} ID makes room; trawl xdp status shows the programs"),
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
                "none of the programs there is called {program}: {}",
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
        .fix(match is_from_file {
            true => "--keep-maps gives them to the new program, --yes replaces it anyway",
            false => "--yes replaces it anyway",
        }),
    }
}

/// The reason why a program with hooks cannot take the place of the one that runs, `which`, for a capture.
pub fn loan(site: &Site, which: &str, file: &Path, refusal: LoanRefusal) -> Error {
    let (label, file) = (site.label(), file.display());
    let fail =
        |why: String| Error::failed(format!("cannot put hooks into {which} on {label}"), why);
    let other_file = format!(
        "name the file that it was loaded from; trawl xdp load {label} {file} --replace --keep-maps --tappable replaces it"
    );
    match refusal {
        LoanRefusal::NothingAttached => {
            fail("no XDP program is on it".to_owned()).fix("leave out --tappable to capture what arrives")
        }
        LoanRefusal::SeveralModes { programs } => {
            fail(format!("{programs} programs are on it, in several modes"))
        }
        LoanRefusal::Chain => {
            fail("a chain of several programs is on it".to_owned()).fix("load the program with hooks: trawl xdp load IF FILE.o --keep-maps --tappable --prio N, then unload the one without")
        }
        LoanRefusal::SeveralLinks { links } => fail(format!(
            "{links} links attach it to interfaces with this number, in several namespaces"
        )),
        LoanRefusal::OtherProgram => {
            fail(format!("{file} is another program: the tags differ")).fix(other_file)
        }
        LoanRefusal::UnknownProgram => fail(format!(
            "the tag does not tell whether {file} is the program that runs"
        ))
        .fix(other_file),
        LoanRefusal::MapsWithoutMatch { maps } => fail(format!(
            "no map of {file} fits these of its maps: {}",
            maps.join(", ")
        ))
        .fix(other_file),
    }
}

fn chain_of(by: &Present) -> String {
    let programs = match by.kind {
        Kind::Dispatcher { programs } => programs,
        _ => 0,
    };
    format!(
        "a chain by libxdp's protocol is on it (dispatcher {}, programs: {programs})",
        by.program_id
    )
}

fn occupied(site: &Site, by: &Present) -> Error {
    let (label, id) = (site.label(), by.program_id);
    let what = format!("cannot attach to {label}");
    let (name, chain) = match &by.kind {
        Kind::Dispatcher { .. } => {
            return Error::failed(what, chain_of(by)).fix(format!("--prio N puts the program into it; --replace takes the whole chain's place; trawl xdp unload {label} --all removes it"));
        }
        Kind::Installed {
            name,
            source,
            chain,
        } => (
            format!("{name}, which trawl loaded from {source},"),
            Some(chain.is_some()),
        ),
        Kind::Other { name } => (name.clone().unwrap_or_else(|| "a program".to_owned()), None),
    };
    let join = match chain {
        Some(true) => "--prio N puts it into the chain there; ",
        Some(false) => "to have both, load each with --prio N; ",
        None => "",
    };
    Error::failed(
        what,
        format!("{name} is on it already (id {id}, {} mode)", by.mode.name()),
    )
    .fix(format!(
        "{join}--replace puts the new one in its place; trawl xdp unload {label} {id} removes it"
    ))
}
