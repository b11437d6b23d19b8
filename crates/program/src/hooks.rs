//! Hooks for a program without its source, inserted between its preparation by libbpf and its loading: jumps through
//! maps, into captures and into the next program of a chain.
//!
//! A tappable program has two maps. `trawl_hook` follows xdpcap: five slots, one for each action, and every exit jumps
//! through the slot of its verdict. The program jumps through `trawl_entry` before it begins: a capture in its first
//! slot sees the packet as it arrived, and jumps on to the second one, which holds the program again, without that
//! first jump. While the first slot is empty the kernel patches the jump at the entry away.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use trawl_bpf::info;
use trawl_bpf::layout::{ENTRY_SLOT_BODY, ENTRY_SLOT_CAPTURE, ENTRY_SLOTS};
use trawl_bpf::loader::{LoadFailure, LoadedFile};
use trawl_bpf::map;
use trawl_bpf::prepared::{Prepared, Twin};
use trawl_bpf::probe::kernel_function;
use trawl_ebpf::{Edited, STACK_SIZE};
use trawl_sys::{Error, Result};

use crate::rewrite::{Code, ContextPlace, EntrySlot, ExitMap, ExitSlots, Refusal, Rewriting};

/// Names of the maps, by which captures find them.
pub const HOOK: &str = "trawl_hook";
pub const ENTRY: &str = "trawl_entry";
pub const NEXT: &str = "trawl_next";
/// Number of actions: XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX and XDP_REDIRECT.
pub const ACTIONS: u32 = 5;

/// Name of the kernel's function for exceptions.
const THROW: &str = "bpf_throw";

/// Hooks to insert into a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Hooks for captures, at entry and exit.
    pub tappable: bool,
    /// Hooks for the next program of a chain: the verdicts that lead to it.
    pub chain_actions: Option<Vec<u32>>,
}

impl Hooks {
    pub fn any(&self) -> bool {
        self.tappable || self.chain_actions.is_some()
    }
}

/// Reason why no hooks were inserted.
#[derive(Debug)]
pub enum Problem {
    /// The named program cannot be rewritten.
    Refused(String, Refusal),
    /// The verifier refuses the named program with hooks.
    RefusedWithHooks(String, LoadFailure),
    /// The verifier refuses the named program even without hooks.
    RefusedWithoutHooks(String, LoadFailure),
    /// A map of the object has the name of a hook's map.
    NameTaken(&'static str),
    Other(Error),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Hooks inserted in a program, and the state needed to finish them after loading.
#[derive(Debug, Default)]
pub struct InsertedHooks {
    /// The maps by name.
    pub maps: Vec<(String, OwnedFd)>,
    /// Notices for the user.
    pub notices: Vec<String>,
    twin: Option<Twin>,
}

/// The maps while programs are being rewritten.
struct Maps {
    hook: Option<OwnedFd>,
    entry: Option<OwnedFd>,
    next: Option<OwnedFd>,
}

/// Inserts hooks into the main program and into the programs it may jump to, whose exits are also its own.
pub fn insert(
    prepared: &mut Prepared<'_>,
    main: &str,
    others: &[&str],
    hooks: &Hooks,
) -> Result<InsertedHooks, Problem> {
    let mut inserted = InsertedHooks::default();
    let array = |wanted: bool, name: &str, entries: u32| {
        if wanted { map::create_prog_array(name, entries).map(Some) } else { Ok(None) }
    };
    let original = read(prepared, main)?;
    let entry = hooks.tappable && !original.calls_modules();
    if hooks.tappable && !entry {
        inserted
            .notices
            .push(format!("{main} calls functions of a kernel module: captures see packets only at its exit"));
    }
    if throws(&original) {
        inserted.notices.push(format!(
            "{main} throws exceptions: no capture at its exit and no later program of a chain sees a packet that leaves by an exception"
        ));
    }
    let next = hooks.chain_actions.is_some();
    for (wanted, name) in [(hooks.tappable, HOOK), (entry, ENTRY), (next, NEXT)] {
        if wanted && prepared.has_map(name) {
            return Err(Problem::NameTaken(name));
        }
    }
    let maps = Maps {
        hook: array(hooks.tappable, HOOK, ACTIONS)?,
        entry: array(entry, ENTRY, ENTRY_SLOTS as u32)?,
        next: array(next, NEXT, ACTIONS)?,
    };
    let mut plan = Rewriting { entry: None, exits: exits(&maps, hooks) };
    // Nothing is changed before all programs are known to be rewritable: a program can be loaded even if no other can
    // follow it.
    let must_verify = !hooks.tappable && !original.calls_modules();
    let mut edits = Vec::new();
    for name in others {
        let program = read(prepared, name)?;
        edits.push((*name, edit(prepared, name, &program, &plan, must_verify)?));
    }
    if let Some(entry) = &maps.entry {
        let place = context_place(prepared, main, &original, &plan)?;
        let body = rewrite(main, &original, &plan, place)?;
        inserted.twin = Some(prepared.twin(main, &body)?);
        plan.entry = Some(EntrySlot { map: entry.as_raw_fd(), slot: ENTRY_SLOT_CAPTURE as i32 });
        edits.push((main, rewrite(main, &original, &plan, place)?));
    } else {
        edits.push((main, edit(prepared, main, &original, &plan, must_verify)?));
    }
    for (name, edited) in &edits {
        prepared.replace(name, edited)?;
    }
    let Maps { hook, entry, next } = maps;
    let named = [(HOOK, hook), (ENTRY, entry), (NEXT, next)];
    inserted.maps = named.into_iter().filter_map(|(name, map)| Some((name.to_owned(), map?))).collect();
    Ok(inserted)
}

fn exits(maps: &Maps, hooks: &Hooks) -> Vec<ExitMap> {
    let mut exits = Vec::new();
    if let Some(hook) = &maps.hook {
        exits.push(ExitMap { map: hook.as_raw_fd(), slots: ExitSlots::Verdict });
    }
    if let (Some(next), Some(actions)) = (&maps.next, &hooks.chain_actions) {
        exits.push(ExitMap { map: next.as_raw_fd(), slots: ExitSlots::Only(actions.clone()) });
    }
    exits
}

fn read(prepared: &Prepared<'_>, name: &str) -> Result<Code, Problem> {
    Code::new(prepared.instructions(name)?).map_err(|refusal| Problem::Refused(name.to_owned(), refusal))
}

/// Returns true if the program throws exceptions, which end it without passing an exit.
fn throws(program: &Code) -> bool {
    let called = program.kernel_functions();
    let number = || kernel_function(THROW).ok()?.try_into().ok();
    !called.is_empty() && number().is_some_and(|throw| called.contains(&throw))
}

/// Finds a location for the context. The program is verified as it is first, so that later refusals are due to the
/// hooks.
fn context_place(
    prepared: &Prepared<'_>,
    name: &str,
    program: &Code,
    plan: &Rewriting,
) -> Result<ContextPlace, Problem> {
    // Only libbpf can load a program that calls functions of modules.
    let depths = if program.calls_modules() {
        None
    } else {
        prepared.stack_depths(name).map_err(|failure| Problem::RefusedWithoutHooks(name.to_owned(), failure))?
    };
    if let Some(register) = program.free_registers().first() {
        return Ok(ContextPlace::Register(*register));
    }
    let seen = program.stack_in_sight();
    // The verifier does not count registers that need not be saved around a quick call.
    let reported = depths.and_then(|all| all.first().copied());
    let deepest = reported.unwrap_or(seen).max(seen).min(STACK_SIZE);
    ContextPlace::below(deepest).or_else(|refusal| {
        // It also counts its own stack use, below all others, for bpf_loop and may_goto.
        let place = ContextPlace::below(seen).ok();
        let place = place.filter(|place| {
            let edited = rewrite(name, program, plan, *place);
            let twin = edited.and_then(|edited| Ok(prepared.twin(name, &edited)?));
            twin.is_ok_and(|twin| twin.is_accepted())
        });
        place.ok_or_else(|| Problem::Refused(name.to_owned(), refusal))
    })
}

/// Rewrites a program as planned; if it `must_verify`, the verifier has to accept the result.
fn edit(
    prepared: &Prepared<'_>,
    name: &str,
    program: &Code,
    plan: &Rewriting,
    must_verify: bool,
) -> Result<Edited, Problem> {
    // Most stacks are visible in the code. If that was wrong, the verifier notices the lost context.
    if must_verify && let Some(place) = place_in_sight(program) {
        let edited = rewrite(name, program, plan, place)?;
        if prepared.twin(name, &edited)?.is_accepted() {
            return Ok(edited);
        }
    }
    let place = context_place(prepared, name, program, plan)?;
    let edited = rewrite(name, program, plan, place)?;
    if must_verify {
        let verified = prepared.twin(name, &edited)?.verify();
        verified.map_err(|failure| Problem::RefusedWithHooks(name.to_owned(), failure))?;
    }
    Ok(edited)
}

fn place_in_sight(program: &Code) -> Option<ContextPlace> {
    match program.free_registers().first() {
        Some(register) => Some(ContextPlace::Register(*register)),
        None => ContextPlace::below(program.stack_in_sight()).ok(),
    }
}

fn rewrite(name: &str, program: &Code, plan: &Rewriting, place: ContextPlace) -> Result<Edited, Problem> {
    program.rewrite(plan, place).map_err(|refusal| Problem::Refused(name.to_owned(), refusal))
}

impl InsertedHooks {
    /// Puts the loaded program into the slot that captures at its entry jump on to.
    pub fn finish(&mut self, file: &LoadedFile, main: &str) -> Result<(), LoadFailure> {
        let failure = |error| LoadFailure { error, log: String::new(), warnings: Vec::new() };
        let slots = if self.maps.is_empty() { Vec::new() } else { Reach::of(file, main).map_err(failure)?.slots };
        if let (Some(twin), Some(original), Some(entry)) = (self.twin.take(), file.program(main), self.map(ENTRY)) {
            let twin = twin.load(original)?;
            map::set_program(entry.as_fd(), ENTRY_SLOT_BODY as u32, twin.as_fd()).map_err(failure)?;
            // A packet that jumps back to the beginning has been seen already.
            let back = LeadsTo::Own(main.to_owned());
            for slot in slots.iter().filter(|slot| slot.leads_to == back) {
                map::set_program(slot.array, slot.number, twin.as_fd()).map_err(failure)?;
            }
        }
        let mut reported = Vec::new();
        for slot in slots {
            let is_for_others = !matches!(slot.leads_to, LeadsTo::Own(_));
            if is_for_others && !reported.contains(&slot.array_name) {
                self.notices.push(format!(
                    "{} jumps through the program array {}, whose empty slots other tools can fill: no capture at its exit and no later program of a chain sees packets that leave through a program in such a slot",
                    slot.from, slot.array_name
                ));
                reported.push(slot.array_name);
            }
        }
        Ok(())
    }

    fn map(&self, name: &str) -> Option<&OwnedFd> {
        let found = self.maps.iter().find(|(found, _)| found == name);
        found.map(|(_, map)| map)
    }
}

/// The programs of a file that packets can reach from one of them.
#[derive(Debug, Default)]
pub struct Reach<'f> {
    pub slots: Vec<Slot<'f>>,
    /// The numbers of the maps that they use.
    pub map_ids: Vec<u32>,
}

/// A slot of an array by which packets can leave a program.
#[derive(Clone, Debug)]
pub struct Slot<'f> {
    /// The program's name.
    pub from: String,
    pub array: BorrowedFd<'f>,
    pub array_name: String,
    pub number: u32,
    pub leads_to: LeadsTo,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeadsTo {
    Nothing,
    /// A program of the same file.
    Own(String),
    /// Another tool's program, in an array that existed before.
    Foreign,
}

struct Known {
    name: String,
    id: u32,
    map_ids: Vec<u32>,
}

impl<'f> Reach<'f> {
    /// Follows jumps from the program of that name on.
    pub fn of(file: &'f LoadedFile, first: &str) -> io::Result<Self> {
        let mut programs = Vec::new();
        for (name, fd) in file.programs() {
            let about = info::program(fd)?;
            programs.push(Known { name, id: about.id, map_ids: about.map_ids });
        }
        let mut arrays = Vec::new();
        for (name, fd) in file.maps() {
            let about = info::map(fd)?;
            if about.kind == map::PROG_ARRAY {
                arrays.push((about, name, fd));
            }
        }
        let mut reach = Self::default();
        let mut reached: Vec<&Known> = programs.iter().filter(|one| one.name == first).collect();
        let mut at = 0;
        while let Some(from) = reached.get(at).copied() {
            at += 1;
            reach.map_ids.extend(&from.map_ids);
            for (about, array_name, array) in &arrays {
                if !from.map_ids.contains(&about.id) {
                    continue;
                }
                for number in 0..about.max_entries {
                    let id = map::program_in(*array, number)?;
                    let known = programs.iter().find(|one| Some(one.id) == id);
                    if let Some(known) = known
                        && !reached.iter().any(|one| one.id == known.id)
                    {
                        reached.push(known);
                    }
                    reach.slots.push(Slot {
                        from: from.name.clone(),
                        array: *array,
                        array_name: array_name.clone(),
                        number,
                        leads_to: match (id, known) {
                            (None, _) => LeadsTo::Nothing,
                            (_, Some(known)) => LeadsTo::Own(known.name.clone()),
                            (_, None) => LeadsTo::Foreign,
                        },
                    });
                }
            }
        }
        Ok(reach)
    }
}
