//! `trawl xdp load`: puts a program from an object file, or a bundled one, on an interface permanently.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use trawl_guard::state as guard;
use trawl_program::Site;
use trawl_program::bundled::{Bundled, ExitVerdict, FarVerdict, NAMES, RedirectBy, RedirectTarget, Touch};
use trawl_program::chain::Actions;
use trawl_program::install::{self, Put};
use trawl_program::load::Source;
use trawl_program::swap::maps::Inherited;
use trawl_program::{AttachRequest, OldMaps};
use trawl_sys::netlink::XdpMode;
use trawl_sys::{Error, Result};
use trawl_trial::Subject;

use crate::args::{NamedValue, NetnsArg, VerifierLog, choice, interface_and_rest};
use crate::program_args::{Consent, MODES, refuse_options, warn_of_attaching};
use crate::{completion, json, terminal};

use super::test::before_replacing;

/// Loads an XDP program onto an interface, where it stays until it is unloaded
#[derive(Debug, clap::Args)]
#[command(mut_arg("verifier_log", |arg| arg.hide_short_help(true)))]
pub struct Args {
    /// The interface, NAME or NAMESPACE:NAME, unless -i names it; then the object file that a BPF compiler wrote, or a
    /// bundled program: drop, pass, aborted, tx or redirect
    #[arg(value_names = ["IF", "FILE.o|NAME"], num_args = 1..=3, required = true, add = completion::interface_and_program())]
    words: Vec<OsString>,
    /// The interface, in the form that trawl capture accepts
    #[arg(short = 'i', long = "interface", value_name = "IF", add = completion::interfaces())]
    interface: Option<String>,
    /// One of several programs in the file, by the name of its function or section
    #[arg(long, value_name = "NAME")]
    prog: Option<String>,
    /// Mode of the program [default: native, and skb if the driver has no XDP]
    #[arg(long, value_parser = choice(&MODES))]
    mode: Option<XdpMode>,
    /// Its priority in a chain: programs with lower numbers run first [default: from the file, else 50]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    prio: Option<u32>,
    /// In a chain: the next program runs after these verdicts, as in pass,drop [default: from the file, else pass]
    #[arg(long, value_name = "LIST", value_parser = Actions::parse, add = completion::verdicts())]
    on: Option<Actions>,
    /// Replace all programs on the interface, including a whole chain
    #[arg(long)]
    replace: bool,
    /// Before that, test the program against the attached one with these captures (trawl xdp test), and replace nothing
    /// if they differ
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "replace")]
    tested: Vec<PathBuf>,
    /// Accept a difference that --tested finds, as in 'pass>drop where udp port 53'
    #[arg(long, value_name = "RULE", requires = "tested", hide_short_help = true)]
    allow: Vec<String>,
    /// Give the program the maps of the attached one, matched by name, type and size: of the program that --replace
    /// replaces, or else of the one with the same name
    #[arg(long)]
    keep_maps: bool,
    #[command(flatten)]
    consent: Consent,
    /// Pin the program's maps in this directory, or use those that are pinned there
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pin_maps: Option<PathBuf>,
    /// Add hooks for captures to the program, at its entry and its exits (trawl capture --tap tailcall)
    #[arg(long)]
    tappable: bool,
    #[command(flatten)]
    netns: NetnsArg,
    /// Print the result as JSON
    #[arg(long, hide_short_help = true)]
    json: bool,
    #[command(flatten)]
    verifier_log: VerifierLog,
    #[command(flatten)]
    bundled: Options,
}

impl Args {
    /// Returns the interface, and the file or the bundled program's name.
    fn interface_and_file(&self) -> Result<(String, &Path)> {
        let option = self.interface.as_deref();
        let (interface, rest) = interface_and_rest(option, &self.words, "xdp load")?;
        let (why, usage) = match (rest, option) {
            ([file], _) => return Ok((interface, Path::new(file))),
            (_, None) => ("the interface or the file is missing", "trawl xdp load IF FILE.o"),
            (_, Some(_)) => ("the interface is given twice", "trawl xdp load -i IF FILE.o"),
        };
        Err(Error::usage("cannot load a program", why).fix(usage))
    }
}

pub fn run(args: &Args) -> Result<()> {
    let (interface, file) = args.interface_and_file()?;
    args.verifier_log.begin()?;
    let site = Site::find(&interface, args.netns.as_deref())?;
    let sites = std::slice::from_ref(&site);
    test(args, &site, file)?;
    warn_of_attaching(sites, args.mode);
    args.consent.change(sites, || load(args, &site, file))
}

/// Tests the program before it replaces another one, if the command line asks for that.
fn test(args: &Args, site: &Site, file: &Path) -> Result<()> {
    if args.tested.is_empty() {
        return Ok(());
    }
    if args.bundled.bundled(file)?.is_some() {
        let what = format!("cannot test {}", file.display());
        return Err(Error::usage(what, "--tested is for object files").fix("leave out --tested"));
    }
    let subject = Subject::new(file.to_owned(), args.prog.clone());
    before_replacing(site, subject, &args.tested, &args.allow, args.json)
}

fn load(args: &Args, site: &Site, file: &Path) -> Result<()> {
    if let Some((bundled, touch)) = args.bundled.bundled(file)? {
        return load_bundled(args, site, &bundled, touch);
    }
    let mut source = Source::read(file).map_err(|why| hint_bundled(file, why))?;
    source.choose(args.prog.as_deref())?;
    if let Some(directory) = &args.pin_maps {
        source.pin_maps(directory);
    }
    if args.mode == Some(XdpMode::Offload) {
        source.offload();
    }
    if let Some(actions) = args.on {
        source.set_actions(actions);
    }
    let put = guard::around(std::slice::from_ref(site), || install::put(site, source, &request(args), |_| Ok(())))?;
    print_result(args, site, &put)
}

fn request(args: &Args) -> AttachRequest {
    args.consent.limits(AttachRequest {
        mode: args.mode,
        replace: args.replace,
        priority: args.prio,
        tappable: args.tappable,
        maps: if args.keep_maps { OldMaps::Keep } else { OldMaps::Drop },
        ..AttachRequest::default()
    })
}

fn load_bundled(args: &Args, site: &Site, bundled: &Bundled, touch: Touch) -> Result<()> {
    let given = [(args.prog.is_some(), "--prog"), (args.pin_maps.is_some(), "--pin-maps"), (args.on.is_some(), "--on")];
    let what = format!("cannot load {}", bundled.name());
    refuse_options(&what, &given, "is for object files")?;
    let request = request(args);
    warn_of_attaching(&bundled.also_on(site, &request)?, None);
    let put = guard::around(std::slice::from_ref(site), || bundled.load(touch, site, &request))?;
    print_result(args, site, &put)
}

/// The JSON output.
#[derive(Debug, Serialize)]
struct LoadDocument<'a> {
    interface: &'a str,
    id: u32,
    name: &'a str,
    mode: &'a str,
    source: &'a str,
    notices: &'a [String],
    /// `null` without `--keep-maps`, or if no program was running.
    maps: Option<&'a Inherited>,
}

fn print_result(args: &Args, site: &Site, put: &Put) -> Result<()> {
    let Put { installed, notices, inherited } = put;
    let mode = installed.mode().map_or("", XdpMode::name);
    let report = LoadDocument {
        interface: site.label(),
        id: installed.id(),
        name: installed.name(),
        mode,
        source: installed.source(),
        notices,
        maps: inherited.as_ref(),
    };
    if args.json {
        return json::print(&report);
    }
    if let Some(inherited) = inherited {
        let (_, file) = args.interface_and_file()?;
        let lines = about_maps(&file.display().to_string(), inherited);
        lines.iter().for_each(|line| terminal::say(line));
    }
    notices.iter().for_each(|text| terminal::say(text));
    terminal::write_out(&format!("{} is on {} (id {}, {mode} mode)\n", installed.name(), site.label(), installed.id()))
}

/// Describes the result for the maps, for people.
pub(crate) fn about_maps(file: &str, inherited: &Inherited) -> Vec<String> {
    let old = format!("{} (id {})", inherited.from_name, inherited.from_id);
    let mut lines = Vec::new();
    lines.push(match inherited.same_program {
        Some(true) => format!("{file} is the program that was running: {old} has the same tag"),
        Some(false) => format!("{file} is not the program that was running: {old} has another tag"),
        None => {
            format!("{old} has hooks: its tag does not show whether {file} is the same program")
        }
    });
    for (maps, what) in [
        (&inherited.kept, "maps kept"),
        (&inherited.new, "new maps without a match"),
        (&inherited.without_match, "old maps without a match, not kept"),
    ] {
        if !maps.is_empty() {
            lines.push(format!("{what}: {}", maps.join(", ")));
        }
    }
    lines
}

const TOUCHES: [NamedValue<Touch>; 4] = [
    ("none", "Nothing", Touch::None),
    ("read", "Read the ethertype", Touch::Read),
    ("parse", "Read through to the IP header, and count IPv4, IPv6 and others separately", Touch::Parse),
    ("swap", "Swap the Ethernet addresses", Touch::Swap),
];
const BY: [NamedValue<RedirectBy>; 2] =
    [("helper", "bpf_redirect", RedirectBy::Helper), ("devmap", "bpf_redirect_map", RedirectBy::Devmap)];

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
struct Options {
    /// Access of a bundled program to each packet before its verdict [default: none]
    #[arg(long, value_parser = choice(&TOUCHES), value_name = "HOW", hide_short_help = true)]
    touch: Option<Touch>,
    /// redirect: the interface that packets leave by; several get a copy each
    #[arg(long, value_name = "IF", value_delimiter = ',', add = completion::interfaces(), hide_short_help = true)]
    to: Vec<String>,
    /// redirect: the kernel's mechanism [default: helper; to several: devmap]
    #[arg(long, value_parser = choice(&BY), value_name = "WAY", hide_short_help = true)]
    by: Option<RedirectBy>,
    /// redirect to several: skip the interface that the packet arrived on
    #[arg(long, hide_short_help = true)]
    exclude_ingress: bool,
    /// redirect: the CPUs that process the packets; packets of a flow go to the same CPU
    #[arg(long, value_name = "CPU", value_delimiter = ',', hide_short_help = true)]
    to_cpu: Vec<u32>,
    /// redirect to CPUs: verdict on the packets there [default: pass; with --to: redirect]
    #[arg(long, value_enum, value_name = "VERDICT", requires = "to_cpu", hide_short_help = true)]
    then: Option<ThenName>,
    /// redirect to CPUs: maximum number of packets queued for each
    #[arg(long, value_name = "N", requires = "to_cpu", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=16384), hide_short_help = true)]
    cpu_queue: u32,
}

/// Adds a hint to the error about a file that does not exist: a bare name was probably meant as a bundled program.
fn hint_bundled(name: &Path, why: Error) -> Error {
    let is_bare = name.components().count() == 1 && !name.exists();
    match name.to_str() {
        Some(name @ ("route" | "guard")) if is_bare => why.fix(format!("trawl {name} load IF")),
        _ if is_bare && name.extension().is_none() => why.fix(format!("bundled programs: {}", NAMES.join(", "))),
        _ => why,
    }
}

impl Options {
    /// Returns the bundled program of that name; a file of the same name needs a path.
    fn bundled(&self, name: &Path) -> Result<Option<(Bundled, Touch)>> {
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
            "drop" => ExitVerdict::Drop,
            "pass" => ExitVerdict::Pass,
            "aborted" => ExitVerdict::Aborted,
            "tx" => ExitVerdict::Tx,
            _ => return Ok(Some((Bundled::Redirect(self.target()?), touch))),
        };
        match self.given().filter(|option| *option != "--touch") {
            Some(option) => Err(Error::usage(format!("cannot load {name}"), format!("{option} is for redirect"))),
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

    fn target(&self) -> Result<RedirectTarget> {
        let wrong = |why: &str| Err(Error::usage("cannot redirect", why));
        if !self.to_cpu.is_empty() {
            if self.by.is_some() || self.exclude_ingress {
                return wrong("--by and --exclude-ingress are for redirecting to interfaces only");
            }
            let then = match (self.then, self.to.as_slice()) {
                (Some(ThenName::Drop), []) => FarVerdict::Drop,
                (Some(ThenName::Pass) | None, []) => FarVerdict::Pass,
                (Some(ThenName::Redirect) | None, [interface]) => FarVerdict::Redirect(interface.clone()),
                (Some(ThenName::Redirect), _) => {
                    return wrong("--then redirect needs one interface: --to IF");
                }
                (_, _) => return wrong("--to is for --then redirect, with one interface"),
            };
            return Ok(RedirectTarget::Cpus { cpus: self.to_cpu.clone(), queue: self.cpu_queue, then });
        }
        match (self.to.as_slice(), self.by) {
            ([], _) => wrong("it needs --to IF or --to-cpu CPU"),
            ([_], _) if self.exclude_ingress => wrong("--exclude-ingress is for redirecting to several interfaces"),
            ([interface], by) => Ok(RedirectTarget::One(interface.clone(), by.unwrap_or_default())),
            (_, Some(RedirectBy::Helper)) => wrong("the helper sends to one interface only"),
            (interfaces, _) => {
                Ok(RedirectTarget::All { interfaces: interfaces.to_vec(), exclude_ingress: self.exclude_ingress })
            }
        }
    }
}
