//! Maps of the program that runs, for the one that takes its place: which fit by name, type and size, whose they are,
//! and what would be lost.

use super::{Conflict, OldMaps, Request};

/// The kernel cuts names off there.
const NAME_LENGTH: usize = 15;
const KERNEL_CONFIGURATION: &str = ".kconfig";

/// What an object file or the kernel says of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShape<'a> {
    pub name: &'a str,
    pub kind: u32,
    pub key_size: u32,
    pub value_size: u32,
    /// In an object file, 0 is the number of CPUs.
    pub max_entries: u32,
}

/// A map of a program that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldMap<'a> {
    /// As a person is told.
    pub text: &'a str,
    /// The new program has it too.
    pub is_shared: bool,
    pub has_contents: bool,
}

impl MapShape<'_> {
    /// Whether it holds variables of the program.
    pub fn is_data(&self) -> bool {
        self.name.contains('.')
    }

    /// Whether a running program's map can be this map of an object file.
    pub fn fits(&self, old: &MapShape<'_>) -> bool {
        let sizes = (self.key_size, self.value_size) == (old.key_size, old.value_size);
        let entries = self.max_entries == old.max_entries || self.max_entries == 0;
        self.kind == old.kind
            && sizes
            && entries
            && same_name(self.name, old.name)
            && !self.name.ends_with(KERNEL_CONFIGURATION)
    }

    /// The only map that fits; where several do, nothing says which is meant.
    pub fn only_fitting<'m>(&self, old: impl IntoIterator<Item = MapShape<'m>>) -> Option<usize> {
        let mut fitting = old
            .into_iter()
            .enumerate()
            .filter(|(_, one)| self.fits(one));
        match (fitting.next(), fitting.next()) {
            (Some((at, _)), None) => Some(at),
            _ => None,
        }
    }
}

/// Sections of variables are called by the object's name and the section's.
pub fn section_of(name: &str) -> &str {
    name.find('.').map_or(name, |dot| &name[dot..])
}

/// Whether the kernel may call an object file's map so.
pub fn same_name(source: &str, kernel: &str) -> bool {
    fn short(name: &str) -> &str {
        name.get(..NAME_LENGTH).unwrap_or(name)
    }
    match (source.contains('.'), kernel.contains('.')) {
        (true, true) => short(section_of(source)).starts_with(section_of(kernel)),
        (false, false) => short(source) == kernel,
        _ => false,
    }
}

/// Which of the running programs' maps the new program `name` gets: those of the only one, whose place it takes, or else
/// those of the one with its name.
pub fn predecessor(
    running: &[&str],
    name: &str,
    request: &Request,
) -> Result<Option<usize>, Conflict> {
    if request.maps != OldMaps::Keep || running.is_empty() {
        return Ok(None);
    }
    if request.replace && running.len() == 1 {
        return Ok(Some(0));
    }
    let named = running.iter().position(|one| *one == name);
    named.map(Some).ok_or_else(|| Conflict::NoPredecessor {
        running: running.iter().map(|one| (*one).to_owned()).collect(),
    })
}

/// Refuses to lose contents that nobody agreed to lose.
pub fn check_contents(
    request: &Request,
    replaced: &[String],
    maps: &[OldMap<'_>],
) -> Result<(), Conflict> {
    let lost = maps.iter().filter(|one| one.has_contents && !one.is_shared);
    let lost: Vec<String> = lost.map(|one| one.text.to_owned()).collect();
    match request.maps == OldMaps::Ask && !lost.is_empty() {
        true => Err(Conflict::ContentsLost {
            programs: replaced.to_vec(),
            maps: lost,
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: MapShape<'_> = MapShape {
        name: "table",
        kind: 1,
        key_size: 4,
        value_size: 8,
        max_entries: 16,
    };

    fn keeps(replace: bool) -> Request {
        Request {
            replace,
            maps: OldMaps::Keep,
            ..Request::default()
        }
    }

    #[test]
    fn names_are_compared_as_the_kernel_cuts_them() {
        assert!(same_name("ports", "ports"));
        assert!(!same_name("ports", "port"));
        assert!(same_name("a_name_of_a_map_that_is_long", "a_name_of_a_map"));
        assert!(same_name("one.bss", "other.bss"));
        assert!(same_name(".rodata.str1.16", ".rodata.str1.16"));
        assert!(same_name("firewall.rodata", "firewal.rodata"));
        assert!(!same_name("one.bss", "one.data"));
        assert!(!same_name("bss", "one.bss"));
    }

    #[test]
    fn maps_fit_by_type_and_size() {
        assert!(TABLE.fits(&TABLE));
        for other in [
            MapShape { kind: 2, ..TABLE },
            MapShape {
                key_size: 8,
                ..TABLE
            },
            MapShape {
                value_size: 4,
                ..TABLE
            },
            MapShape {
                max_entries: 17,
                ..TABLE
            },
            MapShape {
                name: "tables",
                ..TABLE
            },
        ] {
            assert!(!TABLE.fits(&other), "{other:?}");
        }
        let per_cpu = MapShape {
            max_entries: 0,
            ..TABLE
        };
        assert!(per_cpu.fits(&TABLE), "the number of CPUs");
        let kernel = MapShape {
            name: "one.kconfig",
            ..TABLE
        };
        assert!(
            !kernel.fits(&kernel),
            "the kernel's configuration is made anew"
        );
    }

    #[test]
    fn a_map_that_two_fit_is_made_anew() {
        let other = MapShape {
            name: "ports",
            ..TABLE
        };
        assert_eq!(TABLE.only_fitting([other, TABLE]), Some(1));
        assert_eq!(TABLE.only_fitting([TABLE, TABLE]), None);
        assert_eq!(TABLE.only_fitting([other]), None);
    }

    #[test]
    fn the_predecessor_is_the_only_program_or_the_one_of_that_name() {
        assert_eq!(predecessor(&["old"], "new", &keeps(true)), Ok(Some(0)));
        assert_eq!(predecessor(&[], "new", &keeps(true)), Ok(None));
        assert_eq!(predecessor(&["a", "new"], "new", &keeps(true)), Ok(Some(1)));
        assert_eq!(
            predecessor(&["a", "new"], "new", &keeps(false)),
            Ok(Some(1))
        );
        let running = vec!["old".to_owned()];
        let nobody = Err(Conflict::NoPredecessor { running });
        assert_eq!(predecessor(&["old"], "new", &keeps(false)), nobody);
        assert_eq!(predecessor(&["old"], "new", &Request::default()), Ok(None));
    }

    #[test]
    fn contents_are_lost_only_where_somebody_agreed() {
        let map = OldMap {
            text: "table (hash, id 3)",
            is_shared: false,
            has_contents: true,
        };
        let old = ["filter (id 7)".to_owned()];
        let ask = Request {
            maps: OldMaps::Ask,
            ..Request::default()
        };
        let lost = Conflict::ContentsLost {
            programs: old.to_vec(),
            maps: vec![map.text.to_owned()],
        };
        assert_eq!(check_contents(&ask, &old, &[map]), Err(lost));
        let shared = OldMap {
            is_shared: true,
            ..map
        };
        let empty = OldMap {
            has_contents: false,
            ..map
        };
        assert_eq!(check_contents(&ask, &old, &[shared, empty]), Ok(()));
        assert_eq!(check_contents(&Request::default(), &old, &[map]), Ok(()));
    }
}
