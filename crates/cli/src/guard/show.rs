//! Commands that show the guard: its rules, and its packets by outcome.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use trawl_guard::outcomes::{DROPPED, PASSED};
use trawl_guard::rule::{On, Rule, TcpState};
use trawl_guard::{Guard, Post, RuleSet, file, state, values};
use trawl_program::Site;
use trawl_program::bundled::stats::Named;
use trawl_sys::confirm::{self, Reverted};
use trawl_sys::netlink::XdpMode;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result, clock};

use super::{List, split};
use crate::args::NetnsArg;
use crate::json;
use crate::program_args::{TargetArgs, find_all};
use crate::terminal::write_out;

pub fn list(args: &List) -> Result<()> {
    let target = &args.target;
    let interface = target.interfaces.at_most_one("guard list")?;
    let (namespace, interface) = split(&target.netns, interface.as_deref())?;
    let on = interface.map(|name| state::on(namespace.as_ref(), name));
    let on = on.transpose()?;
    args.watch.show(target.json, || {
        let mut set = rules_of(namespace.as_ref())?;
        let reverted = confirm::reverted(&state::scope(namespace.as_ref())?)?;
        if let Some(on) = &on {
            let holds = |other: &On| other.index == on.index;
            set.rules.retain(|rule| rule.what.on.as_ref().is_none_or(holds));
            set.defaults.retain(|default| holds(&default.on));
        }
        if target.json { json::line(&Listed::of(&set, reverted)) } else { Ok(for_people(&set, reverted.as_ref())) }
    })
}

fn rules_of(namespace: Option<&Namespace>) -> Result<RuleSet> {
    match Guard::find_to_read(namespace)? {
        Some(guard) => guard.rules(),
        None => Ok(RuleSet::default()),
    }
}

pub fn save(netns: &NetnsArg) -> Result<()> {
    let namespace = netns.open()?;
    let set = rules_of(namespace.as_ref())?;
    write_out(&file::text_of(&set))
}

fn left(rule: &Rule) -> Option<Duration> {
    rule.expires.map(|end| Duration::from_nanos(end.saturating_sub(clock::monotonic())))
}

fn for_people(set: &RuleSet, reverted: Option<&Reverted>) -> String {
    let mut text = match reverted {
        Some(reverted) => format!("{reverted}\n"),
        None => String::new(),
    };
    if set.rules.is_empty() && set.defaults.is_empty() {
        return text + "no rules, and no guarded interface\n";
    }
    let _ = writeln!(text, "{:>6}  {:>12}  rule", "id", "hits");
    for rule in &set.rules {
        let hits = set.hits_of(rule.id);
        let _ = write!(text, "{:>6}  {:>12}  {rule}", rule.id, hits.decided);
        if let Some(left) = left(rule) {
            let _ = write!(text, " ({} left)", values::short_duration(left));
        }
        if hits.limited > 0 {
            let _ = write!(text, " ({} over the rate dropped)", hits.limited);
        }
        text.push('\n');
    }
    for default in &set.defaults {
        let _ = writeln!(
            text,
            "{:>6}  {:>12}  default on {}: {}",
            "-",
            default.hits,
            default.on.name,
            default.action.name()
        );
    }
    text
}

/// The JSON output of `guard list`.
#[derive(Serialize)]
struct Listed<'a> {
    rules: Vec<ListedRule>,
    defaults: Vec<ListedDefault<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reverted: Option<Reverted>,
}

#[derive(Serialize)]
struct ListedRule {
    id: u32,
    action: &'static str,
    src: Option<String>,
    dst: Option<String>,
    proto: Option<String>,
    port: Option<String>,
    src_port: Option<String>,
    src_mac: Option<String>,
    dst_mac: Option<String>,
    icmp: Option<String>,
    tcp: Option<&'static str>,
    on: Option<String>,
    rate: Option<u64>,
    expires_in: Option<f64>,
    hits: u64,
    limited: u64,
}

#[derive(Serialize)]
struct ListedDefault<'a> {
    interface: &'a str,
    action: &'static str,
    hits: u64,
}

impl<'a> Listed<'a> {
    fn of(set: &'a RuleSet, reverted: Option<Reverted>) -> Self {
        let rule = |rule: &'a Rule| {
            let hits = set.hits_of(rule.id);
            let conditions = rule.what.conditions();
            let of = |name: &str| {
                let found = conditions.iter().find(|(known, _)| *known == name);
                found.and_then(|(_, value)| value.clone())
            };
            ListedRule {
                id: rule.id,
                action: rule.action.name(),
                src: of("src"),
                dst: of("dst"),
                proto: of("proto"),
                port: of("port"),
                src_port: of("src-port"),
                src_mac: of("src-mac"),
                dst_mac: of("dst-mac"),
                icmp: of("icmp"),
                tcp: rule.what.tcp.map(TcpState::name),
                on: of("on"),
                rate: rule.rate,
                expires_in: left(rule).map(|left| left.as_secs_f64()),
                hits: hits.decided,
                limited: hits.limited,
            }
        };
        let defaults = set.defaults.iter().map(|default| ListedDefault {
            interface: &default.on.name,
            action: default.action.name(),
            hits: default.hits,
        });
        Self { rules: set.rules.iter().map(rule).collect(), defaults: defaults.collect(), reverted }
    }
}

/// The JSON output of `guard stats`.
#[derive(Serialize)]
struct Counts<'a> {
    interfaces: Vec<Counted<'a>>,
}

#[derive(Serialize)]
struct Counted<'a> {
    interface: &'a str,
    mode: &'static str,
    program_id: u32,
    seen: u64,
    passed: u64,
    dropped: u64,
    #[serde(flatten)]
    fates: BTreeMap<&'static str, u64>,
}

pub fn stats(args: &TargetArgs) -> Result<()> {
    let posts = posts(args)?;
    let mut text = String::new();
    let mut interfaces = Vec::new();
    for post in &posts {
        let totals = post.totals()?;
        let sum = |of: &[Named]| of.iter().map(|(at, ..)| totals.0[*at]).sum::<u64>();
        let (passed, dropped) = (sum(PASSED), sum(DROPPED));
        let mode = post.installed.mode().map_or("", XdpMode::name);
        let _ = writeln!(
            text,
            "{} ({mode}): {} seen, {passed} passed, {dropped} dropped",
            post.site.label(),
            passed + dropped
        );
        let mut fates = BTreeMap::new();
        for (which, of) in [("passed", PASSED), ("dropped", DROPPED)] {
            for (at, name, remark) in of {
                let count = totals.0[*at];
                fates.insert(*name, count);
                if count > 0 {
                    let _ = writeln!(text, "  {count:>12}  {which}: {remark}");
                }
            }
        }
        interfaces.push(Counted {
            interface: post.site.label(),
            mode,
            program_id: post.installed.id(),
            seen: passed + dropped,
            passed,
            dropped,
            fates,
        });
    }
    json::print_as(args.json, &Counts { interfaces }, || text)
}

fn posts(args: &TargetArgs) -> Result<Vec<Post>> {
    let names = args.interfaces.names();
    if names.is_empty() {
        let namespace = args.netns.open()?;
        let posts = state::posts(namespace.as_ref())?;
        return if posts.is_empty() && !args.json {
            Err(Error::failed("cannot count", "no interface is guarded").fix("trawl guard load IF"))
        } else {
            Ok(posts)
        };
    }
    let one = |site: Site| {
        let found = state::posts(site.namespace())?.into_iter().find(|post| post.site.index() == site.index());
        found.ok_or_else(|| state::not_guarded(&site))
    };
    let sites = find_all(&names, &args.netns)?;
    sites.into_iter().map(one).collect()
}
