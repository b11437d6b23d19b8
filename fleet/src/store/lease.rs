//! The right to change a store's catalogue, for a limited time. Two processes could not both commit anyway: the lease saves the
//! work of the one that would fail.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use trawl_sys::{Error, Result, clock, host};

use super::remote::{Failure, Store};
use super::table::ROOT;

const TIME: Duration = Duration::from_secs(120);

#[derive(Serialize, Deserialize)]
struct Holder {
    host: String,
    pid: u32,
    until_ns: u64,
}

pub struct Lease<'a> {
    store: &'a Store,
    renewed: Instant,
}

fn key() -> String {
    format!("{ROOT}/lease.json")
}

fn holder() -> Vec<u8> {
    let holder = Holder {
        host: host::name(),
        pid: std::process::id(),
        until_ns: clock::wall() + TIME.as_nanos() as u64,
    };
    // Texts and numbers always serialize to JSON.
    serde_json::to_vec(&holder).unwrap_or_default()
}

impl<'a> Lease<'a> {
    pub fn take(store: &'a Store) -> Result<Self> {
        let what = "cannot change the catalogue";
        let fail = |failure: Failure| Error::failed(what, failure);
        match store.put_new(&key(), holder()) {
            Ok(()) => {}
            Err(Failure::AlreadyExists) => {
                let other = store
                    .get(&key())
                    .map(|bytes| serde_json::from_slice::<Holder>(&bytes));
                if let Ok(Ok(other)) = other
                    && other.until_ns > clock::wall()
                {
                    let why = format!("process {} on {} changes it", other.pid, other.host);
                    return Err(Error::failed(what, why).fix(
                        "wait until it has ended; the lease of a killed process lasts 2 minutes",
                    ));
                }
                store.delete_all(&[key()]).map_err(fail)?;
                store.put_new(&key(), holder()).map_err(fail)?;
            }
            Err(failure) => return Err(fail(failure)),
        }
        Ok(Self {
            store,
            renewed: Instant::now(),
        })
    }

    /// Lengthens the lease from time to time.
    pub fn renew(&mut self) {
        if self.renewed.elapsed() > TIME / 4 {
            let _ = self.store.put_over(&key(), holder());
            self.renewed = Instant::now();
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let _ = self.store.delete_all(&[key()]);
    }
}
