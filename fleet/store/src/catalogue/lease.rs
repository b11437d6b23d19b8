//! The right to change a store's catalogue, for a limited time. Two processes could not both commit anyway: the lease
//! saves the work of the one that would fail.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use trawl_sys::{Error, Result, clock, host};

use super::table::ROOT;
use crate::object::remote::{Failure, Store};

const TIME: Duration = Duration::from_secs(120);
const WHAT: &str = "cannot change the catalogue";

#[derive(Serialize, Deserialize)]
struct Holder {
    host: String,
    pid: u32,
    until_ns: u64,
}

/// The reason why a process does not get the lease.
enum Refusal {
    Held(Holder),
    Failed(Failure),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Held(other) => {
                let why = format!("process {} on {} is changing it", other.pid, other.host);
                Self::failed(WHAT, why).fix("wait until it has ended; the lease of a killed process lasts 2 minutes")
            }
            Refusal::Failed(failure) => Self::failed(WHAT, failure),
        }
    }
}

pub struct Lease<'a> {
    store: &'a Store,
    renewed: Instant,
}

fn key() -> String {
    format!("{ROOT}/lease.json")
}

fn holder() -> Vec<u8> {
    let holder =
        Holder { host: host::name(), pid: std::process::id(), until_ns: clock::wall() + TIME.as_nanos() as u64 };
    // Texts and numbers always serialize to JSON.
    serde_json::to_vec(&holder).unwrap_or_default()
}

impl Holder {
    /// Returns true if its time is not over. A time too far in the future comes from a clock that was wrong.
    fn is_valid(&self, now: u64) -> bool {
        let most = now.saturating_add(2 * TIME.as_nanos() as u64);
        (now..most).contains(&self.until_ns)
    }
}

impl<'a> Lease<'a> {
    pub fn acquire(store: &'a Store) -> Result<Self> {
        Self::put(store).map_err(Error::from)
    }

    /// Acquires the lease; returns `None` if the store is full.
    pub fn acquire_if_room(store: &'a Store) -> Result<Option<Self>> {
        match Self::put(store) {
            Ok(lease) => Ok(Some(lease)),
            Err(Refusal::Failed(Failure::Full(_))) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Acquires the lease; returns `None` if another process has it.
    pub fn acquire_if_free(store: &'a Store) -> Result<Option<Self>> {
        match Self::put(store) {
            Ok(lease) => Ok(Some(lease)),
            Err(Refusal::Held(_)) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Stores the lease, unless another process has a valid one.
    fn put(store: &'a Store) -> std::result::Result<Self, Refusal> {
        let put = || store.put_new(&key(), holder());
        let put = match put() {
            Err(Failure::AlreadyExists) => {
                let other = store.get(&key()).ok();
                let other = other.and_then(|bytes| serde_json::from_slice::<Holder>(&bytes).ok());
                if let Some(other) = other.filter(|other| other.is_valid(clock::wall())) {
                    return Err(Refusal::Held(other));
                }
                store.delete_all(&[key()]).and_then(|()| put())
            }
            other => other,
        };
        put.map(|()| Self { store, renewed: Instant::now() }).map_err(Refusal::Failed)
    }

    /// Returns the time at which the lease was stored, by the store's clock.
    pub fn time(&self) -> Option<u64> {
        self.store.time(&key()).ok()
    }

    /// Extends the lease, if a quarter of its time is over.
    pub fn renew(&mut self) {
        if self.renewed.elapsed() > TIME / 4 {
            let _ = self.store.overwrite(&key(), holder());
            self.renewed = Instant::now();
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let _ = self.store.delete_all(&[key()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A killed process whose clock was an hour ahead keeps others waiting no longer than one whose clock was right.
    #[test]
    fn lease_of_a_wrong_clock_is_not_valid() {
        let now = 1_000_000 * TIME.as_nanos() as u64;
        let is_valid = |until_ns| {
            let holder = Holder { host: "h".to_owned(), pid: 1, until_ns };
            holder.is_valid(now)
        };
        let time = TIME.as_nanos() as u64;
        assert!(is_valid(now + time) && is_valid(now + time + time / 2));
        assert!(!is_valid(now - 1) && !is_valid(now + 30 * time));
    }
}
