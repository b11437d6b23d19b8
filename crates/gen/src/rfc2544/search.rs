//! Looks for the highest value that is good, in a bounded number of steps.

/// The fastest first, then by halves.
#[derive(Clone, Debug)]
pub struct Search {
    /// Known to be good, or nothing at all; and known to be bad.
    good: f64,
    bad: Option<f64>,
    most: f64,
    finest: f64,
    left: usize,
}

impl Search {
    /// Up to `most`; over when what is known differs by no more than `finest`, or after this many steps.
    pub fn new(most: f64, finest: f64, steps: usize) -> Self {
        Self {
            good: 0.0,
            bad: None,
            most,
            finest,
            left: steps,
        }
    }

    /// What to try; `None` when it is found.
    pub fn next(&self) -> Option<f64> {
        if self.left == 0 || self.most <= 0.0 {
            return None;
        }
        match self.bad {
            None => (self.good < self.most).then_some(self.most),
            Some(bad) => (bad - self.good > self.finest).then_some((self.good + bad) / 2.0),
        }
    }

    /// Whether what `next` said was good.
    pub fn answer(&mut self, good: bool) {
        let Some(tried) = self.next() else { return };
        self.left -= 1;
        if good {
            self.good = tried;
        } else {
            self.bad = Some(tried);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The best value found, and how many were tried.
    fn found(mut search: Search, limit: f64) -> (f64, usize) {
        let (mut best, mut tried) = (0.0f64, 0);
        while let Some(value) = search.next() {
            tried += 1;
            if value <= limit {
                best = best.max(value);
            }
            search.answer(value <= limit);
        }
        (best, tried)
    }

    #[test]
    fn search_stops_when_the_first_rate_passes() {
        assert_eq!(found(Search::new(100.0, 1.0, 12), 100.0), (100.0, 1));
        assert_eq!(found(Search::new(0.0, 1.0, 12), 100.0), (0.0, 0));
    }

    proptest! {
        #[test]
        fn it_is_as_near_as_was_asked_for(limit in 0.0..1000.0f64) {
            let (best, tried) = found(Search::new(1000.0, 5.0, 20), limit);
            prop_assert!(best <= limit && limit - best <= 5.0, "{} of {}", best, limit);
            prop_assert!(tried <= 9);
        }

        #[test]
        fn it_ends(limit in 0.0..1000.0f64, steps in 0..10usize) {
            prop_assert!(found(Search::new(1000.0, 1e-9, steps), limit).1 <= steps);
        }
    }
}
