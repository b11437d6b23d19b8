//! The traced programs, each with its points and its present links.

use std::os::fd::OwnedFd;

use trawl_sys::Result;

use super::plan::{Role, TracePlan};
use super::programs::{Present, Traceable};
use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::Event;
use crate::point::PointIds;

/// The program that replaces one that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The program that is attached next.
    Attached,
    /// A program of the same name.
    Name,
    Nothing,
}

/// The points of one program.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    entry: Option<PointIds>,
    exit: Option<PointIds>,
}

#[derive(Debug)]
pub struct Slot {
    /// The program traced now.
    id: Option<u32>,
    name: String,
    follow: Follow,
    ends: Ends,
    links: Vec<OwnedFd>,
    /// True until the tracing programs are attached.
    is_new: bool,
}

impl Slot {
    pub fn new(program: &Traceable, follow: Follow, ends: Ends) -> Self {
        Self { id: Some(program.id), name: program.name.clone(), follow, ends, links: Vec::new(), is_new: true }
    }

    /// Moves to the present program, if it changed.
    fn move_to(&mut self, now: Option<&Traceable>, label: &str, news: &mut Vec<Event>) {
        if now.map(|program| program.id) == self.id {
            return;
        }
        self.links.clear();
        let (interface, before) = (label.to_owned(), self.name.clone());
        news.push(match now.map(Traceable::describe) {
            Some(program) if self.id.is_some() => Event::ProgramReplaced { interface, before, program },
            Some(program) => Event::ProgramFound { interface, program },
            None => Event::ProgramLost { interface, program: before, awaited: self.follow != Follow::Nothing },
        });
        self.id = now.map(|program| program.id);
        self.is_new = now.is_some();
        if let Some(program) = now {
            self.name.clone_from(&program.name);
        }
    }

    /// Returns the slot's program, if still present.
    fn find<'p>(&self, present: &'p Present) -> Option<&'p Traceable> {
        present.all().find(|one| Some(one.id) == self.id)
    }

    /// Returns the program to trace from now on. Programs of the same name have a slot each.
    fn follow<'p>(&self, present: &'p Present, taken: &[u32]) -> Option<&'p Traceable> {
        let is_free = |one: &&Traceable| Some(one.id) == self.id || !taken.contains(&one.id);
        let is_called_so = |one: &&Traceable| one.name == self.name;
        match self.follow {
            Follow::Attached => Some(&present.main).filter(is_free),
            Follow::Name => self.find(present).or_else(|| present.all().filter(is_free).find(is_called_so)),
            Follow::Nothing => self.find(present),
        }
    }
}

#[derive(Debug)]
pub struct Slots {
    plan: TracePlan,
    label: String,
    slots: Vec<Slot>,
    /// First program that packets meet.
    first: Option<u32>,
    /// Tracing program at the first entry that makes no records, and the program it is attached to.
    leader: Option<(u32, OwnedFd)>,
}

impl Slots {
    pub fn new(plan: TracePlan, site: &CaptureSite) -> Self {
        Self { plan, label: site.label.clone(), slots: Vec::new(), first: None, leader: None }
    }

    pub fn add_points(
        &self,
        name: Option<&str>,
        program: u32,
        index: usize,
        site: &CaptureSite,
        assembly: &mut Assembly,
        mode: &'static str,
    ) -> Result<Ends> {
        let rings = assembly.program_rings()?;
        let mut add = |end: &str| -> Result<PointIds> {
            let hook = match name {
                Some(name) => format!("{end} {name}"),
                None => end.to_owned(),
            };
            let ids = assembly.add_point(index, site, &rings, &super::FACTS, &hook)?;
            assembly.points.set_mode(ids.point, mode);
            assembly.points.set_program(ids.point, site, program);
            Ok(ids)
        };
        Ok(Ends {
            entry: self.plan.entry.then(|| add("xdp entry")).transpose()?,
            exit: self.plan.exit.then(|| add("xdp exit")).transpose()?,
        })
    }

    pub fn add(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    /// Attaches to all present programs, and detaches from lost ones. Returns events for the changes.
    pub fn attach(&mut self, present: Option<&Present>) -> Result<Vec<Event>> {
        let mut news = Vec::new();
        let stay = |slot: &Slot| slot.find(present?).map(|program| program.id);
        let mut taken: Vec<u32> = self.slots.iter().filter_map(stay).collect();
        for slot in &mut self.slots {
            let now = present.and_then(|present| slot.follow(present, &taken));
            slot.move_to(now, &self.label, &mut news);
            taken.extend(slot.id);
        }
        let Some(present) = present else {
            (self.first, self.leader) = (None, None);
            return Ok(news);
        };
        let first = match self.slots.as_slice() {
            [only] => only.find(present),
            _ => Some(&present.main),
        };
        if self.leader.as_ref().map(|(id, _)| *id) != first.map(|program| program.id) {
            self.leader = None;
        }
        let before = std::mem::replace(&mut self.first, first.map(|program| program.id));
        if before != self.first {
            // A different program decides at its entry now.
            let concerned = [before, self.first];
            for slot in &mut self.slots {
                if slot.id.is_some() && concerned.contains(&slot.id) {
                    slot.links.clear();
                    slot.is_new = true;
                }
            }
        }
        // Exits come first and the first entry last: once packets enter there, everything else is attached.
        let exit = self.plan.exit_role();
        self.fill(present, |slot| slot.ends.exit, |_| Some(exit))?;
        let is_first = |program: &Traceable| first.is_some_and(|first| first.id == program.id);
        let later = |program: &Traceable| (!is_first(program)).then_some(Role::Entry);
        self.fill(present, |slot| slot.ends.entry, later)?;
        let leader = self.plan.leader();
        self.fill(present, |slot| slot.ends.entry, |program| leader.filter(|_| is_first(program)))?;
        self.lead(first)?;
        self.slots.iter_mut().filter(|slot| slot.find(present).is_some()).for_each(|slot| slot.is_new = false);
        Ok(news)
    }

    /// Attaches to one end of each new program.
    fn fill(
        &mut self,
        present: &Present,
        end: impl Fn(&Slot) -> Option<PointIds>,
        role: impl Fn(&Traceable) -> Option<Role>,
    ) -> Result<()> {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_new) {
            if let Some(program) = slot.find(present)
                && let Some(ids) = end(slot)
                && let Some(role) = role(program)
            {
                let link = self.plan.attach(role, program, Some(ids), slot.ends.entry)?;
                slot.links.push(link);
            }
        }
        Ok(())
    }

    /// Attaches the leader at the first entry if no record is made there.
    fn lead(&mut self, first: Option<&Traceable>) -> Result<()> {
        let Some((role, program)) = self.plan.leader().zip(first) else {
            return Ok(());
        };
        let records = |slot: &Slot| slot.id == Some(program.id) && slot.ends.entry.is_some();
        if self.leader.is_none() && !self.slots.iter().any(records) {
            let link = self.plan.attach(role, program, None, None)?;
            self.leader = Some((program.id, link));
        }
        Ok(())
    }

    /// Returns true if all programs are gone and none will be replaced.
    pub fn are_over(&self) -> bool {
        let is_over = |slot: &Slot| slot.id.is_none() && slot.follow == Follow::Nothing;
        self.slots.iter().all(is_over)
    }

    /// Returns true if each of the chosen programs is present.
    pub fn all_found(&self) -> bool {
        self.slots.iter().all(|slot| slot.id.is_some())
    }

    pub fn clear(&mut self) {
        self.leader = None;
        self.slots.iter_mut().for_each(|slot| slot.links.clear());
    }
}
