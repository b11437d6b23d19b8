//! The time span of packets, and the rate over that time, in slots whose width doubles as time goes on, so that memory
//! does not grow with it.

/// Maximum number of slots.
const SLOTS: usize = 256;
const FIRST_WIDTH_NS: u64 = 1_000_000;

#[derive(Debug, Clone)]
pub struct Rate {
    start_ns: Option<u64>,
    width_ns: u64,
    /// Packets and bytes of each slot.
    slots: Vec<(u64, u64)>,
}

impl Default for Rate {
    fn default() -> Self {
        Self { start_ns: None, width_ns: FIRST_WIDTH_NS, slots: Vec::new() }
    }
}

impl Rate {
    /// Counts a packet. Packets before the first one count in its slot.
    pub fn add(&mut self, time_ns: u64, bytes: u32) {
        let start = *self.start_ns.get_or_insert(time_ns);
        let since = time_ns.saturating_sub(start);
        while since / self.width_ns >= SLOTS as u64 {
            let halves = self.slots.chunks(2);
            self.slots =
                halves.map(|pair| pair.iter().fold((0, 0), |sum, slot| (sum.0 + slot.0, sum.1 + slot.1))).collect();
            self.width_ns = self.width_ns.saturating_mul(2);
        }
        let index = (since / self.width_ns) as usize;
        if self.slots.len() <= index {
            self.slots.resize(index + 1, (0, 0));
        }
        let slot = &mut self.slots[index];
        slot.0 += 1;
        slot.1 += u64::from(bytes);
    }

    pub fn width_seconds(&self) -> f64 {
        self.width_ns as f64 / 1e9
    }

    /// Returns the packets of each slot.
    pub fn packets(&self) -> Vec<u64> {
        self.slots.iter().map(|(packets, _)| *packets).collect()
    }

    /// Returns the bytes of each slot.
    pub fn bytes(&self) -> Vec<u64> {
        self.slots.iter().map(|(_, bytes)| *bytes).collect()
    }

    /// Draws the packets of each slot as a line of blocks, at most `width` wide.
    pub fn plot(&self, width: usize) -> String {
        plot(&self.packets(), width)
    }
}

/// Draws values as a line of blocks, at most `width` wide.
pub fn plot(values: &[u64], width: usize) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let together = values.len().div_ceil(width.max(1)).max(1);
    let sums: Vec<u64> = values.chunks(together).map(|values| values.iter().sum()).collect();
    let most = sums.iter().copied().max().unwrap_or(0).max(1);
    let block = |value: &u64| BLOCKS[(value * 8).div_ceil(most) as usize];
    sums.iter().map(block).collect()
}

/// The time span of packets, and whether they are in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct Span {
    pub first_ns: Option<u64>,
    pub last_ns: u64,
    pub previous_ns: u64,
    /// A packet is earlier than the one before it.
    pub disordered: bool,
}

impl Span {
    pub fn add(&mut self, now: u64) {
        self.disordered |= self.first_ns.is_some() && now < self.previous_ns;
        self.first_ns = Some(self.first_ns.map_or(now, |first| first.min(now)));
        self.last_ns = self.last_ns.max(now);
        self.previous_ns = now;
    }

    pub fn seconds(&self) -> f64 {
        let first = self.first_ns.unwrap_or(self.last_ns);
        self.last_ns.saturating_sub(first) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_widen_and_lose_nothing() {
        let mut rate = Rate::default();
        for second in 0..1000u64 {
            rate.add(second * 1_000_000_000, 10);
        }
        assert!(rate.packets().len() <= SLOTS);
        assert_eq!(rate.packets().iter().sum::<u64>(), 1000);
        assert_eq!(rate.bytes().iter().sum::<u64>(), 10_000);
        rate.add(0, 10);
        rate.add(u64::MAX, 10);
        assert_eq!(rate.packets().iter().sum::<u64>(), 1002);
    }

    #[test]
    fn a_plot_is_as_wide_as_asked() {
        assert_eq!(plot(&[0, 1, 2, 4, 8], 80), " ▁▂▄█");
        assert_eq!(plot(&[1; 100], 10).chars().count(), 10);
        assert_eq!(plot(&[], 10), "");
    }
}
