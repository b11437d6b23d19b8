//! Compiles rules to the lines that the guard's program searches, and reads them back; bpf/include/guard.h defines the
//! lines.

mod pool;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use trawl_bpf::layout::Shared;
use trawl_bpf::layout::guard::{
    GUARD_ALLOW, GUARD_CPUS, GUARD_DENY, GUARD_LINE, GUARD_ONLY_ALLOW, GUARD_ONLY_ALLOW_SERVICE, GUARD_ONLY_DENY,
    GUARD_ONLY_DENY_SERVICE, GUARD_RULES, GUARD_TCP_ANY, GUARD_TCP_ESTABLISHED, GUARD_TCP_SYN, GUARD_TICKS_SHIFT,
    GuardDefinition, GuardExtra, GuardHeader, GuardHits, GuardPrefix, GuardRule,
};
use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result};

use crate::compile::pool::{Candidate, Pool, PrefixLine, SHORT_LIST};
use crate::rule::{Action, Draft, IcmpType, Match, On, PROTOCOL_SHIFT, Ports, Rule, Services, TcpState};
use crate::set::{Hits, InterfaceDefault, RuleSet};
use crate::values::{MacPrefix, Prefix};

const NANOSECONDS: u64 = 1_000_000_000;
const VERSION: u32 = 6;
const RULES: usize = GUARD_RULES;
const WORDS_IN_LINE: usize = GUARD_LINE / 8;
const HITS_IN_LINE: usize = GUARD_LINE / 16;
/// Bit above the protocol and the port, set for a later fragment.
const FRAGMENT: u32 = 1 << 24;

/// A prefix as the key of a search: its address as a number, and its length in bits.
type Key = (u128, u32);
const ANY: Key = (0, 0);

fn key(prefix: Option<Prefix>) -> Key {
    prefix.map_or(ANY, |prefix| {
        let bits = match prefix.address() {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        };
        (bits, prefix.length().into())
    })
}

/// The rules of one source: the positions of rules without a destination, and those with one.
#[derive(Debug, Default)]
struct SourceRules {
    own: Vec<usize>,
    destinations: BTreeMap<Key, Vec<usize>>,
}

/// Compiles a rule set to the lines of a map or an arena, in which its first line has the number `begins`.
pub fn compile(set: &RuleSet, cpus: u32, begins: usize) -> Result<Vec<u8>> {
    // CPUs above the maximum share the last counters.
    let cpus = cpus.min(GUARD_CPUS as u32 - 1);
    let families = [false, true].map(|ipv6| sources(&set.rules, ipv6));
    let rule_count = set.rules.len() + set.defaults.len();
    let prefix_count: usize =
        families.iter().flat_map(BTreeMap::values).map(|source| 1 + source.destinations.len()).sum();
    let first_extra = begins + RULES + rule_count + prefix_count;
    let extra_count = set.rules.iter().filter(|rule| rule.what.names_extras()).count();
    let mut compiler = Compiler {
        rules: &set.rules,
        first_rule: begins + RULES,
        pool: Pool::new((first_extra + extra_count) * WORDS_IN_LINE),
        next_prefix: begins + RULES + rule_count,
        prefixes: Vec::with_capacity(prefix_count * GUARD_LINE),
    };
    let [v4, v6] = families.map(|sources| compiler.sources(&sources));
    let defaults = compiler.defaults(&set.defaults);
    let Compiler { pool, prefixes, .. } = compiler;
    let mut words = pool.into_words();
    words.resize(words.len().next_multiple_of(WORDS_IN_LINE), 0);

    let hit_lines = rule_count.div_ceil(HITS_IN_LINE).max(1);
    let hits = first_extra - begins + extra_count + words.len() / WORDS_IN_LINE;
    let definitions = hits + hit_lines * (cpus as usize + 1);
    let lines = definitions + rule_count * DEFINITION_LINES;
    let short = |number: usize| {
        u32::try_from(number)
            // Lists are numbered by groups of four words.
            .ok()
            .filter(|_| begins + lines <= u32::MAX as usize / 16)
            .ok_or_else(|| {
                Error::failed(
                    "cannot lay out the rules",
                    format!("they would fill {lines} lines of {GUARD_LINE} bytes"),
                )
                .fix("use fewer overlapping ranges of ports")
            })
    };
    let header = GuardHeader {
        sources: [v4, v6],
        defaults,
        hits: short((begins + hits) * HITS_IN_LINE - begins - RULES)?,
        hits_of_cpu: short(hit_lines * HITS_IN_LINE)?,
        cpus,
        definitions: short(definitions)?,
        rule_count: short(set.rules.len())?,
        default_count: short(set.defaults.len())?,
        next_id: set.next_id,
        lines: short(lines)?,
        version: VERSION,
        padding: 0,
    };
    let mut bytes = Vec::with_capacity(lines * GUARD_LINE);
    bytes.extend(header.to_bytes());
    let mut extras = Vec::with_capacity(extra_count * GUARD_LINE);
    for rule in &set.rules {
        let mut line = rule_line(rule);
        if rule.what.names_extras() {
            line.extra = short(first_extra + extras.len() / GUARD_LINE)?;
            extras.extend(extra_line(&rule.what).to_bytes());
        }
        bytes.extend(line.to_bytes());
    }
    for default in &set.defaults {
        bytes.extend(default_line(default).to_bytes());
    }
    bytes.extend(prefixes);
    bytes.extend(extras);
    bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    bytes.resize(definitions * GUARD_LINE, 0);
    for rule in &set.rules {
        bytes.extend(definition_of_rule(rule, set.hits_of(rule.id)).to_bytes());
    }
    for default in &set.defaults {
        bytes.extend(definition_of_default(default).to_bytes());
    }
    Ok(bytes)
}

/// Returns the line at which the definitions begin in a compiled set.
pub fn definitions_in(bytes: &[u8]) -> usize {
    GuardHeader::from_bytes(bytes).map_or(0, |header| header.definitions as usize)
}

/// Returns the rules that can apply to packets of one IP version, by source and destination.
fn sources(rules: &[Rule], ipv6: bool) -> BTreeMap<Key, SourceRules> {
    let mut all: BTreeMap<Key, SourceRules> = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        let Match { source, destination, .. } = rule.what;
        if source.or(destination).is_some_and(|prefix| prefix.is_ipv6() != ipv6) {
            continue;
        }
        let source = all.entry(key(source)).or_default();
        match key(destination) {
            ANY => source.own.push(index),
            destination => source.destinations.entry(destination).or_default().push(index),
        }
    }
    all
}

struct Compiler<'a> {
    rules: &'a [Rule],
    /// The line of the first rule.
    first_rule: usize,
    pool: Pool,
    next_prefix: usize,
    prefixes: Vec<u8>,
}

impl Compiler<'_> {
    fn sources(&mut self, sources: &BTreeMap<Key, SourceRules>) -> u64 {
        let lines = self.reserve(sources.len());
        // The source prefixes come first, their destinations after them.
        let at = self.prefixes.len();
        self.prefixes.resize(at + sources.len() * GUARD_LINE, 0);
        for (number, (mut prefix, (key, source))) in nested(sources.keys(), lines).into_iter().zip(sources).enumerate()
        {
            // The rules for any source apply to nearly all packets, and always get a table.
            let listed = if *key == ANY { 1 } else { SHORT_LIST };
            prefix.services = self.services(&source.own, listed);
            prefix.destinations = self.destinations(&source.destinations);
            self.mark_single_rule(&mut prefix);
            self.prefixes[at + number * GUARD_LINE..][..GUARD_LINE].copy_from_slice(&prefix.to_bytes());
        }
        self.pool.search(&innermost(sources.keys(), lines))
    }

    fn destinations(&mut self, destinations: &BTreeMap<Key, Vec<usize>>) -> u64 {
        if destinations.is_empty() {
            return 0;
        }
        let lines = self.reserve(destinations.len());
        for (mut prefix, indices) in nested(destinations.keys(), lines).into_iter().zip(destinations.values()) {
            prefix.services = self.services(indices, SHORT_LIST);
            self.prefixes.extend(prefix.to_bytes());
        }
        self.pool.search(&innermost(destinations.keys(), lines))
    }

    fn reserve(&mut self, count: usize) -> usize {
        let first = self.next_prefix;
        self.next_prefix += count;
        first
    }

    fn services(&mut self, indices: &[usize], listed: usize) -> u64 {
        let mut indices = indices.to_vec();
        indices.sort_by_key(|index| self.rules[*index].rank());
        let candidates: Vec<Candidate> =
            indices.iter().map(|index| candidate(&self.rules[*index], (self.first_rule + index) as u32)).collect();
        self.pool.services(&candidates, listed)
    }

    /// Marks a source that has a single plain rule: the program checks it in few instructions.
    fn mark_single_rule(&self, source: &mut GuardPrefix) {
        let Some(line) = pool::only_rule(source.services).filter(|_| source.destinations == 0) else {
            return;
        };
        let rule = &self.rules[line as usize - self.first_rule];
        if !rule.is_plain() {
            return;
        }
        let (for_all, for_service) = match rule.action {
            Action::Deny => (GUARD_ONLY_DENY, GUARD_ONLY_DENY_SERVICE),
            Action::Allow => (GUARD_ONLY_ALLOW, GUARD_ONLY_ALLOW_SERVICE),
        };
        match rule.what.services().as_slice() {
            _ if rule.what.any_service() => source.only = for_all as u32,
            [(first, last)] if rule.what.icmp.is_none() => {
                source.only = for_service as u32;
                (source.first, source.more) = (*first, last - first);
            }
            _ => {}
        }
    }

    fn defaults(&mut self, defaults: &[InterfaceDefault]) -> u64 {
        let mut entries: Vec<PrefixLine> = defaults
            .iter()
            .enumerate()
            .map(|(number, default)| PrefixLine {
                key: u128::from(default.on.index) << 96,
                length: 32,
                line: (self.first_rule + self.rules.len() + number) as u32,
            })
            .collect();
        entries.sort();
        self.pool.search(&entries)
    }
}

fn candidate(rule: &Rule, line: u32) -> Candidate {
    let mut services: Vec<Services> = rule.what.services();
    if rule.holds_for_fragments() {
        let of_fragments = |(first, last): &Services| {
            let last = last >> PROTOCOL_SHIFT << PROTOCOL_SHIFT | 0xffff;
            (FRAGMENT | first >> PROTOCOL_SHIFT << PROTOCOL_SHIFT, FRAGMENT | last)
        };
        let fragments: Vec<Services> = services.iter().map(of_fragments).collect();
        services.extend(fragments);
    }
    Candidate { line, services, is_certain: rule.is_certain(), verdict: rule.is_plain().then_some(rule.action) }
}

/// Returns the lines of sorted prefixes, each with the longest prefix that contains it.
fn nested<'k>(keys: impl Iterator<Item = &'k Key>, first_line: usize) -> Vec<GuardPrefix> {
    let mut around: Vec<(Key, u32)> = Vec::new();
    keys.enumerate()
        .map(|(number, key)| {
            while around.last().is_some_and(|(outer, _)| !begins(*outer, *key)) {
                around.pop();
            }
            let parent = around.last().map_or(0, |(_, line)| *line);
            around.push((*key, (first_line + number) as u32));
            prefix_line(*key, parent)
        })
        .collect()
}

/// Returns the prefixes that contain no other, which are the possible results of a search.
fn innermost<'k>(keys: impl Iterator<Item = &'k Key>, first_line: usize) -> Vec<PrefixLine> {
    let mut entries: Vec<PrefixLine> = Vec::new();
    for (number, (key, length)) in keys.enumerate() {
        // Sorted, a prefix comes right before the first one inside it.
        if let Some(last) = entries.last()
            && begins((last.key, last.length), (*key, *length))
        {
            entries.pop();
        }
        entries.push(PrefixLine { key: *key, length: *length, line: (first_line + number) as u32 });
    }
    entries
}

fn begins(outer: Key, inner: Key) -> bool {
    outer.1 <= inner.1 && (outer.0 ^ inner.0).leading_zeros() >= outer.1
}

fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

fn prefix_line((key, length): Key, parent: u32) -> GuardPrefix {
    GuardPrefix {
        address: halves(key),
        mask: halves(u128::MAX.checked_shl(128 - length).unwrap_or(0)),
        parent,
        ..GuardPrefix::zeroed()
    }
}

/// A range that contains no service.
const NO_SERVICE: Services = (0xff_ffff, 0);

fn rule_line(rule: &Rule) -> GuardRule {
    let services = rule.what.services();
    let range = |number: usize| services.get(number).copied().unwrap_or(NO_SERVICE);
    GuardRule {
        first: range(0).0,
        last: range(0).1,
        other_first: range(1).0,
        other_last: range(1).1,
        action: action_number(rule.action),
        fragments: rule.holds_for_fragments().into(),
        tcp: match rule.what.tcp {
            None => GUARD_TCP_ANY as u32,
            Some(TcpState::Syn) => GUARD_TCP_SYN as u32,
            Some(TcpState::Established) => GUARD_TCP_ESTABLISHED as u32,
        },
        ifindex: rule.what.on.as_ref().map_or(0, |on| on.index),
        expires: rule.expires.unwrap_or(0),
        interval: rule.rate.map_or(0, interval),
        id: rule.id,
        plain: rule.is_plain().into(),
        extra: 0,
        padding: 0,
    }
}

fn extra_line(what: &Match) -> GuardExtra {
    let (source_mac, source_mask) = MacPrefix::fields(what.source_mac);
    let (destination_mac, destination_mask) = MacPrefix::fields(what.destination_mac);
    GuardExtra {
        source_mac,
        source_mask,
        destination_mac,
        destination_mask,
        first_source_port: what.source_ports.map_or(0, |ports| ports.first.into()),
        source_ports: port_count(what.source_ports),
        padding: [0; 6],
    }
}

fn default_line(default: &InterfaceDefault) -> GuardRule {
    GuardRule {
        action: action_number(default.action),
        tcp: GUARD_TCP_ANY as u32,
        ifindex: default.on.index,
        ..GuardRule::zeroed()
    }
}

fn action_number(action: Action) -> u32 {
    match action {
        Action::Deny => GUARD_DENY as u32,
        Action::Allow => GUARD_ALLOW as u32,
    }
}

/// Returns the time between packets, in the program's ticks.
fn interval(rate: u64) -> u64 {
    ((NANOSECONDS << GUARD_TICKS_SHIFT) / rate.max(1)).max(1)
}

/// Number of lines of a definition.
pub const DEFINITION_LINES: usize = size_of::<GuardDefinition>() / GUARD_LINE;

fn prefix_fields(prefix: Option<Prefix>) -> ([u64; 2], u32, u32) {
    let Some(prefix) = prefix else {
        return ([0; 2], 0, 0);
    };
    let (bits, family) = match prefix.address() {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 4),
        IpAddr::V6(v6) => (v6.to_bits(), 6),
    };
    ([(bits >> 64) as u64, bits as u64], family, prefix.length().into())
}

fn prefix_from(bits: [u64; 2], family: u32, length: u32) -> Option<Prefix> {
    let address: IpAddr = match family {
        4 => Ipv4Addr::from_bits(bits[1] as u32).into(),
        6 => Ipv6Addr::from_bits(u128::from(bits[0]) << 64 | u128::from(bits[1])).into(),
        _ => return None,
    };
    Prefix::new(address, length as u8)
}

fn plus_one(number: Option<u8>) -> u32 {
    number.map_or(0, |number| u32::from(number) + 1)
}

fn minus_one(number: u32) -> Option<u8> {
    number.checked_sub(1).map(|number| number as u8)
}

fn name_fields(name: &str) -> [u32; 4] {
    let mut bytes = [0; 16];
    let length = name.len().min(bytes.len());
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    let mut fields = [0; 4];
    for (field, four) in fields.iter_mut().zip(bytes.chunks_exact(4)) {
        *field = u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
    }
    fields
}

fn name_from(fields: [u32; 4]) -> String {
    let bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn on_from(rule: &GuardRule, definition: &GuardDefinition) -> Option<On> {
    (rule.ifindex != 0).then(|| On { index: rule.ifindex, name: name_from(definition.interface) })
}

/// Returns the number of ports; 0 for none.
fn port_count(ports: Option<Ports>) -> u32 {
    ports.map_or(0, |ports| u32::from(ports.last - ports.first) + 1)
}

fn ports_from(first: u32, count: u32) -> Option<Ports> {
    count.checked_sub(1).map(|more| Ports { first: first as u16, last: (first as u16).saturating_add(more as u16) })
}

fn definition_of_rule(rule: &Rule, hits: Hits) -> GuardDefinition {
    let Match {
        source,
        destination,
        protocol,
        ports,
        icmp,
        // The rule line holds these.
        source_ports: _,
        tcp: _,
        source_mac: _,
        destination_mac: _,
        on: _,
    } = rule.what;
    let (source, source_family, source_length) = prefix_fields(source);
    let (destination, destination_family, destination_length) = prefix_fields(destination);
    GuardDefinition {
        source,
        destination,
        decided: hits.decided,
        limited: hits.limited,
        rate: rule.rate.unwrap_or(0),
        source_family,
        source_length,
        destination_family,
        destination_length,
        protocol: plus_one(protocol),
        icmp4: plus_one(icmp.and_then(|icmp| icmp.v4)),
        icmp6: plus_one(icmp.and_then(|icmp| icmp.v6)),
        first_port: ports.map_or(0, |ports| ports.first.into()),
        ports: port_count(ports),
        interface: name_fields(rule.what.on.as_ref().map_or("", |on| &on.name)),
        padding: [0; 5],
    }
}

fn definition_of_default(default: &InterfaceDefault) -> GuardDefinition {
    GuardDefinition { decided: default.hits, interface: name_fields(&default.on.name), ..GuardDefinition::zeroed() }
}

/// Restores a rule; `extra` holds its source ports and MAC addresses, if it has any.
fn rule_from(rule: &GuardRule, definition: &GuardDefinition, extra: Option<&GuardExtra>) -> Rule {
    let mac = |of: fn(&GuardExtra) -> (u64, u64)| extra.and_then(|one| MacPrefix::from_fields(of(one)));
    let draft = Draft {
        action: action_from(rule),
        what: Match {
            source: prefix_from(definition.source, definition.source_family, definition.source_length),
            destination: prefix_from(
                definition.destination,
                definition.destination_family,
                definition.destination_length,
            ),
            protocol: minus_one(definition.protocol),
            ports: ports_from(definition.first_port, definition.ports),
            source_ports: extra.and_then(|one| ports_from(one.first_source_port, one.source_ports)),
            source_mac: mac(|one| (one.source_mac, one.source_mask)),
            destination_mac: mac(|one| (one.destination_mac, one.destination_mask)),
            icmp: (definition.icmp4 != 0 || definition.icmp6 != 0)
                .then(|| IcmpType { v4: minus_one(definition.icmp4), v6: minus_one(definition.icmp6) }),
            tcp: match rule.tcp as usize {
                GUARD_TCP_SYN => Some(TcpState::Syn),
                GUARD_TCP_ESTABLISHED => Some(TcpState::Established),
                _ => None,
            },
            on: on_from(rule, definition),
        },
        rate: Some(definition.rate).filter(|rate| *rate != 0),
        expires: Some(rule.expires).filter(|end| *end != 0),
    };
    draft.numbered(rule.id)
}

fn default_from(rule: &GuardRule, definition: &GuardDefinition, hits: u64) -> Option<InterfaceDefault> {
    Some(InterfaceDefault { on: on_from(rule, definition)?, action: action_from(rule), hits })
}

fn action_from(rule: &GuardRule) -> Action {
    match rule.action as usize {
        GUARD_ALLOW => Action::Allow,
        _ => Action::Deny,
    }
}

/// A compiled set in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    pub memory: &'a Mapping,
    /// Position in the memory, in bytes.
    pub begins: usize,
}

impl Stored<'_> {
    fn lines<T: Shared>(&self, line: usize) -> Result<T> {
        let bytes = self.memory.read(self.begins + line * GUARD_LINE, size_of::<T>());
        bytes.as_deref().and_then(T::from_bytes).ok_or_else(not_ours)
    }

    pub fn header(&self) -> Result<GuardHeader> {
        let header: GuardHeader = self.lines(0)?;
        match header.version {
            VERSION => Ok(header),
            _ => Err(not_ours()),
        }
    }

    fn extra(&self, rule: &GuardRule) -> Result<Option<GuardExtra>> {
        if rule.extra == 0 {
            return Ok(None);
        }
        let line = (rule.extra as usize).checked_sub(self.begins / GUARD_LINE);
        self.lines(line.ok_or_else(not_ours)?).map(Some)
    }

    /// Reads the set, with its current hits.
    pub fn set(&self) -> Result<RuleSet> {
        let header = self.header()?;
        let (count, defaults) = (header.rule_count as usize, header.default_count as usize);
        let mut set = RuleSet {
            rules: Vec::with_capacity(count),
            defaults: Vec::with_capacity(defaults),
            next_id: header.next_id,
            hits: HashMap::with_capacity(count),
        };
        for number in 0..count + defaults {
            let line: GuardRule = self.lines(GUARD_RULES + number)?;
            let definition: GuardDefinition = self.lines(header.definitions as usize + number * DEFINITION_LINES)?;
            let hits = self.hits(&header, number, &definition)?;
            if number < count {
                set.hits.insert(line.id, hits);
                let extra = self.extra(&line)?;
                set.rules.push(rule_from(&line, &definition, extra.as_ref()));
            } else if let Some(default) = default_from(&line, &definition, hits.decided) {
                set.defaults.push(default);
            }
        }
        Ok(set)
    }

    /// Adds the carried-over hits and those counted since on each CPU.
    fn hits(&self, header: &GuardHeader, number: usize, carried: &GuardDefinition) -> Result<Hits> {
        let mut hits = Hits { decided: carried.decided, limited: carried.limited };
        let line = self.begins / GUARD_LINE + GUARD_RULES + number;
        for cpu in 0..=header.cpus as usize {
            let before = header.hits as usize + cpu * header.hits_of_cpu as usize;
            let at = (before + line) * size_of::<GuardHits>();
            let number = |at| self.memory.number(at).ok_or_else(not_ours);
            hits.decided += number(at)?;
            hits.limited += number(at + 8)?;
        }
        Ok(hits)
    }
}

fn not_ours() -> Error {
    Error::failed("cannot read the rules", "the pinned map is not a rule set of this version of trawl")
        .fix("unload it with the version that loaded it")
}
