//! Some of the kernel's types as type information of their own.

use std::collections::HashMap;

use super::{
    ARRAY, CONST, ENUM, ENUM_64, FLOAT, FORWARD, HEADER_LENGTH, INT, KernelTypes, MAGIC,
    MEMBER_LENGTH, POINTER, RESTRICT, STRUCTURE, TYPE_TAG, TYPEDEF, TypeOffset, UNION, VERSION,
    VOLATILE, WORD,
};

/// Type information in the making.
pub(super) struct Excerpt<'a> {
    from: &'a KernelTypes,
    /// Where each of the kernel's types is.
    all: &'a [usize],
    /// The new numbers of those that were taken over, and what is still to be written of them.
    numbers: HashMap<u32, u32>,
    open: Vec<u32>,
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl<'a> Excerpt<'a> {
    pub(super) fn new(from: &'a KernelTypes, all: &'a [usize]) -> Self {
        Self {
            from,
            all,
            numbers: HashMap::new(),
            open: Vec::new(),
            types: Vec::new(),
            strings: vec![0],
        }
    }

    pub(super) fn add(&mut self, id: u32) -> Option<()> {
        self.number(id);
        // In the order of their numbers: each is written when it is its turn, and gives numbers to what lies in it.
        let mut next = 0;
        while let Some(id) = self.open.get(next).copied() {
            self.write(id)?;
            next += 1;
        }
        self.open.clear();
        Some(())
    }

    /// The new number of a type.
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
        let place = TypeOffset { id, at };
        let kind = from.kind(place);
        let words = from.length(place)? / WORD;
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
            // The names of their values are of no use here.
            ENUM | ENUM_64 => {
                words[1] &= !0xffff;
                words.truncate(3);
            }
            INT | FORWARD | FLOAT => {}
            _ => return None,
        }
        self.types
            .extend(words.iter().flat_map(|word| word.to_ne_bytes()));
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

    pub(super) fn finish(self) -> Option<Vec<u8>> {
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
