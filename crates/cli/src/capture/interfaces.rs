//! The interfaces that a capture is for: as they were named, all of them for `any`, and the list of them that -D shows.

use std::collections::HashSet;
use std::process::ExitCode;

use serde::Serialize;
use trawl_kernel::netlink::{Link, Netlink};
use trawl_kernel::netns::{self, Namespace};
use trawl_kernel::{Error, Result};
use trawl_tap::capture_site::CaptureSite;
use trawl_tap::options::Options;
use trawl_tap::select::select;

use super::Args;
use crate::json;
use crate::terminal::write_out;

/// tcpdump's name for all interfaces.
const ANY: &str = "any";
const IFF_UP: u32 = 1;

pub(crate) fn find(args: &Args) -> Result<Vec<CaptureSite>> {
    let mut sites = Vec::new();
    for text in &args.interfaces {
        if args.names_ports() {
            sites.push(trawl_tap::dpdk::find(text)?);
            continue;
        }
        if args.names_devices() {
            sites.push(trawl_tap::pcap::find(text, args.netns.as_deref())?);
            continue;
        }
        let (namespace, name) = match text.split_once(':') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (args.netns.as_deref(), text.as_str()),
        };
        let prefixed = text.contains(':');
        if name != ANY && !is_pattern(name) && !namespace.is_some_and(is_pattern) {
            sites.push(CaptureSite::find(text, args.netns.as_deref())?);
            continue;
        }
        let before = sites.len();
        for namespace in namespaces(namespace) {
            let matching = |link: &&Link| match name {
                ANY => link.flags & IFF_UP != 0,
                pattern => matches(pattern, &link.name),
            };
            let links = match links_in(namespace.as_deref()) {
                Ok(links) => links,
                // One that went away just now is none of all.
                Err(_) if is_pattern(text) => continue,
                Err(error) => return Err(error),
            };
            for link in links.iter().filter(matching) {
                let label = match &namespace {
                    Some(namespace) if prefixed => format!("{namespace}:{}", link.name),
                    _ => link.name.clone(),
                };
                if let Ok(mut site) = CaptureSite::find(&label, args.netns.as_deref()) {
                    site.one_of_any = true;
                    sites.push(site);
                }
            }
        }
        if sites.len() == before && name == ANY {
            return Err(
                Error::failed("cannot capture on any interface", "none is up here")
                    .fix("ip link set dev IF up"),
            );
        }
        if sites.len() == before {
            let what = format!("cannot capture on {text}");
            return Err(Error::failed(what, "no interface has such a name")
                .fix("trawl capture -D lists them"));
        }
    }
    // One that two patterns name is captured once.
    let mut known = HashSet::new();
    sites.retain(|site| !site.one_of_any || known.insert(site.label.clone()));
    Ok(sites)
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// The namespaces that are meant: `None` is the present one.
fn namespaces(wanted: Option<&str>) -> Vec<Option<String>> {
    match wanted {
        Some(pattern) if is_pattern(pattern) => {
            let named = netns::list().into_iter();
            named
                .filter(|name| matches(pattern, name))
                .map(Some)
                .collect()
        }
        other => vec![other.map(str::to_owned)],
    }
}

/// As the shell matches names: `*` any text, `?` any letter, `[a-c]` one of these, `[!a-c]` none of these.
fn matches(pattern: &str, name: &str) -> bool {
    fn class(pattern: &[char], letter: char) -> Option<(bool, usize)> {
        let negated = matches!(pattern.first(), Some('!' | '^'));
        let start = usize::from(negated);
        let end = start
            + 1
            + pattern
                .get(start + 1..)?
                .iter()
                .position(|one| *one == ']')?;
        let mut set = &pattern[start..end];
        let mut found = false;
        while let [first, rest @ ..] = set {
            set = match rest {
                ['-', last, rest @ ..] => {
                    found |= (*first..=*last).contains(&letter);
                    rest
                }
                rest => {
                    found |= *first == letter;
                    rest
                }
            };
        }
        Some((found != negated, end + 1))
    }
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut to) = (0, 0);
    // Where the last `*` stands, and how much of the name it takes up.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let step = match (pattern.get(at), name.get(to)) {
            (None, None) => return true,
            (Some('*'), _) => {
                star = Some((at, to));
                at += 1;
                continue;
            }
            (Some('?'), Some(_)) => Some(1),
            (Some('['), Some(letter)) => match class(&pattern[at + 1..], *letter) {
                Some((true, length)) => Some(1 + length),
                Some((false, _)) => None,
                None => (*letter == '[').then_some(1),
            },
            (Some(one), Some(letter)) if one == letter => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(length), _) => (at, to) = (at + length, to + 1),
            (None, Some((begin, taken))) if taken < name.len() => {
                star = Some((begin, taken + 1));
                (at, to) = (begin + 1, taken + 1);
            }
            _ => return false,
        }
    }
}

fn links_in(namespace: Option<&str>) -> Result<Vec<Link>> {
    let namespace = namespace.map(Namespace::open).transpose()?;
    Netlink::open(namespace.as_ref())?.links()
}

/// An interface in the list.
#[derive(Debug, Serialize)]
struct Row {
    index: u32,
    name: String,
    up: bool,
    driver: Option<String>,
    /// The XDP program on it.
    xdp_program: Option<u32>,
    /// What a capture without --tap would use.
    taps: Vec<&'static str>,
    /// Why no tap can be used without more options.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
}

pub(super) fn list(args: &Args, options: &Options) -> Result<ExitCode> {
    let mut rows = Vec::new();
    for link in links_in(args.netns.as_deref())? {
        let Ok(site) = CaptureSite::find(&link.name, args.netns.as_deref()) else {
            continue;
        };
        let selection = select(&site, options);
        let (taps, refusal) = match selection {
            Ok(selection) => (selection.taps.iter().map(|tap| tap.name()).collect(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        rows.push(Row {
            index: link.index,
            up: link.flags & IFF_UP != 0,
            driver: site.interface.driver.clone(),
            xdp_program: link.xdp.first().map(|found| found.program_id),
            name: link.name,
            taps,
            refusal,
        });
    }
    if args.json {
        json::print(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!(
        "{:>5}  {:<15}  {:<5}  {:<12}  {:>8}  tap\n",
        "index", "interface", "state", "driver", "xdp id"
    );
    for row in &rows {
        let taps = match &row.refusal {
            Some(why) => format!("none: {why}"),
            None => row.taps.join(", "),
        };
        text.push_str(&format!(
            "{:>5}  {:<15}  {:<5}  {:<12}  {:>8}  {taps}\n",
            row.index,
            row.name,
            if row.up { "up" } else { "down" },
            row.driver.as_deref().unwrap_or("-"),
            row.xdp_program
                .map_or_else(|| "-".to_owned(), |id| id.to_string()),
        ));
    }
    write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_the_shell() {
        for (pattern, name, expected) in [
            ("veth*", "veth0", true),
            ("veth*", "veth", true),
            ("veth*", "eth0", false),
            ("*", "lo", true),
            ("*th*1", "veth0.1", true),
            ("*th*1", "veth0.2", false),
            ("eth?", "eth0", true),
            ("eth?", "eth10", false),
            ("eth[0-2]", "eth1", true),
            ("eth[0-2]", "eth3", false),
            ("eth[!0-2]", "eth3", true),
            ("eth[!0-2]*", "eth1", false),
            ("eth[", "eth[", true),
            ("e[]t]h", "e]h", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
