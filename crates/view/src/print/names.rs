//! Names of values, as tcpdump prints them, and the numbers of ethertypes and IP protocols that have a printer.
//!
//! `names.txt` holds the names, a table to a paragraph: `table: 1 One | 2-4 Few | 0x10 Many | * Unknown`. The name of
//! `*` stands for all other values; in it `%` is the value, `%2` and `%4` its hexadecimal form with that number of
//! digits.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use trawl_packet::fnv::Fnv;

#[derive(Debug, Default)]
pub struct Table {
    names: Vec<(RangeInclusive<u64>, &'static str)>,
    other: &'static str,
}

/// A table that is looked up once, for names that many packets need.
pub type Names = LazyLock<&'static Table>;

// The names of tables are short, and no packet can choose them.
type Tables = HashMap<&'static str, Table, BuildHasherDefault<Fnv>>;

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let mut tables = Tables::default();
    let mut current = "";
    for line in include_str!("names.txt").lines() {
        let head = line.split_once(": ").filter(|_| !line.starts_with(' '));
        let (name, entries) = head.unwrap_or((current, line));
        current = name;
        let table = tables.entry(name).or_default();
        for entry in entries.split('|').map(str::trim) {
            match entry.split_once(' ') {
                Some(("*", name)) => table.other = name,
                Some((value, name)) => table.names.extend(range(value).map(|range| (range, name))),
                None => {}
            }
        }
    }
    tables
});

fn range(text: &str) -> Option<RangeInclusive<u64>> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(number(first)?..=number(last)?)
}

impl Table {
    /// Returns the name of a value that has one of its own.
    pub fn find(&self, value: impl Into<u64>) -> Option<&'static str> {
        let value = value.into();
        let mut names = self.names.iter();
        let found = names.find(|(range, _)| range.contains(&value));
        found.map(|(_, name)| *name)
    }

    /// Returns the name of a value, or the name for all others with the value in it.
    pub fn text(&self, value: impl Into<u64>) -> Cow<'static, str> {
        let value = value.into();
        if let Some(name) = self.find(value) {
            return name.into();
        }
        let Some((before, after)) = self.other.split_once('%') else {
            return self.other.into();
        };
        let (number, after) = match after.split_at_checked(1) {
            Some(("2", after)) => (format!("{value:02x}"), after),
            Some(("4", after)) => (format!("{value:04x}"), after),
            _ => (value.to_string(), after),
        };
        format!("{before}{number}{after}").into()
    }

    /// Returns the names of the bits that are set, joined.
    pub fn joined(&self, set: impl Into<u64>, joint: &str) -> String {
        let set = set.into();
        let names = self.names.iter().filter(|(bit, _)| set & bit.start() != 0);
        names.map(|(_, name)| *name).collect::<Vec<_>>().join(joint)
    }
}

pub fn is_table(name: &str) -> bool {
    TABLES.contains_key(name)
}

pub fn table(name: &str) -> &'static Table {
    static NONE: Table = Table { names: Vec::new(), other: "" };
    let table = TABLES.get(name);
    debug_assert!(table.is_some(), "no table {name}");
    table.unwrap_or(&NONE)
}

pub fn find(name: &str, value: impl Into<u64>) -> Option<&'static str> {
    table(name).find(value)
}

/// Returns the name of a value, or the name for all others, or nothing.
pub fn of(name: &str, value: impl Into<u64>) -> &'static str {
    let table = table(name);
    table.find(value).unwrap_or(table.other)
}

pub fn text(name: &str, value: impl Into<u64>) -> Cow<'static, str> {
    table(name).text(value)
}

pub fn joined(name: &str, set: impl Into<u64>, joint: &str) -> String {
    table(name).joined(set, joint)
}

/// Returns the names of the bits that are set, with commas between; `none` if no bit with a name is set.
pub fn flags(name: &str, set: impl Into<u64>) -> String {
    match table(name).joined(set, ", ") {
        names if names.is_empty() => "none".to_owned(),
        names => names,
    }
}

/// Returns true if a table has the name, in upper or lower case.
pub fn has_word(name: &str, word: &[u8]) -> bool {
    let mut names = table(name).names.iter();
    names.any(|(_, name)| name.as_bytes().eq_ignore_ascii_case(word))
}

/// Values up to this are lengths of 802.3 frames, not ethertypes.
pub const MAX_LENGTH: u16 = 1500;

pub fn ethertype(value: u16) -> Option<&'static str> {
    static ETHERTYPES: Names = Names::new(|| table("ethertype"));
    ETHERTYPES.find(value)
}

/// Returns the owner of the first three bytes of an address or an extension.
pub fn organization(oui: impl Into<u64>) -> &'static str {
    of("organization", oui)
}

/// Returns the name of an address family by IANA's number.
pub fn address_family(number: u16) -> &'static str {
    of("address_family", number)
}

pub fn protocol(value: u8) -> Option<&'static str> {
    static PROTOCOLS: Names = Names::new(|| table("protocol"));
    PROTOCOLS.find(value)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Returns the sources of the printers.
    fn sources(folder: &Path) -> String {
        let entries = fs::read_dir(folder).expect("the folder of the printers");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths
            .map(|path| if path.is_dir() { sources(&path) } else { fs::read_to_string(&path).unwrap_or_default() })
            .collect()
    }

    #[test]
    fn tables_that_printers_name_exist() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/print");
        let text = sources(&folder);
        let called = text.split("names::").filter_map(|rest| {
            let (_, rest) = rest.split_once("(\"").filter(|(name, _)| name.len() < 7)?;
            Some(rest.split('"').next()?.to_owned())
        });
        let in_templates = text.split("{n").chain(text.split("{f")).filter_map(|rest| {
            let field = rest.split('}').next()?;
            let mut fields = field.split(' ');
            let is_form = fields.next()?.parse::<u8>().is_ok();
            fields.nth(1).filter(|_| is_form).map(str::to_owned)
        });
        let mut count = 0;
        for name in called.chain(in_templates) {
            assert!(is_table(&name), "no table {name}");
            count += 1;
        }
        assert!(count > 150, "{count}");
    }

    #[test]
    fn other_values_show_themselves_in_the_last_name() {
        assert_eq!(text("bgp.router", 3u8), "Summary");
        assert_eq!(text("bgp.router", 10u8), "unknown (0x0a)");
        assert_eq!(text("dns.type", 300u16), "Type300");
        assert_eq!(find("mpls.label", 9u8), Some("rsvd"));
        assert_eq!(flags("gre.flags", 0xa000u16), "checksum present, key present");
        assert_eq!(flags("gre.flags", 0u16), "none");
    }
}
