//! From when to when packets were seen, and whether in order.

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
