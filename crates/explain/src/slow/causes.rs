//! The causes of drops, by numbers.

use std::collections::HashMap;

use trawl_packet::pcapng::note::{DropNote, Rule};
use trawl_slow::packets::PacketDrop;
use trawl_sys::words::shown;
use trawl_view::record::PacketView;
use trawl_view::why::{DropKey, Tally};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Input,
    Output,
}

/// The rows of dropped packets, and numbers for each row and each rule that is noted with its packets.
#[derive(Debug, Default)]
pub(super) struct Causes {
    pub(super) tally: Tally,
    numbers: HashMap<(DropKey, Option<String>), u32>,
    keys: Vec<(DropKey, Option<String>)>,
}

impl Causes {
    /// Counts a dropped packet, and returns what happened to it; `None` if nothing was lost.
    pub(super) fn of<'p>(&mut self, packet: &PacketView<'_>, drop: &DropNote<'p>) -> Option<PacketDrop<'p>> {
        let key = (self.tally.count(packet, false)?, drop.rule.as_ref().map(Rule::to_string));
        let next = self.keys.len() as u32;
        let cause = *self.numbers.entry(key.clone()).or_insert(next);
        if cause == next {
            self.keys.push(key);
        }
        Some(PacketDrop::new(drop, cause))
    }

    /// Returns the direction of packets that a rule of netfilter dropped, if it is a hook of sockets.
    pub(super) fn way(&self, number: u32) -> Option<Way> {
        let hook = self.keys.get(number as usize).and_then(|(key, _)| key.hook.as_deref())?;
        match hook {
            "output" => Some(Way::Output),
            "input" | "prerouting" => Some(Way::Input),
            _ => None,
        }
    }

    /// Returns the text of a number. `culprit` names the object that dropped all packets of a row.
    pub(super) fn text(&self, number: u32, culprit: impl FnOnce(&Tally, &DropKey) -> Option<String>) -> String {
        let Some((key, rule)) = self.keys.get(number as usize) else { return String::new() };
        let rule = rule.clone().or_else(|| culprit(&self.tally, key));
        shown(&text(key, rule.as_deref())).into_owned()
    }
}

/// Returns the reason and the place of a drop: `NETFILTER_DROP in pb, rule 4 of inet f in`.
fn text(key: &DropKey, rule: Option<&str>) -> String {
    let place = key.hook.as_deref().unwrap_or(&key.function);
    let place = if rule.is_some() || place.is_empty() { String::new() } else { format!(" at {place}") };
    let netns = key.netns.as_ref().map_or(String::new(), |netns| format!(" in {netns}"));
    let rule = rule.map_or(String::new(), |rule| format!(", {rule}"));
    format!("{}{place}{netns}{rule}", key.reason)
}
