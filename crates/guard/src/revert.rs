//! A change of the guard that is taken back unless it is confirmed.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use trawl_bpf::bpffs;
use trawl_program::{Site, swap as programs};
use trawl_sys::Result;
use trawl_sys::confirm::{self, About, Pending, Reverted};
use trawl_sys::netns::{Mark, Namespace};
use trawl_sys::warden::Undo;

use crate::set::RuleSet;
use crate::state::Guard;

/// One change at a time waits in the guard of a namespace.
fn scope(namespace: Option<&Namespace>) -> Result<String> {
    Ok(format!("guard-{}", Mark::of(namespace)?))
}

/// Begins a change that is to be confirmed in time: what holds now is noted.
/// `replaced`: the interfaces on which the guard takes the place of other programs.
pub fn begin(
    namespace: Option<&Namespace>,
    replaced: &[Site],
    command: &str,
    time: Duration,
) -> Result<Pending> {
    let guard = Guard::find(namespace)?;
    let (rules, guarded) = match &guard {
        Some(guard) => {
            let posts = guard.posts()?;
            let indices = posts.iter().map(|post| post.site.index()).collect();
            (guard.rules()?, indices)
        }
        None => (RuleSet::default(), Vec::new()),
    };
    let is_new = |site: &&Site| !guarded.contains(&site.index());
    let others = replaced.iter().filter(is_new).map(programs::Back::note);
    let others = others.collect::<Result<_>>()?;
    // The process that takes it back waits for the lock like any other command.
    drop(guard);
    let back = Back {
        namespace: namespace.cloned(),
        rules,
        guarded,
        others,
    };
    confirm::begin(&scope(namespace)?, command, time, &back)
}

/// Keeps the change that waits.
pub fn confirm(namespace: Option<&Namespace>) -> Result<About> {
    confirm::confirm(&scope(namespace)?)
}

/// The last change with a time limit, if it was reverted.
pub fn reverted(namespace: Option<&Namespace>) -> Result<Option<Reverted>> {
    confirm::reverted(&scope(namespace)?)
}

/// Refuses another change while one waits to be confirmed.
pub fn refuse_if_pending(namespace: Option<&Namespace>) -> Result<()> {
    confirm::refuse_if_pending(&scope(namespace)?)
}

/// The guard as it was.
#[derive(Debug)]
struct Back {
    namespace: Option<Namespace>,
    rules: RuleSet,
    /// The indices of the interfaces that it was on.
    guarded: Vec<u32>,
    /// What was in its place on others.
    others: Vec<programs::Back>,
}

impl Back {
    fn put_back(&self) -> Result<()> {
        let namespace = self.namespace.as_ref();
        let guard = Guard::find_or_make(namespace)?;
        // The rules first: at no moment may the interfaces that stay guarded have neither these nor those.
        guard.replace(&self.rules)?;
        for site in Site::all_in(namespace)? {
            if !self.guarded.contains(&site.index()) && guard.is_on(&site)? {
                guard.unload(&site)?;
            }
        }
        self.others.iter().try_for_each(programs::Back::put_back)?;
        // With the last interface go rules, but there may have been some before the first.
        guard.replace(&self.rules)
    }
}

impl Undo for Back {
    fn undo(&self) -> Result<()> {
        self.put_back()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let namespace = self.namespace.iter();
        let own = namespace.map(|one| one.as_fd().as_raw_fd());
        own.chain(self.others.iter().flat_map(Undo::descriptors))
            .chain(bpffs::hold())
            .collect()
    }
}
