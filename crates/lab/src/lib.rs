//! Networks for experiments: namespaces and veth pairs with the queues, offloads and addresses that the fast path
//! needs, made and removed as a whole; and a packet sender.

mod build;
mod pair;
pub mod program;
mod record;
pub mod sender;
pub mod topology;

pub use build::{IPIP_DEVICE, find, inside, raise};
pub use pair::{Addresses, Line, LineOptions, Pair, PairOptions, Station};
pub use record::{Cleaned, Record, Removal, clean, list, remove};

pub use trawl_sys::{Error, Result};
