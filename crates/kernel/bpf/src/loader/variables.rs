//! Variables and other definitions of an object file, by its type information.

use libbpf_rs::AsRawLibbpf;
use libbpf_rs::btf::types::{Array, DataSec, Ptr, Struct, StructMember, Var};
use libbpf_rs::btf::{Btf, ReferencesType};
use trawl_sys::{Error, Result};

use super::{ObjectFile, Variable};

impl ObjectFile {
    /// Gives a global variable or constant (`const volatile`) its first value, by its name in the source.
    pub fn set_variable(&mut self, name: &str, value: &[u8]) -> Result<()> {
        let fail = |why: &str| Error::failed(format!("cannot set the variable {name}"), why);
        let (section, offset, size) = self
            .find_variable(name)
            .ok_or_else(|| fail("it is not in the object"))?;
        if size != value.len() {
            return Err(fail(&format!(
                "it has {size} bytes, the value {}",
                value.len()
            )));
        }
        for mut map in self.open.maps_mut() {
            let is_section = map.name().to_string_lossy().ends_with(&section);
            if is_section
                && let Some(place) = map
                    .initial_value_mut()
                    .and_then(|all| all.get_mut(offset..offset + size))
            {
                place.copy_from_slice(value);
                return Ok(());
            }
        }
        Err(fail("its section has no contents"))
    }

    /// Numbers that the source gives beside a program: the members, by their names, of the structure `_PROGRAM` in this
    /// section, written as libbpf's `__uint(name, number)`.
    pub fn numbers_beside(&self, program: &str, section: &str) -> Vec<(String, u32)> {
        // SAFETY: the object is alive for as long as the reference is used.
        let object = unsafe { self.open.as_libbpf_object().as_ref() };
        let Ok(Some(types)) = Btf::from_bpf_object(object) else {
            return Vec::new();
        };
        let wanted = format!("_{program}");
        let sections: Vec<DataSec<'_>> = types
            .type_by_kind()
            .filter(|one: &DataSec<'_>| one.name().is_some_and(|name| name == section))
            .collect();
        let variable = sections
            .iter()
            .flat_map(|one| one.iter())
            .find_map(|place| {
                let found: Var<'_> = types.type_by_id(place.ty)?;
                (found.name()? == wanted.as_str()).then_some(found)
            });
        let Some(numbers) = variable.and_then(|one| Struct::try_from(one.referenced_type()).ok())
        else {
            return Vec::new();
        };
        // A pointer to an array whose length is the number.
        let number = |member: StructMember<'_>| {
            let pointer: Ptr<'_> = types.type_by_id(member.ty)?;
            let array = Array::try_from(pointer.referenced_type()).ok()?;
            let value = u32::try_from(array.capacity()).ok()?;
            Some((member.name?.to_string_lossy().into_owned(), value))
        };
        numbers.iter().filter_map(number).collect()
    }

    /// The variables of a section, by the file's type information; `None` where it has none of the section.
    pub fn variables(&self, section: &str) -> Option<Vec<Variable>> {
        // SAFETY: the object is alive for as long as the reference is used.
        let object = unsafe { self.open.as_libbpf_object().as_ref() };
        variables_in(&Btf::from_bpf_object(object).ok()??, section)
    }

    /// Whether the source says what is in a map from the beginning (`.values = …`): libbpf fills it when it is loaded.
    pub fn is_filled_by_source(&self, map: &str) -> bool {
        const MAPS: &str = ".maps";
        // SAFETY: the object is alive for as long as the reference is used.
        let object = unsafe { self.open.as_libbpf_object().as_ref() };
        let Ok(Some(types)) = Btf::from_bpf_object(object) else {
            return false;
        };
        let sections: Vec<DataSec<'_>> = types.type_by_kind().collect();
        let mut places = sections
            .iter()
            .filter(|one| one.name().is_some_and(|name| name == MAPS))
            .flat_map(|one| one.iter());
        places.any(|place| {
            let variable: Option<Var<'_>> = types.type_by_id(place.ty);
            variable
                .filter(|found| found.name().is_some_and(|name| name == map))
                .and_then(|found| Struct::try_from(found.referenced_type()).ok())
                .is_some_and(|definition| {
                    let mut members = definition.iter();
                    members.any(|member| member.name.is_some_and(|name| name == "values"))
                })
        })
    }

    /// Section, offset and size, by the file's type information.
    fn find_variable(&self, name: &str) -> Option<(String, usize, usize)> {
        // SAFETY: the object is alive for as long as the reference is used.
        let object = unsafe { self.open.as_libbpf_object().as_ref() };
        let types = Btf::from_bpf_object(object).ok()??;
        let sections: Vec<DataSec<'_>> = types.type_by_kind().collect();
        sections.iter().find_map(|section| {
            let place = section.iter().find(|place| {
                let variable: Option<Var<'_>> = types.type_by_id(place.ty);
                variable.is_some_and(|variable| variable.name().is_some_and(|n| n == name))
            })?;
            let section = section.name()?.to_string_lossy().into_owned();
            Some((section, place.offset as usize, place.size))
        })
    }
}

/// The variables of a section of a program that the kernel runs; `None` where it has no types of it.
pub fn variables_of(program: u32, section: &str) -> Option<Vec<Variable>> {
    variables_in(&Btf::from_prog_id(program).ok()?, section)
}

fn variables_in(types: &Btf<'_>, section: &str) -> Option<Vec<Variable>> {
    let mut sections = types.type_by_kind();
    let found =
        sections.find(|one: &DataSec<'_>| one.name().is_some_and(|name| name == section))?;
    let places = found.iter().filter_map(|place| {
        let variable: Var<'_> = types.type_by_id(place.ty)?;
        let name = variable.name()?.to_string_lossy().into_owned();
        Some((name, u64::from(place.offset), place.size))
    });
    Some(places.collect())
}
