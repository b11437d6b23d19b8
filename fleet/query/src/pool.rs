//! The memory of a query's operators. Operators that can write rows to files share it, except a part that is kept for the
//! others: these often ask last, and a query whose join or first rows find no memory fails.

use std::fmt::{self, Display};
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion::common::resources_datafusion_err;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};

/// Part of the memory that operators without files always have, as a divisor.
const KEPT: usize = 4;

#[derive(Debug)]
pub struct Pool {
    size: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    /// Number of operators that can write rows to files.
    spilling: usize,
    by_spilling: usize,
    by_others: usize,
}

impl Used {
    fn by(&mut self, reservation: &MemoryReservation) -> &mut usize {
        match reservation.consumer().can_spill() {
            true => &mut self.by_spilling,
            false => &mut self.by_others,
        }
    }

    /// Returns the number of bytes that an operator may have in all.
    fn limit(&self, size: usize, reservation: &MemoryReservation) -> usize {
        if reservation.consumer().can_spill() {
            size.saturating_sub(self.by_others.max(size / KEPT)) / self.spilling.max(1)
        } else {
            size.saturating_sub(self.by_spilling + self.by_others) + reservation.size()
        }
    }
}

impl Pool {
    pub fn new(size: usize) -> Self {
        Self { size, used: Mutex::default() }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} MiB", self.name(), self.size >> 20)
    }
}

impl MemoryPool for Pool {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.used().spilling += usize::from(consumer.can_spill());
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.used().spilling -= usize::from(consumer.can_spill());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        *self.used().by(reservation) += additional;
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        *self.used().by(reservation) -= shrink;
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let mut used = self.used();
        let limit = used.limit(self.size, reservation);
        if reservation.size() + additional > limit {
            let name = reservation.consumer().name();
            return Err(resources_datafusion_err!(
                "{name} needs {additional} bytes more than its {}, and may have {limit}: ask about fewer packets, or raise --memory",
                reservation.size()
            ));
        }
        *used.by(reservation) += additional;
        Ok(())
    }

    fn reserved(&self) -> usize {
        let used = self.used();
        used.by_spilling + used.by_others
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.size)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn part_of_the_memory_is_kept_for_operators_without_files() {
        let pool: Arc<dyn MemoryPool> = Arc::new(Pool::new(800));
        let [one, other] = ["one", "other"].map(|name| MemoryConsumer::new(name).with_can_spill(true).register(&pool));
        assert!(one.try_grow(300).is_ok() && one.try_grow(1).is_err());
        assert!(other.try_grow(300).is_ok() && other.try_grow(1).is_err());
        let top = MemoryConsumer::new("first rows").register(&pool);
        assert!(top.try_grow(200).is_ok());
        let refused = top.try_grow(1).expect_err("no memory").strip_backtrace();
        assert!(refused.contains("first rows needs 1 bytes more than its 200, and may have 200"), "{refused}");
        other.shrink(200);
        assert!(top.try_grow(200).is_ok());
        // Others have more than their part now, so the share of each is 200.
        assert!(other.try_grow(101).is_err() && other.try_grow(100).is_ok());
        drop(top);
        drop(one);
        assert!(other.try_grow(400).is_ok());
        assert_eq!(pool.reserved(), 600);
    }
}
