//! Where a program gets to by jumping through arrays of programs that its object file has, as the kernel tells.

use std::io;
use std::os::fd::BorrowedFd;

use trawl_kernel::bpf::loader::LoadedFile;
use trawl_kernel::bpf::{info, map};

/// The programs of a file that packets can come to by way of one of them.
#[derive(Debug, Default)]
pub struct Reach<'f> {
    pub slots: Vec<Slot<'f>>,
    /// The numbers of the maps that they use.
    pub map_ids: Vec<u32>,
}

/// A slot of an array that packets can leave a program by.
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
    Ours(String),
    /// Somebody else's, in an array that was there before.
    Theirs,
}

struct Known {
    name: String,
    id: u32,
    map_ids: Vec<u32>,
}

impl<'f> Reach<'f> {
    /// From the program of that name on.
    pub fn of(file: &'f LoadedFile, first: &str) -> io::Result<Self> {
        let mut programs = Vec::new();
        for (name, fd) in file.programs() {
            let about = info::program(fd)?;
            programs.push(Known {
                name,
                id: about.id,
                map_ids: about.map_ids,
            });
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
                            (_, Some(known)) => LeadsTo::Ours(known.name.clone()),
                            (_, None) => LeadsTo::Theirs,
                        },
                    });
                }
            }
        }
        Ok(reach)
    }
}
