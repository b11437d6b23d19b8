//! Where blocks come from: a queue of a port, received or sent. One core serves it, so its blocks come in order, and each
//! place has a ring of its own in the merge.

use trawl_io::dpdk::{DIRECTION_RECEIVED, DIRECTION_SENT};

/// More places share rings.
const RINGS_MOST: usize = 64;

#[derive(Clone, Debug)]
pub struct Places {
    /// Of each port, in the order of the points: the first place of what is received, and of what is sent, with how many
    /// queues there are.
    ports: Vec<[(usize, u32); 2]>,
    count: usize,
}

impl Places {
    pub fn new(queues: &[[u32; 2]], directions: u32, queue: Option<u32>) -> Self {
        let mut count = 0;
        let mut of = |direction: usize, queues: u32| {
            let wanted = directions & direction as u32 != 0;
            let number = match (wanted, queue) {
                (false, _) => 0,
                (true, Some(_)) => 1,
                (true, None) => queues.max(1),
            };
            let first = count;
            count += number as usize;
            (first, number)
        };
        let ports = queues
            .iter()
            .map(|[received, sent]| [of(DIRECTION_RECEIVED, *received), of(DIRECTION_SENT, *sent)])
            .collect();
        Self {
            ports,
            count: count.clamp(1, RINGS_MOST),
        }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The ring of a block's place.
    pub fn ring(&self, port: usize, is_sent: bool, queue: u32) -> usize {
        let (first, queues) = self.ports[port][usize::from(is_sent)];
        (first + (queue % queues.max(1)) as usize) % self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_queue_has_a_ring_of_its_own() {
        let places = Places::new(&[[2, 3], [1, 1]], 3, None);
        let mut rings = BTreeSet::new();
        for (port, is_sent, queues) in [(0, false, 2), (0, true, 3), (1, false, 1), (1, true, 1)] {
            (0..queues).for_each(|queue| _ = rings.insert(places.ring(port, is_sent, queue)));
        }
        assert_eq!((places.count(), rings.len()), (7, 7));
    }

    #[test]
    fn what_is_not_asked_for_has_none() {
        assert_eq!(Places::new(&[[4, 4]], 1, None).count(), 4);
        assert_eq!(Places::new(&[[4, 4]], 3, Some(2)).count(), 2);
        assert_eq!(Places::new(&[], 3, None).count(), 1);
        let many = Places::new(&[[60, 60]], 3, None);
        assert_eq!(many.count(), RINGS_MOST);
        assert!(many.ring(0, true, 59) < RINGS_MOST);
    }
}
