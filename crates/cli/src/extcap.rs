//! `trawl extcap`: what Wireshark and tshark ask of a program that captures for them.

mod capture;
mod install;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use trawl_attach::look;
use trawl_filter::{LinkType, Options, compile};
use trawl_sys::netlink::{Link, Netlink};
use trawl_sys::netns::{self, Namespace};
use trawl_sys::{Error, Result};
use trawl_tap::capture_site::CaptureSite;
use trawl_tap::table::{self, Facts};

use crate::capture::args::{AtName, DirectionName};
use crate::terminal::write_out;

/// Captures for Wireshark and tshark, which call this themselves; `trawl extcap install` makes it known to them
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
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
    /// Ask again for the values of one option
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    extcap_reload_option: Option<String>,
    /// The interface that is meant
    #[arg(long, value_name = "IF")]
    extcap_interface: Option<String>,
    /// A capture filter: to be checked, or to be used with --capture
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,
    /// Capture
    #[arg(long)]
    capture: bool,
    /// Where packets are written
    #[arg(long, value_name = "PATH")]
    fifo: Option<PathBuf>,
    /// Where the toolbar's messages come from
    #[arg(long, value_name = "PATH")]
    extcap_control_in: Option<PathBuf>,
    /// Where messages to the toolbar go
    #[arg(long, value_name = "PATH")]
    extcap_control_out: Option<PathBuf>,
    /// Where to see the packets
    #[arg(long, value_enum, default_value_t = TapName::Auto)]
    tap: TapName,
    /// At which end of an XDP program
    #[arg(long, value_enum)]
    at: Option<AtName>,
    /// Which way the packets go
    #[arg(long, value_enum)]
    direction: Option<DirectionName>,
    /// Only packets with these verdicts
    #[arg(long, value_name = "LIST")]
    verdict: Option<String>,
    /// Which of the attached XDP programs
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
}

#[derive(Debug, Subcommand)]
enum Command {
    Install(install::Args),
    Remove(install::Args),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TapName {
    Auto,
    Xdp,
    Hook,
    Tc,
    Packet,
}

/// What this program's interfaces begin with in Wireshark's list.
const PREFIX: &str = "trawl:";
/// The toolbar's field for the filter.
const FILTER_CONTROL: u8 = 0;

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(command) = args.command {
        match command {
            Command::Install(args) => install::install(&args)?,
            Command::Remove(args) => install::remove(&args)?,
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
            return Err(Error::usage(what, "only those of --program change"));
        }
        write_out(&values(PROGRAM_NUMBER, &programs(known(&args)?)))?;
    } else if args.extcap_config {
        let version = args.extcap_version.clone().flatten();
        write_out(&config(known(&args)?, version.as_deref()))?;
    } else if args.capture {
        return capture::run(known(&args)?, &args);
    } else if let Some(filter) = &args.extcap_capture_filter {
        // Anything on standard output tells Wireshark that the filter is wrong.
        write_out(&complaint(filter))?;
    } else {
        return Err(Error::usage(
            "nothing to do",
            "this command is called by Wireshark, with --extcap-interfaces and the like",
        )
        .fix("trawl extcap install makes it known to Wireshark"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The interface that is meant, NAME or NAMESPACE:NAME.
fn known(args: &Args) -> Result<&str> {
    let name = args
        .extcap_interface
        .as_deref()
        .ok_or_else(|| Error::usage("no interface is named", "--extcap-interface is missing"))?;
    Ok(name.strip_prefix(PREFIX).unwrap_or(name))
}

fn complaint(filter: &str) -> String {
    let options = Options {
        link: LinkType::ETHERNET,
        snaplen: 262_144,
        netmask: None,
        optimise: true,
        file: None,
    };
    match compile(filter, &options) {
        Ok(_) => String::new(),
        Err(error) => format!("{error}\n"),
    }
}

fn interfaces() -> String {
    let mut text = format!(
        "extcap {{version={}}}{{help=https://www.wireshark.org/docs/man-pages/extcap.html}}{{display=trawl}}\n",
        env!("CARGO_PKG_VERSION")
    );
    let mut namespaces: Vec<Option<Namespace>> = vec![None];
    let named = netns::list();
    namespaces.extend(
        named
            .iter()
            .filter_map(|name| Namespace::by_name(name).ok())
            .map(Some),
    );
    for namespace in &namespaces {
        let links = Netlink::open(namespace.as_ref()).and_then(|mut netlink| netlink.links());
        // A namespace that cannot be looked into is left out: Wireshark shows the others.
        for link in links.unwrap_or_default() {
            let name = match namespace.as_ref().and_then(Namespace::name) {
                Some(namespace) => format!("{namespace}:{}", link.name),
                None => link.name.clone(),
            };
            // Wireshark could not hand these names back: it knows no quoting.
            if name.contains(|c: char| matches!(c, '{' | '}') || c.is_control()) {
                continue;
            }
            let _ = writeln!(
                text,
                "interface {{value={PREFIX}{name}}}{{display=trawl: {}}}",
                describe(&name, &link)
            );
        }
    }
    let _ = writeln!(
        text,
        "control {{number={FILTER_CONTROL}}}{{type=string}}{{display=Filter}}{{tooltip=Which packets, as tcpdump takes \
         it; takes effect at once}}{{placeholder=tcp port 80}}"
    );
    text
}

fn describe(name: &str, link: &Link) -> String {
    let what = match (link.is_up(), link.xdp.is_empty()) {
        (false, _) => " (down)",
        (true, true) => "",
        (true, false) => " (XDP program attached)",
    };
    format!("{name}{what}")
}

/// The place of --program among the options.
const PROGRAM_NUMBER: usize = 4;

/// A value of an option, what is shown for it, and whether it is the one if nobody chooses.
type Value = (String, String, bool);

fn value(value: &str, display: &str, default: bool) -> Value {
    (value.to_owned(), display.to_owned(), default)
}

fn values(number: usize, values: &[Value]) -> String {
    let line = |(value, display, default): &Value| {
        format!(
            "value {{arg={number}}}{{value={value}}}{{display={display}}}{{default={default}}}\n"
        )
    };
    values.iter().map(line).collect()
}

/// The taps that this machine has; of the others a capture would only say that it has not.
fn taps() -> Vec<Value> {
    let mut taps = vec![value(
        "auto",
        "chosen by trawl: both directions, the device untouched",
        true,
    )];
    let has_name = |facts: &&&Facts| <TapName as ValueEnum>::from_str(facts.name, false).is_ok();
    for facts in table::ALL.iter().filter(has_name) {
        let is_offered = taps.iter().any(|(name, ..)| name == facts.name);
        if !is_offered && facts.missing().is_empty() {
            taps.push(value(
                facts.name,
                &format!("{}: {}", facts.name, facts.sees),
                false,
            ));
        }
    }
    taps
}

/// The XDP programs that are attached now.
fn programs(interface: &str) -> Vec<Value> {
    let mut found = vec![value("", "the attached one", true)];
    let Ok(site) = CaptureSite::find(interface, None) else {
        return found;
    };
    let attached = site.interface.xdp_attached(site.namespace.as_ref());
    if let Some(present) = attached.ok().flatten() {
        let id = present.program_id;
        let name = look::name_of(id).unwrap_or_else(|| "of unknown name".to_owned());
        found.push(value(&id.to_string(), &format!("{name} (id {id})"), false));
        found.push(value("all", "all of a chain", false));
    }
    found
}

/// Wireshark 4.0 has no selector that accepts other values too, and names no version when it asks for options. It prints
/// an error for each type that it does not know.
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

fn config(interface: &str, version: Option<&str>) -> String {
    let program = format!(
        "{{call=--program}}{{display=XDP program}}{{tooltip=Which one, where several are attached}}\
         {{type={}}}{{reload=true}}{{placeholder=Look again}}",
        program_type(version)
    );
    let ends = [
        value("exit", "at its exit, with the verdict", true),
        value("entry", "at its entry", false),
        value("both", "at both ends", false),
    ];
    let ways = [
        value("in", "received", false),
        value("out", "sent", false),
        value("inout", "both", false),
    ];
    let verdicts = ["aborted", "drop", "pass", "tx", "redirect"]
        .map(|name| value(name, &name.to_uppercase(), false));
    let options: [(&str, &[Value]); 9] = [
        (
            "{call=--tap}{display=Tap}{tooltip=Where the packets are seen}{type=selector}",
            &taps(),
        ),
        (
            "{call=--at}{display=Recorded}{tooltip=At which end of the XDP program}{type=selector}",
            &ends,
        ),
        (
            "{call=--direction}{display=Direction}{tooltip=Which way the packets go, where the tap sees both}{type=selector}",
            &ways,
        ),
        (
            "{call=--verdict}{display=Only these verdicts}{tooltip=Of an XDP program; all if none is chosen}{type=multicheck}",
            &verdicts,
        ),
        (&program, &programs(interface)),
        (
            "{call=--snaplen}{display=Bytes of each packet}{tooltip=0 for all}{type=unsigned}{range=0,262144}{default=0}",
            &[],
        ),
        (
            "{call=--inner}{display=Filter inside tunnels}{tooltip=Apply the capture filter to the packet inside VXLAN, \
             GENEVE, GRE or IP-in-IP}{type=boolean}{default=false}",
            &[],
        ),
        (
            "{call=--sample}{display=One packet in}{tooltip=Record one packet in N, chosen by chance; empty for all}\
             {type=string}{validation=^([1-9][0-9]{0,8})?$}{group=Load}",
            &[],
        ),
        (
            "{call=--limit-rate}{display=Packets a second, at most}{tooltip=For example 10kpps; empty for no limit}\
             {type=string}{validation=^([0-9]+(\\.[0-9]+)?[kMG]?(pps)?)?$}{group=Load}",
            &[],
        ),
    ];
    let mut text = String::new();
    for (number, (rest, offered)) in options.iter().enumerate() {
        let _ = writeln!(text, "arg {{number={number}}}{rest}");
        text.push_str(&values(number, offered));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_an_option_follows_the_version() {
        for old in [
            None,
            Some(""),
            Some("4.0"),
            Some("4.2.5"),
            Some("3.6"),
            Some("x"),
        ] {
            assert_eq!(program_type(old), "selector", "{old:?}");
        }
        for new in ["4.4", "4.4.0rc1", "4.10", "5.0", "5"] {
            assert_eq!(program_type(Some(new)), "editselector", "{new}");
        }
    }
}
