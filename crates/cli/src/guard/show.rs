//! What the guard shows of itself: its rules, and what became of packets.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use trawl_guard::rule::{Rule, TcpState};
use trawl_guard::{Guard, Post, RuleSet, names, state, text};
use trawl_kernel::layout::guard::{
    GUARD_DEFAULT_ALLOWED, GUARD_DEFAULT_DENIED, GUARD_DISCOVERY, GUARD_MALFORMED, GUARD_NOT_IP,
    GUARD_OVER_RATE, GUARD_RULE_ALLOWED, GUARD_RULE_DENIED,
};
use trawl_kernel::netlink::XdpMode;
use trawl_kernel::{Error, Result, clock};
use trawl_program::Site;

use super::{List, Stats};
use crate::terminal::write_out;

pub fn list(args: &List) -> Result<()> {
    let namespace = args.place.namespace()?;
    let set = match Guard::find(namespace.as_ref())? {
        Some(guard) => guard.rules()?,
        None => RuleSet::default(),
    };
    write_out(&match args.json {
        true => format!("{:#}\n", as_json(&set)),
        false => for_people(&set),
    })
}

fn left(rule: &Rule) -> Option<Duration> {
    rule.expires
        .map(|end| Duration::from_nanos(end.saturating_sub(clock::monotonic())))
}

fn for_people(set: &RuleSet) -> String {
    if set.rules.is_empty() && set.defaults.is_empty() {
        return "no rules, and no guarded interface\n".to_owned();
    }
    let mut text = String::new();
    let _ = writeln!(text, "{:>6}  {:>12}  rule", "id", "hits");
    for rule in &set.rules {
        let hits = set.hits_of(rule.id);
        let _ = write!(text, "{:>6}  {:>12}  {rule}", rule.id, hits.decided);
        if let Some(left) = left(rule) {
            let _ = write!(text, " ({} left)", text::short_duration(left));
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

fn as_json(set: &RuleSet) -> Value {
    let rule = |rule: &Rule| {
        let hits = set.hits_of(rule.id);
        let what = &rule.what;
        json!({
            "id": rule.id,
            "action": rule.action.name(),
            "src": what.source.map(|prefix| prefix.to_string()),
            "dst": what.destination.map(|prefix| prefix.to_string()),
            "proto": what.protocol.map(names::protocol_name),
            "port": what.ports.map(|ports| ports.to_string()),
            "icmp": what.icmp.map(|icmp| names::icmp_type_name(icmp.v4, icmp.v6)),
            "tcp": what.tcp.map(|state| match state {
                TcpState::Syn => "syn",
                TcpState::Established => "established",
            }),
            "on": what.on.as_ref().map(|on| &on.name),
            "rate": rule.rate,
            "expires_in": left(rule).map(|left| left.as_secs_f64()),
            "hits": hits.decided,
            "limited": hits.limited,
        })
    };
    let defaults = set.defaults.iter().map(|default| {
        json!({
            "interface": default.on.name,
            "action": default.action.name(),
            "hits": default.hits,
        })
    });
    json!({
        "rules": set.rules.iter().map(rule).collect::<Vec<_>>(),
        "defaults": defaults.collect::<Vec<_>>(),
    })
}

/// What can become of a packet: its place among the totals, its name in JSON, how it is told, and whether it passed.
const FATES: [(usize, &str, &str, bool); 8] = [
    (
        GUARD_RULE_ALLOWED,
        "rule_allowed",
        "allowed by a rule",
        true,
    ),
    (
        GUARD_DEFAULT_ALLOWED,
        "default_allowed",
        "allowed by default",
        true,
    ),
    (GUARD_NOT_IP, "not_ip", "not IP", true),
    (
        GUARD_DISCOVERY,
        "discovery",
        "neighbour discovery, in spite of the default",
        true,
    ),
    (GUARD_RULE_DENIED, "rule_denied", "denied by a rule", false),
    (
        GUARD_DEFAULT_DENIED,
        "default_denied",
        "denied by default",
        false,
    ),
    (GUARD_OVER_RATE, "over_rate", "over the rate", false),
    (GUARD_MALFORMED, "malformed", "malformed", false),
];

pub fn stats(args: &Stats) -> Result<()> {
    let posts = posts(args)?;
    let mut text = String::new();
    let mut all = Vec::new();
    for post in &posts {
        let totals = post.totals()?;
        let sum = |passed: bool| -> u64 {
            let counted = FATES.iter().filter(|(.., passes)| *passes == passed);
            counted.map(|(at, ..)| totals.0[*at]).sum()
        };
        let (passed, dropped) = (sum(true), sum(false));
        let mode = post.standing.mode().map_or("", XdpMode::name);
        if args.json {
            let mut one = json!({
                "interface": post.site.label(),
                "mode": mode,
                "program_id": post.standing.id(),
                "seen": passed + dropped,
                "passed": passed,
                "dropped": dropped,
            });
            for (at, name, ..) in FATES {
                one[name] = totals.0[at].into();
            }
            all.push(one);
            continue;
        }
        let _ = writeln!(
            text,
            "{} ({mode}): {} seen, {passed} passed, {dropped} dropped",
            post.site.label(),
            passed + dropped
        );
        for (at, _, words, passes) in FATES {
            if totals.0[at] > 0 {
                let which = if passes { "passed" } else { "dropped" };
                let _ = writeln!(text, "  {:>12}  {which}: {words}", totals.0[at]);
            }
        }
    }
    if args.json {
        text = format!("{:#}\n", json!({ "interfaces": all }));
    }
    write_out(&text)
}

fn posts(args: &Stats) -> Result<Vec<Post>> {
    if args.interfaces.is_empty() {
        let namespace = args.place.namespace()?;
        let posts = state::posts(namespace.as_ref())?;
        return match posts.is_empty() && !args.json {
            true => Err(Error::failed("cannot count", "no interface is guarded")
                .mend("trawl guard load IF")),
            false => Ok(posts),
        };
    }
    let one = |text: &String| {
        let site = Site::find(text, args.place.netns.as_deref())?;
        let found = state::posts(site.namespace())?
            .into_iter()
            .find(|post| post.site.index() == site.index());
        found.ok_or_else(|| state::not_guarded(&site))
    };
    args.interfaces.iter().map(one).collect()
}
