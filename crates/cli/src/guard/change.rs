//! What changes the rules, and where they hold.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use trawl_guard::file::RuleFile;
use trawl_guard::rule::{On, TcpState};
use trawl_guard::{Action, Care, Draft, Guard, Match, state};
use trawl_kernel::netlink::XdpMode;
use trawl_kernel::netns::Namespace;
use trawl_kernel::{Error, Result, clock};
use trawl_program::Site;
use trawl_program::attach::Wish;

use super::{Apply, Load, PresetRule, Remove, Rule, Unload};
use crate::terminal;
use crate::terminal::write_out;

pub fn load(args: &Load) -> Result<()> {
    let sites = find(&args.interfaces, args.place.netns.as_deref())?;
    let wish = Wish {
        mode: args.mode(),
        replace: args.replace,
        priority: args.prio,
        ..Wish::default()
    };
    let default = args.default.map(Action::from);
    for site in &sites {
        let guard = Guard::find_or_make(site.namespace())?;
        let standing = guard.load(site, default, &wish, args.tappable, args.consent.care())?;
        let set = guard.rules()?;
        let holds = set.defaults.iter().find(|one| one.on.index == site.index());
        write_out(&format!(
            "guarding {} (id {}, {}): {} rule{}, default {}\n",
            site.label(),
            standing.id(),
            standing.mode().map_or("", XdpMode::name),
            set.rules.len(),
            if set.rules.len() == 1 { "" } else { "s" },
            holds.map_or("", |one| one.action.name()),
        ))?;
    }
    Ok(())
}

pub fn unload(args: &Unload) -> Result<()> {
    for site in find(&args.interfaces, args.place.netns.as_deref())? {
        let Some(guard) = Guard::find(site.namespace())? else {
            return Err(state::not_guarded(&site));
        };
        guard.unload(&site)?;
        write_out(&format!("{} is not guarded any more\n", site.label()))?;
    }
    Ok(())
}

fn find(interfaces: &[String], netns: Option<&str>) -> Result<Vec<Site>> {
    interfaces
        .iter()
        .map(|text| Site::find(text, netns))
        .collect()
}

fn end_of(lasts: Option<Duration>) -> Option<u64> {
    lasts.map(|time| clock::monotonic() + time.as_nanos() as u64)
}

fn on(namespace: Option<&Namespace>, name: Option<&str>) -> Result<Option<On>> {
    name.map(|name| state::on(namespace, name)).transpose()
}

pub fn add(action: Action, args: &Rule) -> Result<()> {
    let namespace = args.place.namespace()?;
    let whole = Match {
        source: None,
        destination: args.dst,
        protocol: args.proto,
        ports: args.port,
        icmp: args.icmp,
        tcp: match (args.syn, args.established) {
            (true, _) => Some(TcpState::Syn),
            (_, true) => Some(TcpState::Established),
            _ => None,
        },
        on: on(namespace.as_ref(), args.on.as_deref())?,
    };
    let sources: Vec<_> = match args.src.as_slice() {
        [] => vec![None],
        all => all.iter().copied().map(Some).collect(),
    };
    let draft = |source| {
        let what = Match {
            source,
            ..whole.clone()
        };
        let what = what
            .complete()
            .map_err(|why| Error::usage("no packet could match the rule", why))?;
        Ok(Draft {
            action,
            what,
            rate: args.rate,
            expires: end_of(args.lasts),
        })
    };
    let drafts = sources.into_iter().map(draft).collect::<Result<Vec<_>>>()?;
    add_drafts(namespace.as_ref(), drafts, args.consent.care(), args.json)
}

pub fn preset(args: &PresetRule) -> Result<()> {
    let namespace = args.place.namespace()?;
    let on = on(namespace.as_ref(), args.on.as_deref())?;
    let mut drafts = args.name.drafts(args.rate);
    for draft in &mut drafts {
        draft.what.on.clone_from(&on);
    }
    add_drafts(namespace.as_ref(), drafts, args.consent.care(), args.json)
}

fn add_drafts(
    namespace: Option<&Namespace>,
    drafts: Vec<Draft>,
    care: Care,
    as_json: bool,
) -> Result<()> {
    let guard = Guard::find_or_make(namespace)?;
    let added: Vec<_> = guard.change(care, |set| {
        let add = |draft: Draft| (set.add(draft.clone()), draft);
        Ok(drafts.into_iter().map(add).collect())
    })?;
    let is_guarded = !guard.posts()?.is_empty();
    let mut text = String::new();
    for (added, draft) in &added {
        let rule = draft.clone().numbered(added.id);
        if as_json {
            let line =
                json!({ "id": added.id, "replaced": added.replaced, "rule": rule.to_string() });
            let _ = writeln!(text, "{line}");
        } else {
            let replaced = if added.replaced {
                " (in the place of the one about the same packets)"
            } else {
                ""
            };
            let _ = writeln!(text, "rule {}: {rule}{replaced}", added.id);
        }
    }
    write_out(&text)?;
    if !is_guarded {
        terminal::say("no interface is guarded yet: trawl guard load IF");
    }
    Ok(())
}

pub fn remove(args: &Remove) -> Result<()> {
    let namespace = args.place.namespace()?;
    let none = || Error::failed("cannot remove rules", "there are none");
    let Some(guard) = Guard::find(namespace.as_ref())? else {
        return Err(none());
    };
    let count = guard.change(args.consent.care(), |set| {
        if args.all {
            return Ok(set.remove(|_| true));
        }
        for id in &args.ids {
            if set.rules.iter().all(|rule| rule.id != *id) {
                return Err(Error::failed(
                    format!("cannot remove rule {id}"),
                    "there is none of that number",
                )
                .mend("trawl guard list shows them"));
            }
        }
        Ok(set.remove(|rule| args.ids.contains(&rule.id)))
    })?;
    write_out(&format!(
        "removed {count} rule{}\n",
        if count == 1 { "" } else { "s" }
    ))
}

/// The rules of a file, with the interfaces of the namespace, each of which is looked for once.
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
                        let place = format!("{}, {}", path.display(), rule.place);
                        Error::failed(format!("cannot apply the rule at {place}"), why)
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

pub fn apply(args: &Apply) -> Result<()> {
    let namespace = args.place.namespace()?;
    let file = match args.file == Path::new("-") {
        true => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|e| Error::os("cannot read the rules from standard input", e))?;
            RuleFile::parse_in(&text, "standard input", Path::new(""))?
        }
        false => RuleFile::read(&args.file)?,
    };
    let drafts = drafts(&file, &args.file, namespace.as_ref())?;
    let count = drafts.len();
    let plural = if count == 1 { "" } else { "s" };
    if args.check {
        return write_out(&format!(
            "{}: {count} rule{plural}, all right\n",
            args.file.display()
        ));
    }
    let guard = Guard::find_or_make(namespace.as_ref())?;
    guard.change(args.consent.care(), |set| {
        set.replace_all(drafts);
        if let Some(default) = file.default {
            set.defaults.iter_mut().for_each(|one| one.action = default);
        }
        Ok(())
    })?;
    write_out(&format!("{count} rule{plural} in force\n"))?;
    if guard.posts()?.is_empty() {
        let default = file.default.map_or(String::new(), |action| {
            format!(" --default {}", action.name())
        });
        terminal::say(&format!(
            "no interface is guarded yet: trawl guard load IF{default}"
        ));
    }
    Ok(())
}
