//! The bundled programs on the command line of `trawl xdp load`: their names in a file's place, and their options.

use std::path::Path;

use clap::ValueEnum;
use trawl_program::bundled::{Bundled, By, NAMES, Target, Then, Touch, Verdict};
use trawl_sys::{Error, Result};

use crate::program_args::{Choice, choice};

const TOUCHES: [Choice<Touch>; 4] = [
    ("none", "Nothing", Touch::None),
    ("read", "Read the ethertype", Touch::Read),
    (
        "parse",
        "Read through to the IP header, and count IPv4, IPv6 and others apart",
        Touch::Parse,
    ),
    ("swap", "Swap the Ethernet addresses", Touch::Swap),
];
const BY: [Choice<By>; 2] = [
    ("helper", "bpf_redirect", By::Helper),
    ("devmap", "bpf_redirect_map", By::Devmap),
];

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ThenName {
    Drop,
    Pass,
    /// To the interface of --to
    Redirect,
}

/// Options of the bundled programs
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Bundled programs")]
pub struct Options {
    /// What a bundled program does with each packet before its verdict [default: none]
    #[arg(long, value_parser = choice(&TOUCHES), value_name = "HOW")]
    touch: Option<Touch>,
    /// redirect: the interface that packets leave by; several get a copy each
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    to: Vec<String>,
    /// redirect: by which of the kernel's ways [default: helper; to several: devmap]
    #[arg(long, value_parser = choice(&BY), value_name = "WAY")]
    by: Option<By>,
    /// redirect to several: not to the one that the packet came in by
    #[arg(long)]
    exclude_ingress: bool,
    /// redirect: the CPUs that process the packets; packets of a flow go to the same CPU
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    to_cpu: Vec<u32>,
    /// redirect to CPUs: what becomes of the packets there [default: pass; with --to: redirect]
    #[arg(long, value_enum, value_name = "VERDICT", requires = "to_cpu")]
    then: Option<ThenName>,
    /// redirect to CPUs: how many packets wait for each at most
    #[arg(long, value_name = "N", requires = "to_cpu", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=16384))]
    cpu_queue: u32,
}

/// A bare name that is no file was meant to be a bundled program.
pub fn what_was_meant(name: &Path, why: Error) -> Error {
    let is_bare = name.components().count() == 1 && !name.exists();
    match name.to_str() {
        Some(name @ ("route" | "guard")) if is_bare => why.fix(format!("trawl {name} load IF")),
        _ if is_bare && name.extension().is_none() => {
            why.fix(format!("bundled programs: {}", NAMES.join(", ")))
        }
        _ => why,
    }
}

impl Options {
    /// The bundled program of that name, if it is one; a file has to be told apart by its path.
    pub fn bundled(&self, name: &Path) -> Result<Option<(Bundled, Touch)>> {
        let Some(name) = name.to_str().filter(|name| NAMES.contains(name)) else {
            return match self.given() {
                Some(option) => Err(Error::usage(
                    format!("cannot load {}", name.display()),
                    format!("{option} is for the bundled programs: {}", NAMES.join(", ")),
                )),
                None => Ok(None),
            };
        };
        let touch = self.touch.unwrap_or_default();
        let verdict = match name {
            "drop" => Verdict::Drop,
            "pass" => Verdict::Pass,
            "aborted" => Verdict::Aborted,
            "tx" => Verdict::Tx,
            _ => return Ok(Some((Bundled::Redirect(self.target()?), touch))),
        };
        match self.given().filter(|option| *option != "--touch") {
            Some(option) => Err(Error::usage(
                format!("cannot load {name}"),
                format!("{option} is for redirect"),
            )),
            None => Ok(Some((Bundled::Verdict(verdict), touch))),
        }
    }

    fn given(&self) -> Option<&'static str> {
        [
            (!self.to.is_empty(), "--to"),
            (self.by.is_some(), "--by"),
            (self.exclude_ingress, "--exclude-ingress"),
            (!self.to_cpu.is_empty(), "--to-cpu"),
            (self.touch.is_some(), "--touch"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }

    fn target(&self) -> Result<Target> {
        let wrong = |why: &str| Err(Error::usage("cannot redirect", why));
        if !self.to_cpu.is_empty() {
            if self.by.is_some() || self.exclude_ingress {
                return wrong("--by and --exclude-ingress are for redirecting to interfaces only");
            }
            let then = match (self.then, self.to.as_slice()) {
                (Some(ThenName::Drop), []) => Then::Drop,
                (Some(ThenName::Pass) | None, []) => Then::Pass,
                (Some(ThenName::Redirect) | None, [interface]) => Then::Redirect(interface.clone()),
                (Some(ThenName::Redirect), _) => {
                    return wrong("--then redirect takes one interface: --to IF");
                }
                (_, _) => return wrong("--to is for --then redirect, and takes one interface"),
            };
            return Ok(Target::Cpus {
                cpus: self.to_cpu.clone(),
                queue: self.cpu_queue,
                then,
            });
        }
        match (self.to.as_slice(), self.by) {
            ([], _) => wrong("it takes --to IF or --to-cpu CPU"),
            ([_], _) if self.exclude_ingress => {
                wrong("--exclude-ingress is for redirecting to several interfaces")
            }
            ([interface], by) => Ok(Target::One(interface.clone(), by.unwrap_or_default())),
            (_, Some(By::Helper)) => wrong("the helper sends to one interface only"),
            (interfaces, _) => Ok(Target::All {
                interfaces: interfaces.to_vec(),
                exclude_ingress: self.exclude_ingress,
            }),
        }
    }
}
