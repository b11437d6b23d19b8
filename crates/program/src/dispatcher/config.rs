//! The settings of a dispatcher, as libxdp's protocol lays them out in the program's constants.

use crate::actions::Actions;

/// This many programs can be behind one dispatcher.
pub const SLOTS: usize = 10;
const MAGIC: u8 = 236;
/// The version that is written here; libxdp since 1.3.
pub const VERSION: u8 = 2;
const LENGTH: usize = 4 + 3 * 4 * SLOTS;
/// The first version had neither magic nor flags.
const LENGTH_1: usize = 4 + 2 * 4 * SLOTS;

/// One slot's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// After which verdicts the next program runs.
    pub actions: Actions,
    /// Lower ones run first.
    pub priority: u32,
    /// `BPF_F_…` that the program was loaded with, as far as they matter to it.
    pub flags: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub version: u8,
    /// The dispatcher takes packets that are not in one piece.
    pub frags: bool,
    pub slots: Vec<Slot>,
}

impl Config {
    /// Reads what a dispatcher was loaded with; `None` if that is not a dispatcher's.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        let (version, count, frags) = match (bytes.len(), bytes.first()?) {
            (LENGTH, &MAGIC) => (bytes[1], bytes[2], bytes[3] != 0),
            (LENGTH_1, count) => (1, *count, false),
            _ => return None,
        };
        if usize::from(count) > SLOTS {
            return None;
        }
        let slot = |index: usize| {
            let row = |number: usize| word(4 + (number * SLOTS + index) * 4);
            Some(Slot {
                actions: Actions::from_bits(row(0)?),
                priority: row(1)?,
                flags: if version > 1 { row(2)? } else { 0 },
            })
        };
        Some(Self {
            version,
            frags,
            slots: (0..usize::from(count)).map(slot).collect::<Option<_>>()?,
        })
    }

    /// What a dispatcher for these is to be loaded with.
    pub fn bytes(&self) -> Vec<u8> {
        let mut words = [[0u32; SLOTS]; 3];
        for (index, slot) in self.slots.iter().take(SLOTS).enumerate() {
            words[0][index] = slot.actions.bits();
            words[1][index] = slot.priority;
            words[2][index] = slot.flags;
        }
        let mut bytes = vec![
            MAGIC,
            VERSION,
            self.slots.len().min(SLOTS) as u8,
            u8::from(self.frags),
        ];
        bytes.extend(words.iter().flatten().flat_map(|word| word.to_ne_bytes()));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let slot = |priority| Slot {
            actions: Actions::DEFAULT,
            priority,
            flags: 32,
        };
        Config {
            version: VERSION,
            frags: true,
            slots: vec![slot(10), slot(50)],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = config().bytes();
        assert_eq!(bytes.len(), 124);
        assert_eq!(&bytes[..4], [236, 2, 2, 1]);
        assert_eq!(Config::parse(&bytes), Some(config()));
    }

    #[test]
    fn the_first_version_is_read() {
        let mut bytes = vec![1, 0, 0, 0];
        bytes.extend([1u32 << 2].map(u32::to_ne_bytes).concat());
        bytes.resize(4 + 40, 0);
        bytes.extend(7u32.to_ne_bytes());
        bytes.resize(84, 0);
        let read = Config::parse(&bytes).unwrap();
        assert_eq!((read.version, read.slots.len()), (1, 1));
        assert_eq!(read.slots[0].priority, 7);
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(Config::parse(&[]), None);
        assert_eq!(Config::parse(&[1; 124]), None);
        let mut bytes = config().bytes();
        bytes[2] = 11;
        assert_eq!(Config::parse(&bytes), None);
        bytes.push(0);
        assert_eq!(Config::parse(&bytes), None);
    }

    proptest::proptest! {
        #[test]
        fn what_others_wrote_is_read_or_refused(bytes in proptest::collection::vec(0u8.., 0..130), magic: bool) {
            let mut bytes = bytes;
            if magic {
                bytes.resize(LENGTH, 0);
                bytes[..2].copy_from_slice(&[MAGIC, VERSION]);
            }
            if let Some(config) = Config::parse(&bytes) {
                assert!(config.slots.len() <= SLOTS);
                if config.version == VERSION {
                    assert_eq!(Config::parse(&config.bytes()), Some(config));
                }
            }
        }
    }
}
