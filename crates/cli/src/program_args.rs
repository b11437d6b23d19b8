//! Arguments shared by commands about programs on interfaces: the interfaces, the attach mode, and the effects that a
//! change may have.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use trawl_guard::{state, values};
use trawl_program::pins::Installed;
use trawl_program::safety::SessionCare;
use trawl_program::unload::{self, UnloadChoice};
use trawl_program::{AttachRequest, CardEffects, OldMaps, Site, swap};
use trawl_sys::confirm::{self, Pending};
use trawl_sys::netlink::XdpMode;
use trawl_sys::netns::{self, Namespace};
use trawl_sys::{Error, Result};

use crate::args::{InterfaceArgs, NamedValue, NamespacesArg, NetnsArg, VerifierLog, choice};
use crate::json::{self, rounded};
use trawl_sys::words::word;

/// Modes of programs. The card's is the last, so that an option for trawl's own programs can leave it out.
pub const MODES: [NamedValue<XdpMode>; 3] = [
    ("native", "In the driver", XdpMode::Native),
    ("skb", "After the driver, in the stack", XdpMode::Skb),
    ("hw", "On the card", XdpMode::Offload),
];

/// The interfaces that a command inspects without changing them.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("interfaces", |arg| arg.help("These interfaces, NAME or NAMESPACE:NAME [default: all that have an XDP program]")),
    mut_arg("netns", |arg| arg.num_args(1..)),
)]
pub struct SiteArgs {
    #[command(flatten)]
    interfaces: InterfaceArgs,
    #[command(flatten)]
    namespaces: NamespacesArg,
}

impl SiteArgs {
    pub fn are_named(&self) -> bool {
        !self.interfaces.names().is_empty()
    }

    pub fn find(&self) -> Result<Vec<Site>> {
        let mut sites = Vec::new();
        if !self.are_named() {
            for namespace in self.namespaces()? {
                sites.extend(Site::all_in(namespace.as_ref())?);
            }
            return Ok(sites);
        }
        let namespaces = self.namespaces.given();
        for text in &self.interfaces.names() {
            // A name is of an interface in the namespace before the colon, or else of one in each of the namespaces.
            if text.contains(':') || namespaces.is_empty() {
                sites.push(Site::find(text, None)?);
                continue;
            }
            for namespace in namespaces {
                sites.push(Site::find(text, Some(namespace))?);
            }
        }
        Ok(sites)
    }

    fn namespaces(&self) -> Result<Vec<Option<Namespace>>> {
        if self.namespaces.are_all() {
            // An interface that was deleted meanwhile is skipped.
            let named = netns::list();
            let named = named.iter().filter_map(|name| Namespace::by_name(name).ok());
            let here = Namespace::current()?;
            let others = named.filter(|one| *one != here).map(Some);
            return Ok(std::iter::once(None).chain(others).collect());
        }
        if self.namespaces.given().is_empty() {
            return Ok(vec![None]);
        }
        let open = |name: &String| Namespace::open(name).map(Some);
        self.namespaces.given().iter().map(open).collect()
    }
}

/// The interfaces of a command, and the form of its output.
#[derive(Debug, clap::Args)]
pub struct TargetArgs {
    #[command(flatten)]
    pub interfaces: InterfaceArgs,
    #[command(flatten)]
    pub netns: NetnsArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Finds the interfaces of these names.
pub fn find_all(interfaces: &[String], netns: &NetnsArg) -> Result<Vec<Site>> {
    let find = |text: &String| Site::find(text, netns.as_deref());
    interfaces.iter().map(find).collect()
}

/// Interfaces that a program of trawl's own is removed from.
#[derive(Debug, clap::Args)]
pub struct UnloadArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub consent: Consent,
}

/// The JSON output of `route unload` and `balance unload`.
#[derive(Debug, Serialize)]
struct Unloaded<'a> {
    unloaded: Vec<&'a str>,
}

impl UnloadArgs {
    /// Prints the interfaces from which `what` was removed.
    pub fn print_removed(&self, what: &str, sites: &[Site]) -> Result<()> {
        let document = Unloaded { unloaded: sites.iter().map(Site::label).collect() };
        json::print_as(self.target.json, &document, || {
            format!("unloaded {what} from {}\n", document.unloaded.join(", "))
        })
    }
}

/// Options for attaching one of trawl's own programs.
#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    /// Mode of the program [default: native, and skb where the driver has no XDP]
    #[arg(long, value_parser = choice(&MODES[..2]))]
    mode: Option<XdpMode>,
    /// Replace the program on the interface
    #[arg(long)]
    pub replace: bool,
    /// Add hooks so that `trawl capture --tap tailcall` works where the kernel refuses tracing programs
    #[arg(long)]
    tappable: bool,
    #[command(flatten)]
    pub netns: NetnsArg,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub consent: Consent,
    #[command(flatten)]
    pub verifier_log: VerifierLog,
}

impl AttachArgs {
    /// Prints what the cards of these interfaces do when they get their first program.
    pub fn warn_of_attaching(&self, sites: &[Site]) {
        warn_of_attaching(sites, self.mode);
    }

    pub fn request(&self, priority: Option<u32>) -> AttachRequest {
        self.consent.limits(AttachRequest {
            mode: self.mode,
            replace: self.replace,
            priority,
            tappable: self.tappable,
            ..AttachRequest::default()
        })
    }
}

/// Prints, before the change, what the cards of these interfaces do when they get their first program.
pub fn warn_of_attaching(sites: &[Site], mode: Option<XdpMode>) {
    for site in sites {
        if let Some(effects) = CardEffects::of_attaching(site, mode) {
            let data = json!({ "interface": site.label(), "driver": effects.driver });
            json::say("touches_card", data, &effects.warning(site.label()));
        }
    }
}

/// Prints, before the change, what cards do when their last program is removed: the interface's card, and the cards
/// that have a program only for this interface.
pub fn warn_of_removing(site: &Site, which: UnloadChoice) {
    let mut own = Installed::all(site).unwrap_or_default();
    let is_last = match which {
        UnloadChoice::All => true,
        UnloadChoice::Own => own.len() == 1,
        UnloadChoice::One(_) => own.len() <= 1,
    };
    if let UnloadChoice::One(id) = which {
        own.retain(|one| one.id() == id);
    }
    let others = own.iter().flat_map(|one| one.carriers(site));
    for cleared in is_last.then(|| site.clone()).into_iter().chain(others) {
        if let Some(warning) = CardEffects::of_removing(&cleared) {
            let data = json!({ "interface": cleared.label() });
            json::say("touches_card", data, &warning);
        }
    }
}

/// `--yes` makes a change that would cut a session; `--confirm` reverts it unless the user confirms.
#[derive(Debug, clap::Args)]
pub struct Consent {
    /// Apply even if it cuts the SSH session of this command, or removes a guard
    #[arg(long)]
    pub yes: bool,
    /// Restore the previous state after this time, for example 60s, unless `trawl xdp confirm` (for a guard's rules:
    /// `trawl guard confirm`) runs before
    #[arg(long, value_name = "TIME", value_parser = values::duration, conflicts_with = "yes")]
    pub confirm: Option<Duration>,
}

/// A change that may be reverted.
pub enum Change<'a> {
    /// A change of the programs on an interface.
    Programs(&'a Site),
    /// A change of the guard of a namespace, which may replace other programs on these interfaces.
    Guard(Option<&'a Namespace>, &'a [Site]),
}

impl Change<'_> {
    fn scope(&self) -> Result<String> {
        match self {
            Self::Programs(site) => swap::scope(site),
            Self::Guard(namespace, _) => state::scope(*namespace),
        }
    }

    fn begin(&self, time: Duration) -> Result<Pending> {
        let (scope, command) = (self.scope()?, confirm_command());
        match self {
            Self::Programs(site) => confirm::begin(&scope, &command, time, &swap::ProgramBackup::note(site)?),
            Self::Guard(namespace, replaced) => {
                let back = state::GuardBackup::note(*namespace, replaced)?;
                confirm::begin(&scope, &command, time, &back)
            }
        }
    }

    /// Returns the command that confirms the change.
    fn keep(&self) -> String {
        match self {
            Self::Programs(site) => format!("trawl xdp confirm {}", word(site.label())),
            Self::Guard(Some(namespace), _) => {
                format!("trawl guard confirm --netns {}", word(namespace.label()))
            }
            Self::Guard(None, _) => "trawl guard confirm".to_owned(),
        }
    }
}

impl Consent {
    /// Returns the care to take: a change that may cut a session is refused, unless the user agreed to it.
    pub fn care(&self) -> SessionCare {
        if self.yes || self.confirm.is_some() { SessionCare::Without } else { SessionCare::ForTheSession }
    }

    /// Refuses to unload a program that this command's session needs, unless the user agreed to it. Prints what the
    /// card does when its last program is removed.
    pub fn check_unload(&self, site: &Site, which: UnloadChoice) -> Result<()> {
        if !self.yes {
            unload::check_unload(site, which, self.care() == SessionCare::ForTheSession)?;
        }
        warn_of_removing(site, which);
        Ok(())
    }

    /// Sets the permitted damage of an attached program: with `--confirm` anything that can be reverted, with `--yes`
    /// everything.
    pub fn limits(&self, request: AttachRequest) -> AttachRequest {
        let careful = self.care() == SessionCare::ForTheSession;
        AttachRequest {
            maps: match request.maps {
                OldMaps::Keep => OldMaps::Keep,
                _ if careful => OldMaps::Ask,
                _ => OldMaps::Drop,
            },
            careful,
            keep_guard: !self.yes,
            ..request
        }
    }

    /// Changes the programs on interfaces, with a time limit if one was given.
    pub fn change<R>(&self, sites: &[Site], change: impl FnOnce() -> Result<R>) -> Result<R> {
        self.make(sites.iter().map(Change::Programs).collect(), change)
    }

    /// Makes a change as a whole, with a time limit if one was given.
    pub fn make<R>(&self, changes: Vec<Change<'_>>, change: impl FnOnce() -> Result<R>) -> Result<R> {
        let Some(time) = self.confirm else {
            for one in &changes {
                confirm::refuse_if_pending(&one.scope()?)?;
            }
            let done = change()?;
            // The report of an earlier change that was reverted is out of date.
            for one in &changes {
                confirm::forget_reverted(&one.scope()?)?;
            }
            return Ok(done);
        };
        let begin = |one: &Change<'_>| one.begin(time);
        let pending: Vec<_> = changes.iter().map(begin).collect::<Result<_>>()?;
        let done = change()?;
        for (one, pending) in changes.iter().zip(pending) {
            pending.applied()?;
            let text = format!(
                "the change is reverted in {} unless it is confirmed: {}",
                values::short_duration(time),
                one.keep()
            );
            let seconds = time.as_secs_f64();
            json::say("revert_pending", json!({ "seconds": seconds }), &text);
        }
        Ok(done)
    }
}

/// The output of `confirm --json`.
#[derive(Debug, Serialize)]
struct Confirmed {
    command: String,
    #[serde(serialize_with = "rounded")]
    seconds_left: f64,
}

/// Confirms a change, which would otherwise be reverted.
pub fn keep(change: &Change<'_>, as_json: bool) -> Result<()> {
    let about = confirm::confirm(&change.scope()?)?;
    let text = format!("confirmed: {}\n", about.command);
    let document = Confirmed { command: about.command, seconds_left: about.left.as_secs_f64() };
    json::print_as(as_json, &document, || text)
}

/// Returns the command line of this process, for the record of a change.
fn confirm_command() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("trawl {}", words.join(" ").escape_debug())
}

/// Refuses options that a program does not support, by name.
pub fn refuse_options(what: &str, given: &[(bool, &str)], why: &str) -> Result<()> {
    match given.iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Error::usage(what, format!("{option} {why}"))),
        None => Ok(()),
    }
}
