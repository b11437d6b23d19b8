//! The interfaces that a capture is for: as they were named, all of them for `any`, and the list of them that -D shows.

use std::process::ExitCode;

use serde::Serialize;
use trawl_kernel::netlink::{Link, Netlink};
use trawl_kernel::netns::Namespace;
use trawl_kernel::{Error, Result};
use trawl_tap::options::Options;
use trawl_tap::select::select;
use trawl_tap::site::Site;

use super::Args;
use crate::json;
use crate::terminal::write_out;

/// tcpdump's name for all interfaces.
const ANY: &str = "any";
const IFF_UP: u32 = 1;

pub(crate) fn find(args: &Args) -> Result<Vec<Site>> {
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
        if name != ANY {
            sites.push(Site::find(text, args.netns.as_deref())?);
            continue;
        }
        let up = |link: &Link| link.flags & IFF_UP != 0;
        let links = links_in(namespace)?;
        let before = sites.len();
        for link in links.iter().filter(|link| up(link)) {
            let label = match text.split_once(':') {
                Some((namespace, _)) => format!("{namespace}:{}", link.name),
                None => link.name.clone(),
            };
            // One that went away just now is none of all.
            if let Ok(mut site) = Site::find(&label, args.netns.as_deref()) {
                site.one_of_any = true;
                sites.push(site);
            }
        }
        if sites.len() == before {
            return Err(
                Error::failed("cannot capture on any interface", "none is up here")
                    .fix("ip link set dev IF up"),
            );
        }
    }
    Ok(sites)
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
        let Ok(site) = Site::find(&link.name, args.netns.as_deref()) else {
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
