//! Contenders that handle the frames: trawl's programs, the peers', rules of the firewall, the kernel's forwarding.

use std::path::Path;

use trawl_attach::AttachRequest;
use trawl_bpf::table::{self, Table};
use trawl_lab::program::Loaded;
use trawl_lab::{Pair, PairOptions, Station};
use trawl_program::load::{Program, Source};
use trawl_program::{Site, install};
use trawl_sys::netns::run_in;
use trawl_sys::{Error, Result};

use super::{Bench, Stop, named};
use crate::configuration::{Configuration, IN_STACK, ONLY_DEFAULTS};
use crate::process::{self, Background};
use crate::traffic::label;

/// A program, or a configuration of the kernel, that handles the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    Xdp(Verdict, Mode),
    XdpBench(Verdict, Mode),
    /// A program out of xdp-bench's binary, without the tracing programs of xdp-bench.
    Extracted(Verdict),
    Iptables,
    IptablesRaw,
    Conntrack,
    Nft,
    /// At the hook before the stack.
    NftIngress,
    /// trawl's guard with one rule: UDP to the attacked port.
    Guard,
    XdpFilter,
    TrawlRoute,
    XdpForward,
    /// The kernel alone.
    Kernel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Drop,
    Pass,
    Tx,
    /// By bpf_redirect, with swapped addresses like xdp-bench.
    Redirect,
    /// By a device map.
    RedirectMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Native,
    Generic,
    Offloaded,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "skb",
            Self::Offloaded => "hw",
        }
    }
}

/// Default port of trawl gen.
const ATTACKED: &str = "9";

const OBJECT: &str = "xdpfilt_alw_udp.o";

const CONTENDERS: &[(&str, Contender)] = &[
    ("iptables DROP", Contender::Iptables),
    ("iptables raw DROP", Contender::IptablesRaw),
    ("iptables conntrack DROP", Contender::Conntrack),
    ("nft DROP", Contender::Nft),
    ("nft ingress DROP", Contender::NftIngress),
    ("with XDP filter", Contender::Guard),
    ("xdp-filter", Contender::XdpFilter),
    ("without filter", Contender::Kernel),
    ("trawl route", Contender::TrawlRoute),
    ("xdp-forward", Contender::XdpForward),
    ("Linux forwarding", Contender::Kernel),
];

const VERDICTS: &[(&str, Verdict)] = &[
    ("DROP", Verdict::Drop),
    ("PASS", Verdict::Pass),
    ("TX", Verdict::Tx),
    ("REDIRECT", Verdict::Redirect),
    ("REDIRECT by a map", Verdict::RedirectMap),
];

const MODES: &[(&str, Mode)] = &[("native", Mode::Native), ("generic", Mode::Generic), ("offloaded", Mode::Offloaded)];

/// Programs and processes of a run, in the order of their removal.
#[derive(Default)]
pub struct Installed {
    _background: Option<Background>,
    pub loaded: Vec<Loaded>,
    unload: Vec<(std::path::PathBuf, Vec<String>)>,
}

impl Drop for Installed {
    fn drop(&mut self) {
        for (program, arguments) in &self.unload {
            let _ = process::run(process::command(program).args(arguments));
        }
    }
}

impl Installed {
    fn unload_with(&mut self, bench: &Bench, arguments: &[&str]) {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        self.unload.push((bench.trawl.clone(), arguments.collect()));
    }

    /// Registers an unload command in the station's namespace.
    fn unload_in_network(&mut self, at: &Station, program: &Path, arguments: &[&str]) {
        let command = process::command_in_network(&at.name, program);
        let all = command.get_args().map(|argument| argument.to_string_lossy());
        let mut all: Vec<String> = all.map(std::borrow::Cow::into_owned).collect();
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self.unload.push((command.get_program().into(), all));
    }
}

impl Contender {
    pub fn find(series: &str) -> Result<Self> {
        let verdict = |name: &str| named(name, VERDICTS).ok();
        let program = |text: &str| match verdict(text) {
            Some(verdict) => Some((verdict, Mode::Native)),
            None => {
                let (name, mode) = text.rsplit_once(' ')?;
                Some((verdict(name)?, named(mode, MODES).ok()?))
            }
        };
        if let Some(verdict) = series.strip_prefix("xdp-bench's ").and_then(verdict) {
            return Ok(Self::Extracted(verdict));
        }
        if let Some((verdict, mode)) = series.strip_prefix("xdp-bench ").and_then(program) {
            return Ok(Self::XdpBench(verdict, mode));
        }
        match program(series) {
            Some((verdict, mode)) => Ok(Self::Xdp(verdict, mode)),
            None => named(series, CONTENDERS),
        }
    }

    /// Returns what its program does with the frames, if it is one of a single verdict.
    pub fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Xdp(verdict, _) | Self::XdpBench(verdict, _) | Self::Extracted(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// Returns the configurations to try, the defaults first.
    pub fn grid(self) -> &'static [Configuration] {
        match self {
            Self::Iptables
            | Self::IptablesRaw
            | Self::Conntrack
            | Self::Nft
            | Self::NftIngress
            | Self::Kernel
            | Self::Xdp(_, Mode::Generic)
            | Self::XdpBench(_, Mode::Generic) => &IN_STACK,
            _ => &ONLY_DEFAULTS,
        }
    }

    /// Sets the contender up on the receiving interface; `out` is the interface that it sends frames to.
    pub fn install(self, bench: &Bench, at: &Station, out: &Station) -> Result<Installed, Stop> {
        let mut installed = Installed::default();
        match self {
            Self::Xdp(verdict, mode) => load(bench, verdict, mode, at, out, &mut installed)?,
            Self::XdpBench(verdict, mode) => {
                let mut command = process::command_in_network(&at.name, bench.peers.path("xdp-bench")?);
                let (name, to) = match verdict {
                    Verdict::Drop => ("drop", None),
                    Verdict::Pass => ("pass", None),
                    Verdict::Tx => ("tx", None),
                    Verdict::Redirect => ("redirect", Some(&out.interface)),
                    Verdict::RedirectMap => ("redirect-map", Some(&out.interface)),
                };
                command.args([name, &at.interface]).args(to);
                command.args(["-m", mode.name()]);
                let started = Background::start(&mut command, "\n").map_err(first_line)?;
                installed._background = Some(started);
            }
            Self::Extracted(verdict) => {
                let binary = bench.peers.binary("xdp-bench")?;
                load_extracted(&binary, verdict, at, out)?;
                installed.unload_with(bench, &["xdp", "unload", &label(at)]);
            }
            Self::Iptables => {
                let arguments = ["-A", "INPUT", "-p", "udp", "-j", "DROP"];
                rule(bench, at, "iptables", &arguments)?;
            }
            Self::IptablesRaw => {
                let arguments = ["-t", "raw", "-A", "PREROUTING", "-p", "udp", "-j", "DROP"];
                rule(bench, at, "iptables", &arguments)?;
            }
            Self::Conntrack => {
                let states = "NEW,ESTABLISHED,RELATED";
                let check = ["-m", "conntrack", "--ctstate", states];
                let arguments = [&["-A", "INPUT"], &check[..], &["-j", "DROP"]].concat();
                rule(bench, at, "iptables", &arguments)?;
            }
            Self::Nft => {
                let ruleset = "add table inet trawl; add chain inet trawl in { type filter hook input priority 0 ; }; \
                               add rule inet trawl in meta l4proto udp drop";
                rule(bench, at, "nft", &[ruleset])?;
            }
            Self::NftIngress => {
                let chain = format!(
                    "add table netdev trawl; add chain netdev trawl in {{ type filter hook ingress device {} priority 0 ; }}; \
                     add rule netdev trawl in meta l4proto udp drop",
                    at.interface
                );
                rule(bench, at, "nft", &[&chain])?;
            }
            Self::Guard => {
                let site = label(at);
                trawl(bench, &["guard", "load", &site])?;
                installed.unload_with(bench, &["guard", "unload", &site]);
                let rule = ["--proto", "udp", "--port", ATTACKED];
                let deny = ["guard", "deny", "--netns", &at.name];
                trawl(bench, &[&deny[..], &rule].concat())?;
            }
            Self::XdpFilter => {
                let path = bench.peers.path("xdp-filter")?;
                let run = |arguments: &[&str]| {
                    let mut command = process::command_in_network(&at.name, &path);
                    // Its programs are files of their own; in a build directory they are next to it.
                    if let Some(directory) = path.parent().filter(|at| at.join(OBJECT).exists()) {
                        command.env("LIBXDP_OBJECT_PATH", directory);
                    }
                    process::run(command.args(arguments)).map_err(first_line)
                };
                run(&["load", &at.interface, "-m", "native", "-f", "udp"])?;
                installed.unload_in_network(at, &path, &["unload", &at.interface]);
                run(&["port", ATTACKED, "-p", "udp", "-m", "dst"])?;
            }
            Self::TrawlRoute => {
                let (left, right) = (label(at), label(out));
                trawl(bench, &["route", "load", &left, &right])?;
                installed.unload_with(bench, &["route", "unload", &left, &right]);
            }
            Self::XdpForward => {
                let path = bench.peers.path("xdp-forward")?;
                let mut command = process::command_in_network(&at.name, &path);
                command.args(["load", "-F", "direct", &at.interface, &out.interface]);
                process::run(&mut command).map_err(first_line)?;
                installed.unload_in_network(at, &path, &["unload", &at.interface, &out.interface]);
            }
            Self::Kernel => {}
        }
        Ok(installed)
    }
}

fn load(
    bench: &Bench,
    verdict: Verdict,
    mode: Mode,
    at: &Station,
    out: &Station,
    installed: &mut Installed,
) -> Result<(), Stop> {
    let site = label(at);
    let mut arguments = vec!["xdp", "load", &site];
    match verdict {
        Verdict::Drop => arguments.push("drop"),
        Verdict::Pass => arguments.push("pass"),
        Verdict::Tx => arguments.push("tx"),
        Verdict::Redirect | Verdict::RedirectMap => {
            arguments.extend(["redirect", "--to", &out.interface, "--touch", "swap"]);
            if verdict == Verdict::RedirectMap {
                arguments.extend(["--by", "devmap"]);
            }
        }
    }
    arguments.extend(["--mode", mode.name()]);
    trawl(bench, &arguments)?;
    installed.unload_with(bench, &["xdp", "unload", &site]);
    Ok(())
}

pub fn trawl(bench: &Bench, arguments: &[&str]) -> Result<(), Stop> {
    bench.run(arguments).map(drop).map_err(first_line)
}

pub fn first_line(error: Error) -> Stop {
    let text = error.to_string();
    Stop::Failed(text.lines().take(3).collect::<Vec<_>>().join(" "))
}

pub fn rule(bench: &Bench, at: &Station, tool: &str, arguments: &[&str]) -> Result<(), Stop> {
    let mut command = process::command_in(&at.name, bench.peers.path(tool)?);
    process::run(command.args(arguments))?;
    Ok(())
}

/// Returns the reason why no network card of this host runs XDP programs itself.
pub fn offload_refusal(bench: &Bench) -> Stop {
    let lab = match Pair::new(&PairOptions::default()) {
        Ok(lab) => lab,
        Err(why) => return why.into(),
    };
    let refusal = match bench.run(&["xdp", "load", &label(&lab.b), "drop", "--mode", "hw"]) {
        Ok(_) => return Stop::Failed("a veth accepted an offloaded program".to_owned()),
        Err(why) => why.to_string(),
    };
    let drivers = cards();
    let cards = if drivers.is_empty() {
        "it has no network card".to_owned()
    } else {
        format!("its network cards use {}", drivers.join(", "))
    };
    Stop::NotHere(format!(
        "no device of this host can offload XDP: {cards}, and offloading needs a card such as Netronome's (nfp). The kernel's \
         answer for the lab's veth: {}",
        refusal.lines().next().unwrap_or_default()
    ))
}

fn cards() -> Vec<String> {
    let own = |entry: std::fs::DirEntry| {
        let driver = std::fs::read_link(entry.path().join("device/driver")).ok()?;
        Some(format!("{} ({})", driver.file_name()?.to_string_lossy(), entry.file_name().to_string_lossy()))
    };
    let devices = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    devices.filter_map(own).collect()
}

// xdp-bench's programs, extracted from the installed binary, which contains them as object files, and loaded without
// it.
//
// xdp-bench itself does not start if the kernel lacks one of its tracepoints, as Debian 12's does not on Linux 6.18.
// Its programs alone are also the harder competitors, because no tracing program counts in addition to them.

const NAME: &str = "xdp-bench";
const MAGIC: &[u8] = b"\x7fELF";
const MACHINE_BPF: u16 = 247;
const XDP_DROP: u32 = 1;
const XDP_TX: u32 = 3;
/// The program of older versions for all actions with one interface.
const BASIC: &str = "xdp_basic_prog";
const TARGET: &str = "tx_port_native";

/// Loads the program for a verdict onto an interface; `out` is the interface that it sends frames to.
fn load_extracted(binary: &Path, verdict: Verdict, at: &Station, out: &Station) -> Result<()> {
    let (mut source, name) = find(binary, names(verdict)?)?;
    // xdp-bench sets the sizes of the counters in user space: one for each CPU.
    let cpus = table::possible_cpus().map_err(|e| Error::os("cannot count the CPUs", e))?;
    for map in source.maps() {
        if map.max_entries == 0 && !map.is_data {
            source.set_entries(&map.name, cpus as u32)?;
        }
    }
    match verdict {
        Verdict::Drop => source.set_variable("action", &XDP_DROP.to_ne_bytes())?,
        Verdict::Tx => {
            source.set_variable("action", &XDP_TX.to_ne_bytes())?;
            if name == BASIC {
                source.set_variable("swap_macs", &[1])?;
            }
        }
        _ => {}
    }
    if verdict == Verdict::Redirect {
        source.set_variable("ifindex_out", &out.index.to_ne_bytes())?;
    }
    let site = Site::find(&label(at), None)?;
    install::put_alone(&site, source, &AttachRequest::default(), |program| match verdict {
        Verdict::RedirectMap => fill(program, at, out),
        _ => Ok(()),
    })
    .map(drop)
}

/// Returns the names of xdp-bench's programs for a verdict, newer versions first.
fn names(verdict: Verdict) -> Result<&'static [&'static str]> {
    match verdict {
        Verdict::Drop => Ok(&[BASIC]),
        Verdict::Tx => Ok(&["xdp_swap_macs_prog", BASIC]),
        Verdict::Redirect => Ok(&["xdp_redirect_prog", "xdp_redirect_basic_prog"]),
        Verdict::RedirectMap => Ok(&["redir_devmap_native"]),
        Verdict::Pass => Err(Error::failed("cannot compare", "its passing program cannot be extracted")),
    }
}

fn fill(program: &Program, at: &Station, out: &Station) -> Result<()> {
    let what = "cannot fill xdp-bench's device map";
    let fail = |e| Error::os(what, e);
    let map = program.map(TARGET).ok_or_else(|| Error::failed(what, "it is missing"))?;
    let table = Table::new(map.try_clone_to_owned().map_err(fail)?).map_err(fail)?;
    // The value is a struct bpf_devmap_val, with the interface and without a program.
    let value = [out.index.to_ne_bytes(), [0; 4]].concat();
    run_in(&at.namespace, || table.update(&0u32.to_ne_bytes(), &value, table::ANY))?.map_err(fail)
}

/// Returns the object that holds the first available one of these programs.
fn find(path: &Path, programs: &'static [&'static str]) -> Result<(Source, &'static str)> {
    let what = || format!("cannot extract {} from {NAME}", programs.join(" or "));
    let binary = std::fs::read(path).map_err(|e| Error::os(what(), e))?;
    for program in programs {
        for object in objects(&binary) {
            if let Ok(mut source) = Source::embedded(NAME, object)
                && source.choose(Some(program)).is_ok()
            {
                return Ok((source, program));
            }
        }
    }
    Err(Error::failed(what(), "it is not in the binary"))
}

/// Returns the BPF object files inside a binary: an ELF file ends with its table of sections.
fn objects(binary: &[u8]) -> impl Iterator<Item = &[u8]> {
    let starts = (0..binary.len()).filter(|at| binary[*at..].starts_with(MAGIC));
    starts.filter_map(|at| object_at(&binary[at..]))
}

fn object_at(bytes: &[u8]) -> Option<&[u8]> {
    let field = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let sections = u64::from_le_bytes(*bytes.get(40..)?.first_chunk()?);
    let size = u64::from(field(58)?) * u64::from(field(60)?);
    let end = usize::try_from(sections.checked_add(size)?).ok()?;
    bytes.get(..end).filter(|_| field(18) == Some(MACHINE_BPF))
}

#[cfg(test)]
mod tests {
    use trawl_bpf::object;

    use super::*;

    #[test]
    fn embedded_objects_are_found() {
        let noise = [&b"\x7fELF"[..], &[0; 100]].concat();
        let binary = [&noise, object::LAB_XDP, &noise, object::XDP_VERDICT, b"\x7fEL"].concat();
        let found: Vec<&[u8]> = objects(&binary).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], object::LAB_XDP);
        assert!(objects(&binary[..binary.len() / 2]).count() <= 1);
    }
}
