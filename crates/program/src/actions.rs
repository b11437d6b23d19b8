//! Sets of verdicts: those after which the next program of a chain runs.

use std::fmt;

/// In the order of their numbers.
const NAMES: [&str; 5] = ["aborted", "drop", "pass", "tx", "redirect"];
/// What the stub of a dispatcher's empty slot returns; the chain always goes on there.
const STUB: u32 = 1 << 31;

/// A set of XDP verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions(u32);

impl Actions {
    /// Where nothing else is said, the next program runs after "pass".
    pub const DEFAULT: Self = Self(1 << 2 | STUB);

    pub fn from_bits(bits: u32) -> Self {
        Self(bits | STUB)
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    /// Names with commas between them; the first word that is none is the error.
    pub fn parse(list: &str) -> Result<Self, String> {
        let number = |name: &str| {
            let found = NAMES.iter().position(|known| *known == name);
            found
                .map(|number| number as u32)
                .ok_or_else(|| format!("{name} is no verdict; there are {}", NAMES.join(", ")))
        };
        list.split(',').map(number).collect()
    }

    /// The numbers of the verdicts in it.
    pub fn verdicts(self) -> Vec<u32> {
        (0..31)
            .filter(|verdict| self.0 >> verdict & 1 != 0)
            .collect()
    }

    pub fn names(self) -> Vec<String> {
        let name = |verdict: u32| match NAMES.get(verdict as usize) {
            Some(name) => (*name).to_owned(),
            None => verdict.to_string(),
        };
        self.verdicts().into_iter().map(name).collect()
    }
}

impl fmt::Display for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

impl FromIterator<u32> for Actions {
    fn from_iter<I: IntoIterator<Item = u32>>(verdicts: I) -> Self {
        let bits = verdicts.into_iter().filter(|verdict| *verdict < 31);
        Self::from_bits(bits.fold(0, |all, verdict| all | 1 << verdict))
    }
}

/// The verdict that a program's run configuration calls `XDP_…`.
pub fn verdict_by_name(name: &str) -> Option<u32> {
    let name = name.strip_prefix("XDP_")?.to_ascii_lowercase();
    let found = NAMES.iter().position(|known| *known == name)?;
    Some(found as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_names() {
        assert_eq!(Actions::DEFAULT.to_string(), "pass");
        let both: Actions = [2, 1].into_iter().collect();
        assert_eq!(both.to_string(), "drop,pass");
        assert_eq!(both.bits(), 1 << 31 | 6);
        assert_eq!(Actions::parse("pass,drop"), Ok(both));
        assert!(Actions::parse("pass,").is_err() && Actions::parse("PASS").is_err());
        assert_eq!(verdict_by_name("XDP_TX"), Some(3));
        assert_eq!(verdict_by_name("priority"), None);
    }
}
