//! Compiles a table into the lines that the program reads, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use trawl_bpf::layout::Shared;
use trawl_bpf::layout::balance::{
    BALANCE_BACKEND_DOWN, BALANCE_BACKEND_DRAINING, BALANCE_BACKEND_MAC, BALANCE_DIRECT, BALANCE_ENTRY_ADDRESS,
    BALANCE_ENTRY_NONE, BALANCE_ENTRY_SERVER, BALANCE_ENTRY_VIP, BALANCE_GUE, BALANCE_IPIP, BALANCE_IPV4, BALANCE_IPV6,
    BALANCE_LINE, BALANCE_PROBES, BALANCE_RING_PER_LINE, BALANCE_VIP_QUIC, BalanceBackend, BalanceEntry, BalanceHeader,
    BalanceVip,
};
use trawl_sys::{Error, Result};

use crate::maglev::{self, Member};
use crate::table::{Backend, Forward, Protocol, Service, Sources, Table, Vip};

/// The largest table, in bytes.
const MOST_BYTES: usize = 256 << 20;
const ENTRIES_PER_LINE: usize = 2;
const SEED_TRIES: u32 = 16;
/// Multiplier of the program's hash.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Number that stands for a backend without a server id.
const NO_SERVER: u32 = u32::MAX;

/// Hashes like the program's function of the same name.
pub fn mix(words: &[u32], seed: u64) -> u32 {
    let mut mixed = seed;
    for word in words {
        mixed = (mixed ^ u64::from(*word)).wrapping_mul(SPREAD);
        mixed ^= mixed >> 32;
    }
    mixed as u32
}

/// Returns an address as laid out in a packet's memory.
pub fn words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => [u32::from_ne_bytes(address.octets()), 0, 0, 0],
        IpAddr::V6(address) => {
            let octets = address.octets();
            let (words, _) = octets.as_chunks::<4>();
            std::array::from_fn(|at| u32::from_ne_bytes(words[at]))
        }
    }
}

fn address(words: [u32; 4], family: u32) -> IpAddr {
    if family == BALANCE_IPV4 as u32 {
        return Ipv4Addr::from(words[0].to_ne_bytes()).into();
    }
    let mut octets = [0; 16];
    for (at, word) in words.into_iter().enumerate() {
        octets[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(octets).into()
}

fn family(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => BALANCE_IPV4 as u32,
        IpAddr::V6(_) => BALANCE_IPV6 as u32,
    }
}

fn service_word(service: &Service) -> u32 {
    u32::from(service.protocol.number()) << 16 | u32::from(service.port)
}

/// Returns the ring of a virtual address, empty if no backend accepts new flows.
pub fn ring_of(vip: &Vip) -> Vec<u32> {
    let member = |one: &Backend| Member { number: one.number, name: name_of(one.address), weight: one.weight };
    let members: Vec<Member> = vip.backends.iter().filter(|one| one.accepts_new_flows()).map(member).collect();
    maglev::ring(&members, maglev::size_for(vip.backends.len()))
}

/// Returns the seed of a backend's permutation: a hash of its address, so that all balancers build the same ring.
fn name_of(address: IpAddr) -> u64 {
    let words = words(address).map(u32::to_be);
    u64::from(mix(&words, 1)) << 32 | u64::from(mix(&words, 2))
}

fn entry(words: [u32; 4], service: u32, kind: usize, number: u32) -> BalanceEntry {
    BalanceEntry { address: words, service, kind: kind as u32, number, unused: 0 }
}

fn entries_of(table: &Table) -> Vec<BalanceEntry> {
    let mut entries = Vec::new();
    let mut addresses = std::collections::HashSet::new();
    for vip in &table.vips {
        let service = service_word(&vip.service);
        let at = words(vip.service.address);
        entries.push(entry(at, service, BALANCE_ENTRY_VIP, vip.number));
        let protocol = service & 0xff_0000;
        if addresses.insert((at, protocol)) {
            entries.push(entry(at, protocol, BALANCE_ENTRY_ADDRESS, 0));
        }
        for one in &vip.backends {
            if let Some(id) = one.server_id {
                let key = [vip.number, 0, 0, 0];
                entries.push(entry(key, id.into(), BALANCE_ENTRY_SERVER, one.number));
            }
        }
    }
    entries
}

/// Returns the position of an entry's first line.
fn slot_of(entry: &BalanceEntry, seed: u32) -> u32 {
    let [a, b, c, d] = entry.address;
    mix(&[a, b, c, d, entry.service, entry.kind], seed.into())
}

/// Builds the hash table, large enough for every entry to be found within the program's probes.
fn hash(entries: &[BalanceEntry]) -> (Vec<BalanceEntry>, u32) {
    let none = entry([0; 4], 0, BALANCE_ENTRY_NONE, 0);
    let mut lines = entries.len().next_power_of_two().max(1);
    loop {
        'seeds: for seed in 1..=SEED_TRIES {
            let mut table = vec![none; lines * ENTRIES_PER_LINE];
            for one in entries {
                let first = slot_of(one, seed) as usize;
                let free = (0..BALANCE_PROBES)
                    .flat_map(|probe| {
                        let line = first.wrapping_add(probe) & (lines - 1);
                        [line * ENTRIES_PER_LINE, line * ENTRIES_PER_LINE + 1]
                    })
                    .find(|slot| table[*slot].kind == BALANCE_ENTRY_NONE as u32);
                match free {
                    Some(slot) => table[slot] = *one,
                    None => continue 'seeds,
                }
            }
            return (table, seed);
        }
        lines *= 2;
    }
}

fn mac_words(mac: Option<[u8; 6]>) -> (u32, u32) {
    let [a, b, c, d, e, f] = mac.unwrap_or_default();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, 0, 0]))
}

fn backend_line(one: &Backend, vip: u32) -> BalanceBackend {
    let flag = |set: bool, flag: usize| if set { flag as u32 } else { 0 };
    let (mac_first, mac_last) = mac_words(one.mac);
    BalanceBackend {
        address: words(one.address),
        family: family(one.address),
        mac_first,
        mac_last,
        flags: flag(one.draining, BALANCE_BACKEND_DRAINING)
            | flag(one.down, BALANCE_BACKEND_DOWN)
            | flag(one.mac.is_some(), BALANCE_BACKEND_MAC),
        weight: one.weight,
        vip,
        generation: one.generation,
        server_id: one.server_id.map_or(NO_SERVER, u32::from),
        unused: [0; 4],
    }
}

/// Compiles a numbered table into lines.
pub fn compile(table: &Table) -> Result<Vec<u8>> {
    let lines = |numbers: &mut dyn Iterator<Item = u32>| numbers.map(|number| number as usize + 1).max().unwrap_or(0);
    let vips = lines(&mut table.vips.iter().map(|vip| vip.number));
    let all = table.vips.iter().flat_map(|vip| &vip.backends);
    let backends = lines(&mut all.map(|one| one.number));
    let (entries, seed) = hash(&entries_of(table));
    let vips_at = 1;
    let backends_at = vips_at + vips;
    let entries_at = backends_at + backends;
    let rings_at = entries_at + entries.len() / ENTRIES_PER_LINE;
    let lines_of = |vip: &Vip| (maglev::size_for(vip.backends.len()) as usize).div_ceil(BALANCE_RING_PER_LINE);
    let lines = rings_at + table.vips.iter().map(lines_of).sum::<usize>();
    if lines * BALANCE_LINE > MOST_BYTES {
        return Err(Error::failed(
            "the table stays as it is",
            format!("the new one needs {} MiB, more than {} MiB", (lines * BALANCE_LINE) >> 20, MOST_BYTES >> 20),
        )
        .fix("use fewer virtual addresses or backends"));
    }
    let mut bytes = vec![0; lines * BALANCE_LINE];
    let mut put = |line: usize, data: &[u8]| {
        bytes[line * BALANCE_LINE..line * BALANCE_LINE + data.len()].copy_from_slice(data);
    };
    let header = BalanceHeader {
        vips_at: vips_at as u32,
        vips: vips as u32,
        backends_at: backends_at as u32,
        backends: backends as u32,
        entries_at: entries_at as u32,
        entries_mask: (entries.len() / ENTRIES_PER_LINE - 1) as u32,
        seed,
        next_generation: table.next_generation,
        source_ipv4: u32::from_ne_bytes(table.sources.ipv4.octets()),
        source_ipv6: words(table.sources.ipv6.into()),
        unused: [0; 3],
    };
    put(0, &header.to_bytes());
    for (number, pair) in entries.chunks(ENTRIES_PER_LINE).enumerate() {
        let line: Vec<u8> = pair.iter().flat_map(Shared::to_bytes).collect();
        put(entries_at + number, &line);
    }
    let mut ring_at = rings_at;
    for vip in &table.vips {
        let ring = ring_of(vip);
        let line = BalanceVip {
            address: words(vip.service.address),
            service: service_word(&vip.service),
            family: family(vip.service.address),
            forward: match vip.forward {
                Forward::Direct => BALANCE_DIRECT,
                Forward::Ipip => BALANCE_IPIP,
                Forward::Gue => BALANCE_GUE,
            } as u32,
            flags: match vip.service.protocol {
                Protocol::Quic => BALANCE_VIP_QUIC as u32,
                _ => 0,
            },
            ring_at: ring_at as u32,
            ring_size: ring.len() as u32,
            gue_port: vip.gue_port.into(),
            generation: 1,
            unused: [0; 4],
        };
        put(vips_at + vip.number as usize, &line.to_bytes());
        for one in &vip.backends {
            let line = backend_line(one, vip.number);
            put(backends_at + one.number as usize, &line.to_bytes());
        }
        let numbers: Vec<u8> = ring.iter().flat_map(|number| number.to_ne_bytes()).collect();
        put(ring_at, &numbers);
        ring_at += lines_of(vip);
    }
    Ok(bytes)
}

/// Returns the table stored in lines; `read` returns a line.
pub fn decompile(read: impl Fn(usize) -> Option<Vec<u8>>) -> Option<Table> {
    let header = BalanceHeader::from_bytes(&read(0)?)?;
    let mut table = Table {
        vips: Vec::new(),
        sources: Sources {
            ipv4: header.source_ipv4.to_ne_bytes().into(),
            ipv6: match address(header.source_ipv6, BALANCE_IPV6 as u32) {
                IpAddr::V6(address) => address,
                IpAddr::V4(_) => return None,
            },
        },
        next_generation: header.next_generation,
    };
    for number in 0..header.vips {
        let line = BalanceVip::from_bytes(&read((header.vips_at + number) as usize)?)?;
        if line.generation == 0 {
            continue;
        }
        let service = Service {
            protocol: match (line.service >> 16, line.flags as usize) {
                (6, _) => Protocol::Tcp,
                (_, BALANCE_VIP_QUIC) => Protocol::Quic,
                _ => Protocol::Udp,
            },
            address: address(line.address, line.family),
            port: line.service as u16,
        };
        table.vips.push(Vip {
            service,
            forward: match line.forward as usize {
                BALANCE_DIRECT => Forward::Direct,
                BALANCE_GUE => Forward::Gue,
                _ => Forward::Ipip,
            },
            gue_port: line.gue_port as u16,
            number,
            backends: Vec::new(),
        });
    }
    for number in 0..header.backends {
        let line = BalanceBackend::from_bytes(&read((header.backends_at + number) as usize)?)?;
        if line.generation == 0 {
            continue;
        }
        let at = table.vips.binary_search_by_key(&line.vip, |vip| vip.number).ok()?;
        let has = |flag: usize| line.flags & flag as u32 != 0;
        let [a, b, c, d] = line.mac_first.to_ne_bytes();
        let [e, f, ..] = line.mac_last.to_ne_bytes();
        table.vips[at].backends.push(Backend {
            address: address(line.address, line.family),
            weight: line.weight,
            mac: has(BALANCE_BACKEND_MAC).then_some([a, b, c, d, e, f]),
            draining: has(BALANCE_BACKEND_DRAINING),
            down: has(BALANCE_BACKEND_DOWN),
            server_id: u16::try_from(line.server_id).ok(),
            number,
            generation: line.generation,
        });
    }
    Some(table)
}
