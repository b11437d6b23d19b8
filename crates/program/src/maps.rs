//! The maps of the programs on an interface.

use std::os::fd::AsFd;
use std::path::PathBuf;

use serde::Serialize;
use trawl_kernel::Result;
use trawl_kernel::bpf::{info, map};
use trawl_kernel::bpffs::{self, Object};

use crate::status::{self, About};
use trawl_attach::site::Site;

/// A map and who uses it.
#[derive(Clone, Debug, Serialize)]
pub struct Map {
    pub id: u32,
    pub name: String,
    /// As bpftool calls it.
    #[serde(rename = "type")]
    pub kind: String,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    /// Bytes, where the kernel tells.
    pub memory: Option<u64>,
    pub pins: Vec<PathBuf>,
    pub used_by: Vec<User>,
}

/// A program that uses a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct User {
    pub interface: String,
    pub id: u32,
    pub name: String,
}

/// The maps of all programs on these interfaces, those behind dispatchers too, by their numbers.
pub fn of(sites: &[Site]) -> Result<Vec<Map>> {
    let pins = bpffs::pinned();
    let mut maps: Vec<Map> = Vec::new();
    let mut add = |interface: &str, program: &About| {
        let user = User {
            interface: interface.to_owned(),
            id: program.id,
            name: program.name.clone(),
        };
        for id in &program.maps {
            match maps.iter_mut().find(|one| one.id == *id) {
                Some(known) => known.used_by.push(user.clone()),
                None => maps.extend(describe(*id, &pins).map(|mut found| {
                    found.used_by.push(user.clone());
                    found
                })),
            }
        }
    };
    for status in status::of(sites, None)? {
        for attached in &status.programs {
            add(&status.interface, &attached.program);
            // The first of a chain of trawl's own is attached itself.
            let behind = attached.chain.iter().map(|member| &member.program);
            for program in behind.filter(|one| one.id != attached.program.id) {
                add(&status.interface, program);
            }
        }
    }
    maps.sort_by_key(|one| one.id);
    Ok(maps)
}

fn describe(id: u32, pins: &[bpffs::Pinned]) -> Option<Map> {
    let fd = map::open_by_id(id).ok()?;
    let about = info::map(fd.as_fd()).ok()?;
    let is_it = |pin: &&bpffs::Pinned| matches!(&pin.object, Object::Map(found) if found.id == id);
    Some(Map {
        id,
        name: about.name,
        kind: info::map_kind_name(about.kind),
        key_size: about.key_size,
        value_size: about.value_size,
        max_entries: about.max_entries,
        flags: about.flags,
        memory: info::map_memory(fd.as_fd()),
        pins: pins
            .iter()
            .filter(is_it)
            .map(|pin| bpffs::usual_path(&pin.path))
            .collect(),
        used_by: Vec::new(),
    })
}
