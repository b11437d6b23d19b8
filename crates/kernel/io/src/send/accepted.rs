//! Counts of the live frames that drivers accept, by bpf/gen/send_count.bpf.c, for drivers that have no counters of
//! these.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Weak};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};
use parking_lot::Mutex;
use rustix::thread::gettid;
use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::send::SendAccepted;
use trawl_bpf::{link, object};

/// The attached program, shared by the threads of this process.
static SHARED: Mutex<Weak<AcceptedFrames>> = Mutex::new(Weak::new());

/// A program at the tracepoint where devices report the XDP frames that they accepted.
#[derive(Debug)]
pub(super) struct AcceptedFrames {
    threads: MapHandle,
    _link: OwnedFd,
}

impl AcceptedFrames {
    /// Returns the program; `None` if this kernel or its policy refuses it.
    pub fn shared() -> Option<Arc<Self>> {
        let mut shared = SHARED.lock();
        if let Some(counting) = shared.upgrade() {
            return Some(counting);
        }
        let counting = Arc::new(Self::load().ok()?);
        *shared = Arc::downgrade(&counting);
        Some(counting)
    }

    fn load() -> Result<Self, Box<dyn std::error::Error>> {
        object::quiet_libbpf();
        let namespace = std::fs::metadata("/proc/self/ns/pid")?;
        let numbers = [namespace.dev(), namespace.ino()].map(u64::to_ne_bytes);
        let mut open = ObjectBuilder::default().open_memory(object::SEND_COUNT)?;
        for mut map in open.maps_mut() {
            if map.name().to_string_lossy().ends_with(".rodata") {
                map.set_initial_value(&numbers.concat())?;
            }
        }
        let object = open.load()?;
        let map = object.maps().find(|map| map.name() == "threads");
        let program = object.progs().next();
        let (Some(map), Some(program)) = (map, program) else {
            return Err("a map or a program is missing".into());
        };
        Ok(Self {
            _link: link::attach_raw_tracepoint(program.as_fd(), "xdp_devmap_xmit")?,
            threads: MapHandle::try_from(&map)?,
        })
    }

    /// Begins to count for the calling thread, which sends out of one interface at a time.
    pub fn begin(&self) -> io::Result<()> {
        let counts = SendAccepted::zeroed().to_bytes();
        self.threads.update(&own_number(), &counts, MapFlags::ANY).map_err(io::Error::other)
    }

    /// Returns the number of frames of the calling thread that the driver has accepted.
    pub fn sent(&self) -> Option<u64> {
        let counts = self.threads.lookup(&own_number(), MapFlags::ANY).ok()??;
        Some(SendAccepted::from_bytes(&counts)?.sent)
    }
}

/// Returns the calling thread's number as the map's key.
fn own_number() -> [u8; 4] {
    gettid().as_raw_nonzero().get().to_ne_bytes()
}
