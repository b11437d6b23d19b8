//! `trawl extcap`: the interface by which Wireshark and tshark use a capture program.

use std::fmt::Write as _;
use std::fs::File;
use std::num::ParseIntError;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use trawl_capture::capture_site::CaptureSite;
use trawl_capture::taps;
use trawl_capture::taps::facts::Facts;
use trawl_filter::compile;
use trawl_packet::verdict::{VerdictKind, VerdictSet};
use trawl_plan::filter::Filter;
use trawl_plan::options::{At, CaptureOptions, Direction, ProcessDetail, ProcessPlan, Programs, Sample, Taps};
use trawl_plan::sources::{ANY, Sources};
use trawl_plan::{CapturePlan, TapChoice};
use trawl_sink::ChosenPackets;
use trawl_sys::netlink::{LinkRecord, Netlink};
use trawl_sys::netns::{self, Namespace};
use trawl_sys::{Error, Result, errno};

use crate::args::choice;
use crate::capture::args::{DIRECTIONS, ENDS};
use crate::capture::recording;
use crate::terminal::write_out;
use crate::units;
use toolbar::Toolbar;

mod dissector;
mod fields;
mod install;
mod stored;
mod toolbar;

/// Captures for Wireshark and tshark, which run this command
///
/// `trawl extcap install` registers the command with them.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<ExtcapCommand>,
    /// List interfaces
    #[arg(long)]
    extcap_interfaces: bool,
    /// Wireshark's version
    #[arg(long, value_name = "VERSION", num_args = 0..=1)]
    extcap_version: Option<Option<String>>,
    /// List an interface's link type
    #[arg(long)]
    extcap_dlts: bool,
    /// List an interface's options
    #[arg(long)]
    extcap_config: bool,
    /// List the values of one option again
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    extcap_reload_option: Option<String>,
    /// The interface to use
    #[arg(long, value_name = "IF")]
    extcap_interface: Option<String>,
    /// A capture filter: to be checked, or to be used with --capture
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,
    /// Capture
    #[arg(long)]
    capture: bool,
    /// Pipe or file to write packets to
    #[arg(long, value_name = "PATH")]
    fifo: Option<PathBuf>,
    /// Pipe of messages from the toolbar
    #[arg(long, value_name = "PATH")]
    extcap_control_in: Option<PathBuf>,
    /// Pipe of messages to the toolbar
    #[arg(long, value_name = "PATH")]
    extcap_control_out: Option<PathBuf>,
    /// Tap to capture with
    #[arg(long, value_parser = choice(&TapChoice::ALL), default_value = "auto")]
    tap: TapChoice,
    /// End of an XDP program to record at
    #[arg(long, value_parser = choice(&ENDS))]
    at: Option<At>,
    /// Direction of the packets
    #[arg(long, value_parser = choice(&DIRECTIONS))]
    direction: Option<Direction>,
    /// Only packets with these verdicts
    #[arg(long, value_name = "LIST")]
    verdict: Option<String>,
    /// Attached XDP program to capture at
    #[arg(long, value_name = "NAME|ID|all")]
    program: Option<String>,
    /// Bytes to keep of each packet; 0 for all
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    snaplen: u32,
    /// Record one packet in N
    #[arg(long, value_name = "N", default_value = "")]
    sample: String,
    /// Record at most this many packets a second
    #[arg(long, value_name = "PPS", default_value = "")]
    limit_rate: String,
    /// Apply the filter to the packet inside a tunnel
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    inner: String,
    /// Record the process of each packet
    #[arg(long, value_name = "DETAIL", default_value = "")]
    process: String,
    /// Only packets of this process and its children
    #[arg(long, value_name = "PID", default_value = "")]
    pid: String,
    /// Only packets of processes with this name
    #[arg(long, value_name = "NAME", default_value = "")]
    comm: String,
    /// Only packets of processes in this container
    #[arg(long, value_name = "ID", default_value = "")]
    container: String,
    /// The interface of another network namespace to use
    #[arg(long, value_name = "NAMESPACE:IF", default_value = "")]
    elsewhere: String,
    #[command(flatten)]
    stored: stored::StoredArgs,
}

#[derive(Debug, Subcommand)]
enum ExtcapCommand {
    /// Registers trawl's interfaces and fields with Wireshark and tshark, and adds a profile 'trawl'
    Install(install::Args),
    /// Removes trawl's interfaces, fields and profile from Wireshark and tshark
    Remove(install::Args),
    /// Lists the fields that Wireshark and tshark show for trawl's records
    Fields(fields::Args),
}

/// Taps that Wireshark's dialog offers.
const TAPS: [&str; 4] = ["xdp", "tailcall", "tc", "packet"];

/// Prefix of this program's interfaces in Wireshark's list.
const PREFIX: &str = "trawl:";
/// The entry for interfaces of other network namespaces, longer than an interface's name can be.
const ELSEWHERE: &str = "another-namespace";
/// Number of interfaces of other namespaces, of pods, and of containers, that have entries of their own. Wireshark asks each entry for
/// its options before it shows the list, so that one for each interface of 200 pods would delay its start by a minute.
const LISTED_MAX: usize = 32;
/// The entry for the packets that the kernel drops, in all namespaces; longer than an interface's name can be.
const DROPPED: &str = "all-dropped-packets";
/// Prefix of pods. Their names contain a slash; names of interfaces do not.
const POD: &str = "pod:";
/// Prefix of containers: their names begin with a slash here, as Docker's own do.
const CONTAINER: &str = "container:/";
/// The options of the entry for drops, by their numbers.
const OF_DROPS: [usize; 7] = [5, 7, 8, 9, 10, 11, 12];

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(command) = args.command {
        match command {
            ExtcapCommand::Install(args) => install::install(&args)?,
            ExtcapCommand::Remove(args) => install::remove(&args)?,
            ExtcapCommand::Fields(args) => write_out(&fields::text(&args))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.extcap_interfaces {
        write_out(&interfaces())?;
    } else if args.extcap_dlts {
        known(&args)?;
        write_out("dlt {number=1}{name=EN10MB}{display=Ethernet}\n")?;
    } else if let Some(option) = &args.extcap_reload_option {
        if option.trim_start_matches('-') != "program" {
            let what = format!("cannot list the values of {option} again");
            return Err(Error::usage(what, "only --program has values that change"));
        }
        write_out(&values(PROGRAM_NUMBER, &programs(known(&args)?)))?;
    } else if args.extcap_config {
        let version = args.extcap_version.clone().flatten();
        write_out(&config(known(&args)?, version.as_deref()))?;
    } else if args.capture {
        return run_into_fifo(chosen(&args)?, &args);
    } else if let Some(filter) = &args.extcap_capture_filter {
        // Wireshark takes any text on standard output as the reason why the filter is invalid.
        write_out(&filter_error(filter))?;
    } else {
        return Err(Error::usage(
            "nothing to do",
            "this command is called by Wireshark, with --extcap-interfaces and the like",
        )
        .fix("trawl extcap install makes it known to Wireshark"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the chosen entry: NAME, NAMESPACE:NAME or the one for other namespaces.
fn known(args: &Args) -> Result<&str> {
    let name = args
        .extcap_interface
        .as_deref()
        .ok_or_else(|| Error::usage("no interface is named", "--extcap-interface is missing"))?;
    Ok(name.strip_prefix(PREFIX).unwrap_or(name))
}

/// Returns the interface to capture on.
fn chosen(args: &Args) -> Result<&str> {
    match (known(args)?, args.elsewhere.as_str()) {
        (ELSEWHERE, "") => Err(Error::usage(
            "no interface of another network namespace is chosen",
            "the field \"Interface\" in the entry's options is empty",
        )
        .fix(format!(
            "choose one there; in tshark: -i {PREFIX}{ELSEWHERE} -o extcap.trawl_another_namespace.elsewhere:NAMESPACE:IF"
        ))),
        (ELSEWHERE, elsewhere) => Ok(elsewhere),
        (name, _) => Ok(name),
    }
}

fn filter_error(filter: &str) -> String {
    match compile(filter, &trawl_filter::CompilerOptions::default()) {
        Ok(_) => String::new(),
        Err(error) => format!("{error}\n"),
    }
}

fn interfaces() -> String {
    let mut text = format!(
        "extcap {{version={}}}{{help=https://www.wireshark.org/docs/man-pages/extcap.html}}{{display=trawl}}\n",
        env!("CARGO_PKG_VERSION")
    );
    let elsewhere = interfaces_elsewhere(|link| link.is_up() && !link.is_loopback()).take(LISTED_MAX);
    let pods = trawl_capture::pods::running().into_iter().take(LISTED_MAX);
    let pods = pods.map(|pod| (format!("{POD}{pod}"), format!("pod {pod}"))).filter(|(name, _)| is_passed(name));
    let containers = trawl_capture::containers::running().into_iter().take(LISTED_MAX);
    let containers = containers.map(|one| (format!("{CONTAINER}{}", one.name), format!("container {}", one.name)));
    let fixed = [
        (DROPPED, "packets that the kernel drops, with the reason"),
        (ELSEWHERE, "an interface of another network namespace, chosen in its options"),
    ];
    let fixed = fixed.into_iter().chain(stored::entries());
    let fixed = fixed.map(|(name, display)| (name.to_owned(), display.to_owned()));
    // A namespace that cannot be read is left out.
    for (name, display) in
        interfaces_of(None, |_| true).into_iter().chain(elsewhere).chain(pods).chain(containers).chain(fixed)
    {
        let _ = writeln!(text, "interface {{value={PREFIX}{name}}}{{display=trawl: {display}}}");
    }
    text + include_str!("extcap/toolbar.txt")
}

/// Returns the names of a namespace's chosen interfaces, and their descriptions.
fn interfaces_of(namespace: Option<&Namespace>, is_chosen: impl Fn(&LinkRecord) -> bool) -> Vec<(String, String)> {
    let links = Netlink::open(namespace).and_then(|mut netlink| netlink.links());
    let named = links.unwrap_or_default().into_iter().filter(|link| is_chosen(link)).map(|link| {
        let name = match namespace.and_then(Namespace::name) {
            Some(namespace) => format!("{namespace}:{}", link.name),
            None => link.name.clone(),
        };
        let display = describe(&name, &link);
        (name, display)
    });
    named.filter(|(name, _)| is_passed(name)).collect()
}

/// Returns false for names with braces, which Wireshark could not pass back: it has no quoting.
fn is_passed(name: &str) -> bool {
    !name.contains(|c: char| matches!(c, '{' | '}') || c.is_control())
}

/// Returns the chosen interfaces of named network namespaces.
fn interfaces_elsewhere(is_chosen: impl Fn(&LinkRecord) -> bool + Copy) -> impl Iterator<Item = (String, String)> {
    let namespaces = netns::list().into_iter().filter_map(|name| Namespace::by_name(&name).ok());
    namespaces.flat_map(move |namespace| interfaces_of(Some(&namespace), is_chosen))
}

/// Returns the interfaces of named network namespaces.
fn elsewhere() -> Vec<Value> {
    let found = interfaces_elsewhere(|_| true).map(|(name, display)| value(&name, &display, false));
    [value("", "none", true)].into_iter().chain(found).collect()
}

fn describe(name: &str, link: &LinkRecord) -> String {
    let what = match (link.is_up(), link.xdp.is_empty()) {
        (false, _) => " (down)",
        (true, true) => "",
        (true, false) => " (XDP program attached)",
    };
    format!("{name}{what}")
}

/// The numbers of --tap, --program and --elsewhere among the options.
const TAP_NUMBER: usize = 0;
const PROGRAM_NUMBER: usize = 4;
const ELSEWHERE_NUMBER: usize = 13;

/// A value of an option, its text in the dialog, and true for the default.
type Value = (String, String, bool);

fn value(value: &str, display: &str, default: bool) -> Value {
    (value.to_owned(), display.to_owned(), default)
}

fn values(number: usize, values: &[Value]) -> String {
    let line = |(value, display, default): &Value| {
        format!("value {{arg={number}}}{{value={value}}}{{display={display}}}{{default={default}}}\n")
    };
    values.iter().map(line).collect()
}

/// Returns the taps that this machine supports; a capture by another would only fail.
fn taps() -> Vec<Value> {
    let mut taps = vec![value("auto", "chosen by trawl: both directions, the device untouched", true)];
    let may_be_offered = |facts: &&Facts| TAPS.contains(&facts.name());
    for facts in taps::all().filter(may_be_offered) {
        let is_offered = taps.iter().any(|(name, ..)| name == facts.name());
        if !is_offered && facts.missing().is_empty() {
            taps.push(value(facts.name(), &format!("{}: {}", facts.name(), facts.sees), false));
        }
    }
    taps
}

/// Returns the XDP programs that are attached now.
fn programs(interface: &str) -> Vec<Value> {
    let mut found = vec![value("", "the attached one", true)];
    let Ok(site) = CaptureSite::find(interface, None) else {
        return found;
    };
    let attached = site.interface.xdp_attached(site.namespace.as_ref());
    if let Some(present) = attached.ok().flatten() {
        let id = present.program_id;
        let name = trawl_program::name_of(id).unwrap_or_else(|| "of unknown name".to_owned());
        found.push(value(&id.to_string(), &format!("{name} (id {id})"), false));
        found.push(value("all", "all of a chain", false));
    }
    found
}

/// Returns the type of the program option. Wireshark 4.0 has no selector that accepts other values too, and sends no
/// version when it asks for options. It prints an error for each unknown type.
fn program_type(version: Option<&str>) -> &'static str {
    let mut numbers = version.unwrap_or_default().split('.').map_while(|part| {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        part[..digits].parse::<u32>().ok()
    });
    match (numbers.next(), numbers.next()) {
        (Some(major), minor) if (major, minor.unwrap_or(0)) >= (4, 4) => "editselector",
        _ => "selector",
    }
}

/// Returns the dialog of an interface's options.
fn config(interface: &str, version: Option<&str>) -> String {
    let elsewhere = match interface {
        ELSEWHERE => format!(
            "arg {{number={ELSEWHERE_NUMBER}}}{{call=--elsewhere}}{{display=Interface}}\
             {{tooltip=The interface of a named network namespace}}{{type=PROGRAM_TYPE}}\n{}",
            values(ELSEWHERE_NUMBER, &elsewhere())
        ),
        _ => String::new(),
    };
    let options = include_str!("extcap.txt");
    if let Some(options) = stored::config(interface) {
        return options.to_owned();
    }
    if interface == DROPPED {
        let is_one = |line: &&str| OF_DROPS.iter().any(|number| is_about(line, *number));
        return options.lines().filter(is_one).map(|line| format!("{line}\n")).collect();
    }
    (elsewhere + options)
        .replace("TAPS\n", &values(TAP_NUMBER, &taps()))
        .replace("PROGRAMS\n", &values(PROGRAM_NUMBER, &programs(interface)))
        .replace("PROGRAM_TYPE", program_type(version))
}

/// Returns true for a line of the dialog about the option with this number, or a value of it.
fn is_about(line: &str, number: usize) -> bool {
    line.starts_with(&format!("arg {{number={number}}}")) || line.starts_with(&format!("value {{arg={number}}}"))
}

fn run_into_fifo(interface: &str, args: &Args) -> Result<ExitCode> {
    let path = args.fifo.as_deref().ok_or_else(|| Error::usage("cannot capture", "--fifo is missing"))?;
    let fail = |path: &Path, e| Error::os(format!("cannot open {}", path.display()), e);
    let writable = |path: &Path| {
        let opened = File::options().write(true).truncate(true).open(path);
        opened.map_err(|e| fail(path, e))
    };
    if stored::is_entry(interface) {
        return stored::run(interface, writable(path)?, args);
    }
    let plan = plan(interface, args)?;
    let fifo = writable(path)?;
    let answers = args.extcap_control_out.as_deref().map(writable).transpose()?;
    let choice = Arc::default();
    if let Some(path) = &args.extcap_control_in {
        let source = File::open(path).map_err(|e| fail(path, e))?;
        let toolbar = Toolbar { source, answers, choice: Arc::clone(&choice) };
        std::thread::spawn(move || toolbar.apply_changes());
    }
    let mut sink = ChosenPackets::new(fifo, "Wireshark", choice);
    match trawl_source::live::run_into(plan, &mut sink) {
        // Wireshark has stopped the capture.
        Err(error) if error.errno() == Some(errno::EPIPE) => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

/// Returns the plan for the settings of Wireshark's dialog. Fields that the chosen tap lacks are ignored.
fn plan(interface: &str, asked: &Args) -> Result<CapturePlan> {
    let tap = if interface == DROPPED { TapChoice::Drop } else { asked.tap };
    let usual = Taps::of(&[tap])?.usual();
    let has_ends = matches!(asked.tap, TapChoice::Xdp | TapChoice::Tailcall);
    let has_both = matches!(asked.tap, TapChoice::Tc | TapChoice::Packet);
    let at = asked.at.filter(|at| has_ends || *at != At::Exit);
    let direction = asked.direction.filter(|direction| has_both || *direction != Direction::In);
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let verdicts = given(&asked.verdict)
        .map(|list| VerdictSet::parse(VerdictKind::Xdp, &list))
        .transpose()
        .map_err(|e| Error::usage("cannot understand --verdict", e))?;
    let sample = match asked.sample.as_str() {
        "" => None,
        number => Some(units::one_in(&format!("1/{number}")).map_err(|e| wrong("--sample", e))?),
    };
    let rate_limit = match asked.limit_rate.as_str() {
        "" => None,
        rate => Some(units::rate(rate).map_err(|e| wrong("--limit-rate", e))?),
    };
    let filter = given(&asked.extcap_capture_filter)
        .map(|filter| if asked.inner == "true" { Filter::Inner(filter) } else { Filter::Expression(filter) });
    let options = CaptureOptions {
        at,
        direction,
        verdicts,
        programs: given(&asked.program).map(|text| Programs::parse(&text)),
        snaplen: match asked.snaplen {
            0 => usual.snaplen,
            bytes => recording::snaplen(bytes.into())?,
        },
        sample: sample.map(Sample::Random),
        rate_limit,
        filter,
        process: processes(asked)?,
        ..usual
    };
    Ok(CapturePlan::new(sources(interface)?, options))
}

fn sources(interface: &str) -> Result<Sources> {
    if interface == DROPPED {
        return Ok(Sources::default());
    }
    if let Some(pod) = interface.strip_prefix(POD).filter(|pod| pod.contains('/')) {
        return Ok(Sources { pods: vec![pod.to_owned()], ..Sources::default() });
    }
    let Some(name) = interface.strip_prefix(CONTAINER) else {
        return Ok(Sources { names: vec![interface.to_owned()], ..Sources::default() });
    };
    let container = trawl_capture::containers::running().into_iter().find(|one| one.name == name).ok_or_else(|| {
        Error::failed(format!("cannot capture in the container {name}"), "no running container has this name")
    })?;
    let netns = Some(container.process.to_string());
    Ok(Sources { names: vec![ANY.to_owned()], netns, ..Sources::default() })
}

/// Returns the plan for the fields about processes. Packets that are chosen by process have comments at least, which
/// every Wireshark shows.
fn processes(asked: &Args) -> Result<Option<ProcessPlan>> {
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let detail = given(&asked.process).map(|text| serde_json::from_value(text.into()));
    let process = given(&asked.pid).map(|text| text.parse());
    let plan = ProcessPlan {
        detail: detail.unwrap_or(Ok(ProcessDetail::Comment)).map_err(|e| wrong("--process", e.to_string()))?,
        process: process.transpose().map_err(|e: ParseIntError| wrong("--pid", e.to_string()))?,
        name: given(&asked.comm),
        cgroup: given(&asked.container),
        ..ProcessPlan::default()
    };
    Ok((!asked.process.is_empty() || plan.filters()).then_some(plan))
}

fn wrong(option: &str, why: String) -> Error {
    Error::usage(format!("cannot understand {option}"), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_an_option_follows_the_version() {
        for old in [None, Some(""), Some("4.0"), Some("4.2.5"), Some("3.6"), Some("x")] {
            assert_eq!(program_type(old), "selector", "{old:?}");
        }
        for new in ["4.4", "4.4.0rc1", "4.10", "5.0", "5"] {
            assert_eq!(program_type(Some(new)), "editselector", "{new}");
        }
    }
}
