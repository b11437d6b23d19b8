//! Commands that change the rules and the guarded interfaces.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use trawl_guard::file::RuleFile;
use trawl_guard::rule::{On, TcpState};
use trawl_guard::set::{self, Changed, Listed, RuleChanges};
use trawl_guard::{Action, Draft, Guard, Match, RuleSet, state};
use trawl_program::Site;
use trawl_program::unload::UnloadChoice;
use trawl_sys::netlink::XdpMode;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result, clock, confirm};

use super::{Apply, ChangeArgs, Load, PresetRule, Remove, Rule, split};
use crate::json;
use crate::program_args::{Change, TargetArgs, find_all, warn_of_removing};
use crate::terminal::write_out;

/// The effect of `guard load` on an interface, in JSON.
#[derive(Serialize)]
struct Guarded<'a> {
    interface: &'a str,
    program_id: u32,
    mode: &'static str,
    rules: usize,
    default: Option<&'static str>,
}

#[derive(Serialize)]
struct Loaded<'a> {
    interfaces: Vec<Guarded<'a>>,
}

pub fn load(args: &Load) -> Result<()> {
    let attach = &args.attach;
    attach.verifier_log.begin()?;
    let sites = find_all(&args.interfaces.some("guard load")?, &attach.netns)?;
    let Some((first, others)) = sites.split_first() else {
        return Ok(());
    };
    if attach.consent.confirm.is_some() && others.iter().any(|other| !other.shares_namespace(first)) {
        return Err(Error::usage(
            "cannot revert a change of several network namespaces",
            "--confirm works in one namespace",
        )
        .fix("run one command for each namespace"));
    }
    let replaced = if attach.replace { &sites[..] } else { &[] };
    let change = Change::Guard(first.namespace(), replaced);
    attach.warn_of_attaching(&sites);
    attach.consent.make(vec![change], || load_on(args, &sites))
}

fn load_on(args: &Load, sites: &[Site]) -> Result<()> {
    let attach = &args.attach;
    let request = attach.request(args.prio);
    let care = attach.consent.care();
    let mut done = Vec::new();
    for site in sites {
        let guard = Guard::find_or_make(site.namespace())?;
        let installed = guard.load(site, args.default, &request, care)?;
        let set = guard.rules()?;
        let holds = set.defaults.iter().find(|one| one.on.index == site.index());
        let one = Guarded {
            interface: site.label(),
            program_id: installed.id(),
            mode: installed.mode().map_or("", XdpMode::name),
            rules: set.rules.len(),
            default: holds.map(|one| one.action.name()),
        };
        if !attach.json {
            write_out(&format!(
                "guarding {} (id {}, {}): {}, default {}\n",
                one.interface,
                one.program_id,
                one.mode,
                rules(one.rules),
                one.default.unwrap_or_default(),
            ))?;
        }
        done.push(one);
    }
    if attach.json { json::print(&Loaded { interfaces: done }) } else { Ok(()) }
}

/// Returns `1 rule` or `2 rules`.
fn rules(count: usize) -> String {
    format!("{count} rule{}", if count == 1 { "" } else { "s" })
}

#[derive(Serialize)]
struct Unguarded<'a> {
    interfaces: Vec<&'a str>,
}

pub fn unload(args: &TargetArgs) -> Result<()> {
    let sites = find_all(&args.interfaces.some("guard unload")?, &args.netns)?;
    for site in &sites {
        confirm::refuse_if_pending(&state::scope(site.namespace())?)?;
        let Some(guard) = Guard::find(site.namespace())? else {
            return Err(state::not_guarded(site));
        };
        warn_of_removing(site, UnloadChoice::Own);
        guard.unload(site)?;
        if !args.json {
            write_out(&format!("removed the guard from {}\n", site.label()))?;
        }
    }
    if args.json { json::print(&Unguarded { interfaces: sites.iter().map(Site::label).collect() }) } else { Ok(()) }
}

fn end_of(lasts: Option<Duration>) -> Option<u64> {
    lasts.map(|time| clock::monotonic() + time.as_nanos() as u64)
}

fn on(namespace: Option<&Namespace>, name: Option<&str>) -> Result<Option<On>> {
    name.map(|name| state::on(namespace, name)).transpose()
}

pub fn add(action: Action, args: &Rule) -> Result<()> {
    let (namespace, interface) = split(&args.how.netns, args.on.as_deref())?;
    let whole = Match {
        source: None,
        destination: args.dst,
        protocol: args.proto,
        ports: args.port,
        source_ports: args.src_port,
        source_mac: args.src_mac,
        destination_mac: args.dst_mac,
        icmp: args.icmp,
        tcp: match (args.syn, args.established) {
            (true, _) => Some(TcpState::Syn),
            (_, true) => Some(TcpState::Established),
            _ => None,
        },
        on: on(namespace.as_ref(), interface)?,
    };
    if action == Action::Deny && args.rate.is_none() && args.src.is_empty() && whole.is_about_everything() && !args.all
    {
        return Err(Error::usage("the rule would deny every packet", "it names no address, protocol or port")
            .fix("name the packets to deny, or add --all to deny every packet"));
    }
    let sources: Vec<_> = match args.src.as_slice() {
        [] => vec![None],
        all => all.iter().copied().map(Some).collect(),
    };
    let draft = |source| {
        let what = Match { source, ..whole.clone() };
        let what = what.complete().map_err(|why| Error::usage("no packet could match the rule", why))?;
        Ok(Draft { action, what, rate: args.rate, expires: end_of(args.lasts) })
    };
    let drafts = sources.into_iter().map(draft).collect::<Result<Vec<_>>>()?;
    add_drafts(namespace.as_ref(), drafts, &args.how)
}

pub fn preset(args: &PresetRule) -> Result<()> {
    let (namespace, interface) = split(&args.how.netns, args.on.as_deref())?;
    let on = on(namespace.as_ref(), interface)?;
    let mut drafts = args.name.drafts(args.rate);
    for draft in &mut drafts {
        draft.what.on.clone_from(&on);
    }
    add_drafts(namespace.as_ref(), drafts, &args.how)
}

/// An added rule, in JSON.
#[derive(Serialize)]
struct Added {
    id: u32,
    replaced: bool,
    rule: String,
}

fn add_drafts(namespace: Option<&Namespace>, drafts: Vec<Draft>, how: &ChangeArgs) -> Result<()> {
    let (added, is_guarded) = how.make(namespace, || {
        let guard = Guard::find_or_make(namespace)?;
        let added: Vec<_> = guard.change(how.consent.care(), |set| {
            let add = |draft: Draft| (set.add(draft.clone()), draft);
            Ok(drafts.into_iter().map(add).collect())
        })?;
        Ok((added, !guard.posts()?.is_empty()))
    })?;
    for (set::Added { id, replaced }, draft) in added {
        let document = Added { id, replaced, rule: draft.numbered(id).to_string() };
        json::print_as(how.json, &document, || {
            let replaced = if replaced { " (replaces the rule for the same packets)" } else { "" };
            format!("rule {id}: {}{replaced}\n", document.rule)
        })?;
    }
    if !is_guarded {
        say_not_guarded("");
    }
    Ok(())
}

fn say_not_guarded(options: &str) {
    let text = format!("no interface is guarded yet: trawl guard load IF{options}");
    json::say("not_guarded", json!({}), &text);
}

#[derive(Serialize)]
struct Removed {
    removed: usize,
}

pub fn remove(args: &Remove) -> Result<()> {
    let namespace = args.how.netns.open()?;
    let none = || Error::failed("cannot remove rules", "no rules exist");
    let removed = args.how.make(namespace.as_ref(), || {
        let guard = Guard::find(namespace.as_ref())?.ok_or_else(none)?;
        guard.change(args.how.consent.care(), |set| {
            if args.all {
                return Ok(set.remove(|_| true));
            }
            for id in &args.ids {
                if set.rules.iter().all(|rule| rule.id != *id) {
                    return Err(Error::failed(format!("cannot remove rule {id}"), "no rule has this number")
                        .fix("trawl guard list shows them"));
                }
            }
            Ok(set.remove(|rule| args.ids.contains(&rule.id)))
        })
    })?;
    json::print_as(args.how.json, &Removed { removed }, || format!("removed {}\n", rules(removed)))
}

/// Returns the rules of a file, with each interface looked up once.
fn drafts(file: &RuleFile, path: &Path, namespace: Option<&Namespace>) -> Result<Vec<Draft>> {
    let mut known: HashMap<&str, On> = HashMap::new();
    let mut all = Vec::with_capacity(file.rules.len());
    for rule in &file.rules {
        let mut draft = rule.draft.clone();
        draft.what.on = match rule.on.as_deref() {
            None => None,
            Some(name) => Some(match known.get(name) {
                Some(on) => on.clone(),
                None => {
                    let found = state::on(namespace, name).map_err(|why| {
                        let position = format!("{}, {}", path.display(), rule.position);
                        Error::failed(format!("cannot apply the rule at {position}"), why)
                    })?;
                    known.insert(name, found.clone());
                    found
                }
            }),
        };
        draft.expires = end_of(rule.lasts);
        all.push(draft);
    }
    Ok(all)
}

#[derive(Serialize)]
struct Applied {
    rules: usize,
    /// Set if the file was only checked, with --check.
    checked_only: bool,
    default: Option<&'static str>,
    #[serde(flatten)]
    check: Option<CheckResult>,
}

/// Changes that `guard apply --check` finds in the file.
#[derive(Serialize)]
struct CheckResult {
    changes: RuleChanges,
    /// Packets within a second that were decided by rules and defaults to be removed or changed.
    packets_affected_per_second: Option<u64>,
}

impl CheckResult {
    /// Compares the file with the rules in force, measuring for a second if it does more than add rules.
    fn compare(namespace: Option<&Namespace>, replace: impl FnOnce(&mut RuleSet)) -> Result<Self> {
        let in_force = || match Guard::find_to_read(namespace)? {
            Some(guard) => guard.rules(),
            None => Ok(RuleSet::default()),
        };
        let before = in_force()?;
        let mut after = before.clone();
        replace(&mut after);
        let changes = before.changes_to(&after);
        let only_adds = changes.removed.is_empty() && changes.changed.is_empty() && changes.defaults.is_empty();
        let packets_affected_per_second = if only_adds {
            None
        } else {
            std::thread::sleep(Duration::from_secs(1));
            let later = in_force()?.decided_by(&changes);
            Some(later.saturating_sub(before.decided_by(&changes)))
        };
        Ok(Self { changes, packets_affected_per_second })
    }

    fn for_people(&self) -> String {
        const SHOWN: usize = 100;
        let RuleChanges { added, removed, changed, defaults, unchanged } = &self.changes;
        let listed = |sign: &str, one: &Listed| format!("{sign} rule {}: {}\n", one.id, one.rule);
        let changed_line = |what: &str, one: &Changed| {
            let Changed { of, from, to } = one;
            format!("~ {what} {of}: {from} -> {to}\n")
        };
        let default_lines = defaults.iter().map(|one| changed_line("default on", one));
        let lines = default_lines
            .chain(removed.iter().map(|one| listed("-", one)))
            .chain(changed.iter().map(|one| changed_line("rule", one)))
            .chain(added.iter().map(|one| listed("+", one)));
        let mut text: String = lines.take(SHOWN).collect();
        let all = added.len() + removed.len() + changed.len() + defaults.len();
        if all > SHOWN {
            let _ = writeln!(text, "... and {} more; --json lists all", all - SHOWN);
        }
        let _ = writeln!(
            text,
            "would add {}, remove {}, change {} and keep {unchanged}",
            added.len(),
            removed.len(),
            changed.len() + defaults.len()
        );
        if let Some(packets) = self.packets_affected_per_second {
            let _ = writeln!(text, "packets in the last second decided by removed or changed rules: {packets}");
        }
        text
    }
}

pub fn apply(args: &Apply) -> Result<()> {
    let namespace = args.how.netns.open()?;
    let file = if args.file == Path::new("-") {
        RuleFile::parse_in(&RuleFile::text_of_stdin()?, "standard input", Path::new(""))?
    } else {
        RuleFile::read(&args.file)?
    };
    if !args.all {
        file.refuse_rules_about_everything()?;
    }
    let drafts = drafts(&file, &args.file, namespace.as_ref())?;
    let count = drafts.len();
    let replace = |set: &mut RuleSet| {
        set.replace_all(drafts);
        for one in &mut set.defaults {
            let named = file.interfaces.iter().find(|(name, _)| *name == one.on.name);
            let action = named.map(|(_, action)| *action).or(file.default);
            one.action = action.unwrap_or(one.action);
        }
    };
    let mut done =
        Applied { rules: count, checked_only: args.check, default: file.default.map(Action::name), check: None };
    if args.check {
        let check = CheckResult::compare(namespace.as_ref(), replace)?;
        let text = check.for_people();
        done.check = Some(check);
        return json::print_as(args.how.json, &done, || {
            format!("{}: {}, no errors\n{text}", args.file.display(), rules(count))
        });
    }
    let is_guarded = args.how.make(namespace.as_ref(), || {
        let guard = Guard::find_or_make(namespace.as_ref())?;
        guard.change(args.how.consent.care(), |set| {
            replace(set);
            Ok(())
        })?;
        Ok(!guard.posts()?.is_empty())
    })?;
    json::print_as(args.how.json, &done, || {
        if is_guarded {
            format!("{} in force\n", rules(count))
        } else {
            format!("{} set, but not in force\n", rules(count))
        }
    })?;
    if !is_guarded {
        let default = file.default.map_or(String::new(), |action| format!(" --default {}", action.name()));
        say_not_guarded(&default);
    }
    Ok(())
}
