//! The kernel's functions by their addresses.

use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use super::object::{self, TapProgram, Taps};
use super::program::{self, LoadOptions};
use super::test_run;
use crate::layout::{KernelAddresses, Shared, TapConfig};

const PATH: &str = "/proc/kallsyms";
const MODULES: &str = "/proc/modules";
/// Separator before the suffix that compilers add to the name of a function's variant.
const VARIANT: char = '.';
/// Prefix of symbols that are not functions themselves.
const PREFIX: &str = "__pfx_";

/// The functions of the kernel and its modules, in the order of their addresses.
#[derive(Debug, Default)]
pub struct Symbols {
    addresses: Vec<u64>,
    /// Start of each name among the names, which are terminated by newlines.
    names: Vec<u32>,
    text: String,
    /// Names of the modules that were loaded.
    modules: Vec<String>,
}

/// A position in the kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<'s> {
    pub function: &'s str,
    pub offset: u64,
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.function, self.offset)
    }
}

impl Symbols {
    /// Reads the current functions; empty if the kernel hides addresses.
    pub fn read() -> Self {
        let modules = modules();
        let read = fs::read_to_string(PATH);
        let symbols = read.map_or_else(|_| Self::default(), |text| Self::parse(&text));
        Self { modules, ..symbols }
    }

    /// Reads the functions again if modules were loaded or removed since: otherwise an address could be attributed to
    /// another module.
    pub fn refresh(&mut self) {
        if modules() != self.modules {
            let now = Self::read();
            if !now.is_empty() {
                *self = now;
            }
        }
    }

    fn parse(text: &str) -> Self {
        let symbol = |line| {
            // Address, kind and name; a tab precedes the module.
            let (address, rest) = str::split_once(line, ' ')?;
            let (kind, name) = rest.split_once(' ')?;
            let is_code = matches!(kind, "t" | "T" | "w" | "W") && !name.starts_with(PREFIX);
            let address = u64::from_str_radix(address, 16).ok().filter(|at| is_code && *at > 0)?;
            Some((address, name.split_once('\t').map_or(name, |(name, _)| name)))
        };
        let mut all: Vec<(u64, &str)> = text.lines().filter_map(symbol).collect();
        // Of several names for one address, the first in the kernel's order is kept.
        all.sort_by_key(|(address, _)| *address);
        all.dedup_by_key(|(address, _)| *address);
        let mut symbols = Self::default();
        for (address, name) in all {
            symbols.addresses.push(address);
            symbols.names.push(symbols.text.len() as u32);
            symbols.text.push_str(name);
            symbols.text.push('\n');
        }
        // They stay in memory as long as the capture.
        symbols.addresses.shrink_to_fit();
        symbols.names.shrink_to_fit();
        symbols.text.shrink_to_fit();
        symbols
    }

    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Returns the function that contains an address.
    pub fn find(&self, address: u64) -> Option<At<'_>> {
        let after = self.addresses.partition_point(|one| *one <= address);
        let at = after.checked_sub(1)?;
        Some(At { function: self.name(at)?, offset: address - self.addresses[at] })
    }

    /// Returns the function that contains the call that returns to an address. If the call is the function's last
    /// instruction, the address is the next function's.
    pub fn caller(&self, address: u64) -> Option<At<'_>> {
        let call = self.find(address.checked_sub(1)?)?;
        Some(At { offset: call.offset + 1, ..call })
    }

    /// Returns the address ranges of all functions of these names and their variants, each ending before the next
    /// function.
    pub fn ranges(&self, names: &[&str]) -> Vec<(u64, u64)> {
        let is_meant = |one: &str| {
            let name = one.split_once(VARIANT).map_or(one, |(name, _)| name);
            names.contains(&name)
        };
        let after = self.addresses.iter().skip(1);
        let functions = self.text.lines().zip(self.addresses.iter().zip(after));
        functions.filter(|(name, _)| is_meant(name)).map(|(_, (from, end))| (*from, *end)).collect()
    }

    /// Returns the functions in this list that the kernel has.
    pub fn present(&self, names: &[String]) -> Vec<String> {
        let known = self.text.lines().filter_map(|one| names.iter().find(|name| *name == one));
        known.cloned().collect()
    }

    fn name(&self, at: usize) -> Option<&str> {
        self.text.get(*self.names.get(at)? as usize..)?.lines().next()
    }
}

fn modules() -> Vec<String> {
    let text = fs::read_to_string(MODULES).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

// The kernel's memory layout, read once: needed to locate the bytes of a packet's fragments from outside its program.

/// Returns the addresses; `None` if the kernel hides them (before 5.16, which has no such packets), or on an
/// unsupported architecture.
pub fn kernel_addresses() -> Option<KernelAddresses> {
    static FOUND: OnceLock<Option<KernelAddresses>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let name = "trawl_addresses";
        let config = TapConfig::zeroed();
        let program = TapProgram::prepare(Taps::of(object::KERNEL_ADDRESSES), name, &config, &[]).ok()?;
        let loaded =
            program.load(&LoadOptions { flags: program::SLEEPABLE, ..LoadOptions::new(name, program::SYSCALL) });
        test_run::system(loaded.ok()?.as_fd()).ok()
    })
}

#[cfg(test)]
mod tests {
    use trawl_sys::testing::root_or_skip;

    use super::*;

    const TEXT: &str = "\
ffffffff81000000 T _text
ffffffff81000100 t __pfx_veth_poll
ffffffff81000110 t veth_poll
ffffffff81000200 t veth_poll.cold
ffffffff81000300 D data
ffffffff81000400 T last\t[module]
0000000000000000 t hidden
";

    #[test]
    fn address_belongs_to_the_function_before_it() {
        let symbols = Symbols::parse(TEXT);
        let at = |address| symbols.find(address).map(|at| at.to_string());
        assert_eq!(at(0xffffffff81000150).as_deref(), Some("veth_poll+0x40"));
        assert_eq!(at(0xffffffff81000110).as_deref(), Some("veth_poll+0x0"));
        assert_eq!(at(0xffffffff81000410).as_deref(), Some("last+0x10"));
        assert_eq!(at(0x1000), None);
        let caller = |address| symbols.caller(address).map(|at| at.to_string());
        assert_eq!(caller(0xffffffff81000150).as_deref(), Some("veth_poll+0x40"));
        assert_eq!(caller(0xffffffff81000200).as_deref(), Some("veth_poll+0xf0"));
    }

    #[test]
    fn functions_are_read_again_if_modules_change() {
        if !root_or_skip() {
            return;
        }
        let mut symbols = Symbols::parse(TEXT);
        symbols.modules = modules();
        symbols.refresh();
        assert_eq!(symbols.addresses.len(), 4);
        symbols.modules.push("gone".to_owned());
        symbols.refresh();
        assert!(symbols.is_empty() || symbols.addresses.len() > 1000);
    }

    #[test]
    fn name_covers_its_variants() {
        let symbols = Symbols::parse(TEXT);
        assert_eq!(
            symbols.ranges(&["veth_poll"]),
            [(0xffffffff81000110, 0xffffffff81000200), (0xffffffff81000200, 0xffffffff81000400)]
        );
        assert_eq!(symbols.ranges(&["veth"]), []);
    }

    /// Both addresses are in the kernel's half, on page boundaries.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn addresses_are_the_kernels() {
        if !root_or_skip() {
            return;
        }
        let Some(found) = kernel_addresses() else {
            eprintln!("SKIPPED: the kernel hides its addresses");
            return;
        };
        for address in [found.first_address, found.first_page] {
            assert!(address >> 47 == 0x1ffff && address & 0xfff == 0, "{address:#x}");
        }
    }
}
