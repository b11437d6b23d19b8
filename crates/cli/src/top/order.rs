//! What the tables of a look are sorted by: one key for all of them.

use std::cmp::{Ordering, Reverse};

use trawl_view::stat::{Count, FlowKey, Statistics};

use super::{Captured, Look};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Key {
    /// Packets a second; of programs, runs
    #[default]
    Rate,
    /// Bits a second; of programs, CPU time
    Bits,
    /// Drops, then packets
    Drops,
    Name,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    pub key: Key,
    /// The least first.
    pub reverse: bool,
}

impl Order {
    pub fn next(self) -> Self {
        let key = match self.key {
            Key::Rate => Key::Bits,
            Key::Bits => Key::Drops,
            Key::Drops => Key::Name,
            Key::Name => Key::Rate,
        };
        Self { key, ..self }
    }

    pub fn word(self) -> String {
        let word = match self.key {
            Key::Rate => "rate",
            Key::Bits => "bits",
            Key::Drops => "drops",
            Key::Name => "name",
        };
        match self.reverse {
            true => format!("{word}, reversed"),
            false => word.to_owned(),
        }
    }

    /// The largest first, names from a to z, unless it is to be the other way round.
    fn sort<T>(self, rows: &mut [T], number: impl Fn(&T) -> f64, name: impl Fn(&T) -> String) {
        rows.sort_by(|a, b| {
            let names = name(a).cmp(&name(b));
            let by = match self.key {
                Key::Name => Ordering::Equal,
                _ => number(b).total_cmp(&number(a)),
            };
            match self.reverse {
                true => by.then(names).reverse(),
                false => by.then(names),
            }
        });
    }

    /// Of the flows so far, the first ones by this order.
    pub fn fill(self, captured: &mut Captured, statistics: &Statistics, top: usize) {
        let number = |count: Count| match self.key {
            Key::Bits => count.bytes,
            Key::Name => 0,
            Key::Rate | Key::Drops => count.packets,
        };
        captured.flows = match self.reverse {
            true => statistics.flows_by(top, |key: &FlowKey, count| {
                Reverse((Reverse(number(count)), *key))
            }),
            false => {
                statistics.flows_by(top, |key: &FlowKey, count| (Reverse(number(count)), *key))
            }
        };
    }

    pub fn apply(self, look: &mut Look) {
        let key = self.key;
        self.sort(
            &mut look.interfaces,
            |one| match key {
                Key::Bits => one.rx_bits_per_second + one.tx_bits_per_second,
                Key::Drops => {
                    (one.rx_dropped + one.rx_errors + one.tx_dropped + one.tx_errors) as f64
                }
                Key::Rate | Key::Name => one.rx_packets_per_second + one.tx_packets_per_second,
            },
            |one| one.interface.clone(),
        );
        self.sort(
            &mut look.xdp_programs,
            |one| match key {
                Key::Bits => one.cpu_percent,
                _ => one.runs_per_second,
            },
            |one| one.name.clone(),
        );
        if let Some(rows) = &mut look.redirects {
            self.sort(
                rows,
                |row| match key {
                    Key::Drops => row.rates.drops as f64,
                    _ => row.rates.packets as f64,
                },
                super::RedirectRates::place,
            );
        }
        if let Some(captured) = &mut look.captured {
            let number = |packets: u64, bytes: u64| match key {
                Key::Bits => bytes as f64,
                _ => packets as f64,
            };
            self.sort(
                &mut captured.protocols,
                |one| number(one.packets, one.bytes),
                |one| one.name.clone(),
            );
            self.sort(
                &mut captured.flows,
                |one| number(one.packets, one.bytes),
                trawl_view::stat::Flow::words,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rates;
    use super::*;

    fn names(key: Key, reverse: bool) -> String {
        let rates = |name: &str, packets: f64, bits: f64, dropped: u64| Rates {
            interface: name.to_owned(),
            rx_packets_per_second: packets,
            tx_bits_per_second: bits,
            rx_dropped: dropped,
            ..Rates::default()
        };
        let mut look = Look {
            interfaces: vec![
                rates("b", 1.0, 900.0, 5),
                rates("c", 3.0, 20.0, 0),
                rates("a", 2.0, 20.0, 7),
            ],
            ..Look::default()
        };
        Order { key, reverse }.apply(&mut look);
        look.interfaces
            .iter()
            .map(|one| one.interface.as_str())
            .collect()
    }

    #[test]
    fn each_key_sorts_and_can_be_reversed() {
        assert_eq!(names(Key::Rate, false), "cab");
        assert_eq!(names(Key::Bits, false), "bac");
        assert_eq!(names(Key::Drops, false), "abc");
        assert_eq!(names(Key::Name, false), "abc");
        assert_eq!(names(Key::Rate, true), "bac");
        assert_eq!(names(Key::Name, true), "cba");
    }

    #[test]
    fn all_keys_come_in_turn() {
        let mut order = Order::default();
        let words: Vec<String> = (0..4)
            .map(|_| {
                order = order.next();
                order.word()
            })
            .collect();
        assert_eq!(words, ["bits", "drops", "name", "rate"]);
    }
}
