//! The kernel's type information (BTF), of which trawl needs little: a few structures out of ten thousand, and the
//! numbers of a few names. libbpf would parse all of it for each object, and search it for each structure.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use trawl_sys::memory::ConstantBytes;

/// The structures that programs read.
mod list {
    include!(concat!(env!("OUT_DIR"), "/kernel_types.rs"));
}

pub const PATH: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
const HEADER_LENGTH: usize = 24;
const WORD: usize = 4;
/// Length of a type's header: its name, its kind and count, and its size or element type.
const TYPE_LENGTH: usize = 3 * WORD;
const MEMBER_LENGTH: usize = 3 * WORD;

const INT: u8 = 1;
const POINTER: u8 = 2;
const ARRAY: u8 = 3;
pub(crate) const STRUCTURE: u8 = 4;
const UNION: u8 = 5;
pub(crate) const ENUMERATION: u8 = 6;
const FORWARD: u8 = 7;
const TYPEDEF: u8 = 8;
const VOLATILE: u8 = 9;
const CONST: u8 = 10;
const RESTRICT: u8 = 11;
/// A function of the kernel.
pub(crate) const FUNCTION: u8 = 12;
const PROTOTYPE: u8 = 13;
/// A variable of the kernel.
pub(crate) const VARIABLE: u8 = 14;
const SECTION: u8 = 15;
const FLOAT: u8 = 16;
const DECLARATION_TAG: u8 = 17;
const TYPE_TAG: u8 = 18;
const ENUMERATION_64: u8 = 19;

/// Data that libbpf and the loader need for programs that read the kernel's structures.
#[derive(Debug)]
pub(crate) struct ForPrograms {
    /// A file with only these structures.
    pub path: String,
    _file: OwnedFd,
    /// The kernel's record of a packet's redirect target, if it is a per-CPU variable.
    pub redirect_info: Option<u32>,
}

/// Returns the data, read once for all programs of this process.
pub(crate) fn for_programs() -> io::Result<&'static ForPrograms> {
    static FOUND: OnceLock<ForPrograms> = OnceLock::new();
    once(&FOUND, ForPrograms::read)
}

/// Returns the number of the kernel's type of this kind and name.
pub(crate) fn find(kind: u8, name: &str) -> io::Result<Option<u32>> {
    Ok(of_kernel()?.find(kind, name))
}

/// Returns the names and values of all enumerations with this suffix, of the kernel and of its modules.
pub fn enumerations(suffix: &str) -> io::Result<Vec<(String, i64)>> {
    let kernel = of_kernel()?;
    let mut values = kernel.enumerations(suffix, None);
    let directory = Path::new(PATH).parent();
    let entries = directory.and_then(|directory| std::fs::read_dir(directory).ok());
    for entry in entries.into_iter().flatten().flatten() {
        // A module may have been unloaded; its reasons are then shown as numbers.
        let is_kernel = entry.path() == Path::new(PATH);
        let bytes = (!is_kernel).then(|| ConstantBytes::open(&entry.path()).ok());
        if let Some(module) = bytes.flatten().and_then(KernelTypes::parse) {
            values.extend(module.enumerations(suffix, Some(kernel)));
        }
    }
    Ok(values)
}

/// The arguments of a tracepoint, as far as programs need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// Its number in the kernel's type information.
    pub type_id: u32,
    pub arguments: usize,
}

/// Returns a tracepoint; `None` if the kernel has none of this name.
pub fn tracepoint(name: &str) -> io::Result<Option<Tracepoint>> {
    Ok(of_kernel()?.tracepoint(name))
}

/// Returns the byte offset of a member in one of the kernel's structures, searched for once; `None` if it does not
/// exist, or is a bit field.
pub fn offset(structure: &str, member: &str) -> io::Result<Option<u32>> {
    static FOUND: Mutex<BTreeMap<(String, String), Option<u32>>> = Mutex::new(BTreeMap::new());
    let key = (structure.to_owned(), member.to_owned());
    let mut found = FOUND.lock();
    if let Some(known) = found.get(&key) {
        return Ok(*known);
    }
    let offset = of_kernel()?.offset(structure, member);
    found.insert(key, offset);
    Ok(offset)
}

/// Returns the kernel's types, read once for this process.
fn of_kernel() -> io::Result<&'static KernelTypes> {
    static FOUND: OnceLock<KernelTypes> = OnceLock::new();
    once(&FOUND, KernelTypes::read)
}

/// Returns the value, computed until it succeeds once: a failure may be temporary.
fn once<T>(cell: &OnceLock<T>, find: impl FnOnce() -> io::Result<T>) -> io::Result<&T> {
    if let Some(found) = cell.get() {
        return Ok(found);
    }
    let found = find()?;
    // Concurrent callers find the same value.
    Ok(cell.get_or_init(|| found))
}

impl ForPrograms {
    fn read() -> io::Result<Self> {
        let types = of_kernel()?;
        let excerpt = types.excerpt(list::STRUCTURES).ok_or_else(malformed)?;
        let file = memfd_create("trawl kernel types", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(&excerpt)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(Self { path, _file: file.into(), redirect_info: types.find(VARIABLE, "bpf_redirect_info") })
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed type information")
}

#[derive(Debug)]
struct KernelTypes {
    bytes: ConstantBytes,
    types: Range<usize>,
    strings: Range<usize>,
}

/// A type's number, and its position in the bytes.
#[derive(Clone, Copy, Debug)]
struct TypeOffset {
    id: u32,
    at: usize,
}

impl KernelTypes {
    fn read() -> io::Result<Self> {
        // Since Linux 6.15, the kernel's own copy can be mapped.
        Self::parse(ConstantBytes::open(Path::new(PATH))?).ok_or_else(malformed)
    }

    fn parse(bytes: ConstantBytes) -> Option<Self> {
        let [low, high, version, _] = *bytes.first_chunk()?;
        if u16::from_ne_bytes([low, high]) != MAGIC || version != VERSION {
            return None;
        }
        let header: Vec<usize> = (1..HEADER_LENGTH / WORD)
            .map(|word| word_at(&bytes, word * WORD).map(|word| word as usize))
            .collect::<Option<_>>()?;
        let [length, types, types_length, strings, strings_length] = *header.first_chunk()?;
        let section = |from: usize, size: usize| {
            let begin = length.checked_add(from)?;
            let end = begin.checked_add(size)?;
            (end <= bytes.len()).then_some(begin..end)
        };
        Some(Self { types: section(types, types_length)?, strings: section(strings, strings_length)?, bytes })
    }

    /// Returns the number of the type of this kind and name.
    fn find(&self, kind: u8, name: &str) -> Option<u32> {
        self.entries().find(|entry| self.kind(*entry) == kind && self.is_called(*entry, name)).map(|entry| entry.id)
    }

    /// Returns the values of enumerations with this suffix. The name offsets of a module continue after the names of the
    /// kernel, `base`.
    fn enumerations(&self, suffix: &str, base: Option<&Self>) -> Vec<(String, i64)> {
        let before = base.map_or(0, |base| base.strings.len());
        let name = |offset: u32| match (offset as usize).checked_sub(before) {
            Some(own) => self.string(own as u32),
            None => base?.string(offset),
        };
        let is_meant = |entry: &TypeOffset| {
            self.kind(*entry) == ENUMERATION
                && name(self.word(entry.at)).is_some_and(|name| name.ends_with(suffix.as_bytes()))
        };
        let values = |entry: TypeOffset| {
            (0..self.count(entry)).filter_map(move |number| {
                let at = entry.at + TYPE_LENGTH + number * 2 * WORD;
                let name = String::from_utf8_lossy(name(self.word(at))?).into_owned();
                Some((name, i64::from(self.word(at + WORD) as i32)))
            })
        };
        self.entries().filter(is_meant).flat_map(values).collect()
    }

    /// Returns a member's byte offset. A member without a name is a structure or union, whose members count as
    /// members of the outer structure.
    fn offset(&self, structure: &str, member: &str) -> Option<u32> {
        let all: Vec<TypeOffset> = self.entries().collect();
        let is_meant = |entry: &&TypeOffset| self.kind(**entry) == STRUCTURE && self.is_called(**entry, structure);
        let mut open = vec![(*all.iter().find(is_meant)?, 0)];
        while let Some((entry, begin)) = open.pop() {
            for number in 0..self.count(entry) {
                let at = entry.at + TYPE_LENGTH + number * MEMBER_LENGTH;
                // In structures with bit fields, the upper byte holds their width.
                let bits = begin + (self.word(at + 2 * WORD) & 0x00ff_ffff);
                let name = self.string(self.word(at))?;
                if name == member.as_bytes() {
                    return bits.is_multiple_of(8).then_some(bits / 8);
                }
                let inside = (self.word(at + WORD) as usize).checked_sub(1);
                if name.is_empty()
                    && let Some(inside) = inside.and_then(|inside| all.get(inside))
                    && [STRUCTURE, UNION].contains(&self.kind(*inside))
                {
                    open.push((*inside, bits));
                }
            }
        }
        None
    }

    /// Finds a tracepoint by the type named after its callback: a pointer to a prototype, whose first argument is the
    /// callback's own.
    fn tracepoint(&self, name: &str) -> Option<Tracepoint> {
        let name = format!("btf_trace_{name}");
        let all: Vec<TypeOffset> = self.entries().collect();
        let leads_to = |entry: &TypeOffset| {
            let id = self.word(entry.at + 2 * WORD);
            all.get((id as usize).checked_sub(1)?).copied()
        };
        let found = all.iter().find(|entry| self.kind(**entry) == TYPEDEF && self.is_called(**entry, &name))?;
        let prototype = leads_to(&leads_to(found)?)?;
        Some(Tracepoint { type_id: found.id, arguments: self.count(prototype).checked_sub(1)? })
    }

    /// Returns these structures, as far as they exist, with all types inside them, as separate type information. Targets
    /// of pointers are left out, since the offsets of fields do not depend on them.
    fn excerpt(&self, structures: &[&str]) -> Option<Vec<u8>> {
        let all: Vec<usize> = self.entries().map(|entry| entry.at).collect();
        let mut excerpt = Excerpt::new(self, &all);
        for entry in self.entries() {
            if self.kind(entry) == STRUCTURE && structures.iter().any(|name| self.is_called(entry, name)) {
                excerpt.add(entry.id)?;
            }
        }
        excerpt.finish()
    }

    fn entries(&self) -> impl Iterator<Item = TypeOffset> {
        let first = TypeOffset { id: 1, at: self.types.start };
        let is_inside = |entry: &TypeOffset| entry.at + TYPE_LENGTH <= self.types.end;
        std::iter::successors(Some(first).filter(is_inside), move |entry| {
            let next = TypeOffset { id: entry.id + 1, at: entry.at + self.length(*entry)? };
            Some(next).filter(is_inside)
        })
    }

    fn word(&self, at: usize) -> u32 {
        word_at(&self.bytes, at).unwrap_or(0)
    }

    fn kind(&self, entry: TypeOffset) -> u8 {
        (self.word(entry.at + WORD) >> 24 & 0x1f) as u8
    }

    fn count(&self, entry: TypeOffset) -> usize {
        (self.word(entry.at + WORD) & 0xffff) as usize
    }

    /// Returns a type's length in bytes; `None` for an unknown kind.
    fn length(&self, entry: TypeOffset) -> Option<usize> {
        let count = self.count(entry);
        let after = match self.kind(entry) {
            POINTER | FORWARD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNCTION | FLOAT | TYPE_TAG => 0,
            INT | VARIABLE | DECLARATION_TAG => WORD,
            ARRAY => 3 * WORD,
            STRUCTURE | UNION | SECTION | ENUMERATION_64 => count * MEMBER_LENGTH,
            ENUMERATION | PROTOTYPE => count * 2 * WORD,
            _ => return None,
        };
        Some(TYPE_LENGTH + after)
    }

    fn is_called(&self, entry: TypeOffset, name: &str) -> bool {
        let begin = self.strings.start + self.word(entry.at) as usize;
        let text = self.bytes.get(begin..self.strings.end);
        text.and_then(|text| text.strip_prefix(name.as_bytes())).is_some_and(|after| after.first() == Some(&0))
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        let begin = self.strings.start.checked_add(offset as usize)?;
        let text = self.bytes.get(begin..self.strings.end)?;
        text.split(|byte| *byte == 0).next()
    }
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*word))
}

// Excerpts of the kernel's types.

/// Type information under construction.
struct Excerpt<'a> {
    from: &'a KernelTypes,
    /// Positions of the kernel's types.
    all: &'a [usize],
    /// New numbers of the types in the excerpt, and the types still to be written.
    numbers: HashMap<u32, u32>,
    open: Vec<u32>,
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl<'a> Excerpt<'a> {
    fn new(from: &'a KernelTypes, all: &'a [usize]) -> Self {
        Self { from, all, numbers: HashMap::new(), open: Vec::new(), types: Vec::new(), strings: vec![0] }
    }

    fn add(&mut self, id: u32) -> Option<()> {
        self.number(id);
        // Types are written in the order of their numbers, and each one numbers the types inside it.
        let mut next = 0;
        while let Some(id) = self.open.get(next).copied() {
            self.write(id)?;
            next += 1;
        }
        self.open.clear();
        Some(())
    }

    /// Returns the new number of a type.
    fn number(&mut self, id: u32) -> u32 {
        if id == 0 {
            return 0;
        }
        let next = self.numbers.len() as u32 + 1;
        *self.numbers.entry(id).or_insert_with(|| {
            self.open.push(id);
            next
        })
    }

    fn write(&mut self, id: u32) -> Option<()> {
        let from = self.from;
        let at = *self.all.get(id as usize - 1)?;
        let entry = TypeOffset { id, at };
        let kind = from.kind(entry);
        let words = from.length(entry)? / WORD;
        let mut words: Vec<u32> = (0..words).map(|word| from.word(at + word * WORD)).collect();
        words[0] = self.name(words[0])?;
        match kind {
            POINTER => words[2] = 0,
            TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => words[2] = self.number(words[2]),
            ARRAY => {
                words[3] = self.number(words[3]);
                words[4] = self.number(words[4]);
            }
            STRUCTURE | UNION => {
                for member in words[3..].chunks_exact_mut(MEMBER_LENGTH / WORD) {
                    member[0] = self.name(member[0])?;
                    member[1] = self.number(member[1]);
                }
            }
            // The names of their values are not needed.
            ENUMERATION | ENUMERATION_64 => {
                words[1] &= !0xffff;
                words.truncate(3);
            }
            INT | FORWARD | FLOAT => {}
            _ => return None,
        }
        self.types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        Some(())
    }

    fn name(&mut self, offset: u32) -> Option<u32> {
        if offset == 0 {
            return Some(0);
        }
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(self.from.string(offset)?);
        self.strings.push(0);
        Some(at)
    }

    fn finish(self) -> Option<Vec<u8>> {
        let length = |part: &[u8]| u32::try_from(part.len()).ok();
        let (types, strings) = (length(&self.types)?, length(&self.strings)?);
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([VERSION, 0]);
        for word in [HEADER_LENGTH as u32, 0, types, types, strings] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(self.types);
        bytes.extend(self.strings);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::KernelFeature;

    fn of_kernel() -> Option<KernelTypes> {
        let types = KernelTypes::read().ok();
        if types.is_none() {
            let reason = KernelFeature::Btf.reason_to_skip();
            eprintln!("SKIPPED: {}", reason.expect("the kernel's types, which are there"));
        }
        types
    }

    impl KernelTypes {
        fn entry(&self, kind: u8, name: &str) -> Option<TypeOffset> {
            self.entries().find(|entry| self.kind(*entry) == kind && self.is_called(*entry, name))
        }

        /// Returns a structure's size, and the offsets of its members.
        fn outline(&self, entry: TypeOffset) -> (u32, Vec<(Vec<u8>, u32)>) {
            let member = |number: usize| {
                let at = entry.at + TYPE_LENGTH + number * MEMBER_LENGTH;
                let name = self.string(self.word(at)).expect("a name");
                (name.to_vec(), self.word(at + 2 * WORD))
            };
            let members = (0..self.count(entry)).map(member).collect();
            (self.word(entry.at + 2 * WORD), members)
        }
    }

    #[test]
    fn excerpt_keeps_the_layout_of_structures() {
        let Some(types) = of_kernel() else {
            return;
        };
        let bytes = types.excerpt(list::STRUCTURES).expect("an excerpt");
        assert!(bytes.len() < types.bytes.len() / 20, "{}", bytes.len());
        let excerpt = KernelTypes::parse(bytes.into()).expect("a valid excerpt");
        for name in list::STRUCTURES {
            let (there, here) = (types.entry(STRUCTURE, name), excerpt.entry(STRUCTURE, name));
            assert_eq!(there.is_some(), here.is_some(), "{name}");
            if let Some((there, here)) = there.zip(here) {
                assert_eq!(types.outline(there), excerpt.outline(here), "{name}");
            }
        }
        assert!(excerpt.entry(STRUCTURE, "xdp_buff").is_some());
    }

    #[test]
    fn names_have_the_numbers_of_libbpf() {
        let Some(types) = of_kernel() else {
            return;
        };
        // SAFETY: no arguments; the result is used only if it is not null, and freed below.
        let theirs = unsafe { libbpf_sys::btf__load_vmlinux_btf() };
        assert!(!theirs.is_null());
        for (kind, name) in [
            (FUNCTION, c"xdp_do_redirect"),
            (FUNCTION, c"no_such_function"),
            (STRUCTURE, c"xdp_buff"),
            (VARIABLE, c"no_such_variable"),
        ] {
            // SAFETY: the types are live, and the name outlives the call.
            let number = unsafe { libbpf_sys::btf__find_by_name_kind(theirs, name.as_ptr(), u32::from(kind)) };
            let found = types.find(kind, name.to_str().expect("a name"));
            assert_eq!(found, u32::try_from(number).ok(), "{name:?}");
        }
        // SAFETY: it came from btf__load_vmlinux_btf and is not used after this.
        unsafe { libbpf_sys::btf__free(theirs) };
    }

    #[test]
    fn members_have_the_offsets_of_c() {
        let Some(types) = of_kernel() else {
            return;
        };
        assert_eq!(types.offset("list_head", "prev"), Some(8));
        // In a union in a structure in a union.
        assert_eq!(types.offset("sk_buff", "next"), Some(0));
        assert!(types.offset("sk_buff", "head").is_some());
        assert_eq!(types.offset("sk_buff", "no_such_member"), None);
    }

    /// Builds type information from these words of types and these names.
    fn made(types: &[u32], names: &[u8]) -> KernelTypes {
        let length = (types.len() * WORD) as u32;
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([VERSION, 0]);
        let header = [HEADER_LENGTH as u32, 0, length, length, names.len() as u32];
        bytes.extend(header.iter().chain(types).flat_map(|word| word.to_ne_bytes()));
        bytes.extend(names);
        KernelTypes::parse(bytes.into()).unwrap()
    }

    /// The name offsets of a module continue after the kernel's names, and may refer to a name of the kernel.
    #[test]
    fn module_enumerations_use_names_of_both() {
        let kind = |count: u32| u32::from(ENUMERATION) << 24 | count;
        let kernel = made(&[1, kind(1), 4, 17, 2], b"\0skb_drop_reason\0NO_SOCKET\0");
        let own = 27;
        let module = made(&[own, kind(2), 4, own + 16, 3 << 16 | 1, 17, 3 << 16 | 2], b"ovs_drop_reason\0LAST\0");
        let pair = |name: &str, value| (name.to_owned(), value);
        assert_eq!(kernel.enumerations("_drop_reason", None), [pair("NO_SOCKET", 2)]);
        assert_eq!(kernel.enumerations("_other", None), []);
        let found = module.enumerations("_drop_reason", Some(&kernel));
        assert_eq!(found, [pair("LAST", 196_609), pair("NO_SOCKET", 196_610)]);
    }

    #[test]
    fn malformed_types_are_refused() {
        let Some(types) = of_kernel() else {
            return;
        };
        let bytes = types.excerpt(&["xdp_buff"]).expect("an excerpt");
        for length in 0..bytes.len() {
            assert!(KernelTypes::parse(bytes[..length].to_vec().into()).is_none());
        }
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0xff;
            // Whatever the parser accepts, the excerpt terminates.
            if let Some(types) = KernelTypes::parse(wrong.into()) {
                let _ = types.excerpt(&["xdp_buff"]);
            }
        }
    }
}
