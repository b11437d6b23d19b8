//! How much of the time that recording takes is spent on reading the kernel's clock.

use serde::Serialize;
use trawl_kernel::bpf::object::{self, Plain};
use trawl_kernel::bpf::test_run;
use trawl_kernel::{Error, Result};

use trawl_lab::program::Does;

const TURNS: usize = 9;
const REPEAT: u32 = 1_000_000;

/// Nanoseconds a run of two programs, by BPF_PROG_TEST_RUN. The kernel gives whole nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ClockCost {
    /// A program that only drops.
    pub without_ns: f64,
    /// The same with one call of bpf_ktime_get_tai_ns.
    pub with_ns: f64,
    pub cost_ns: f64,
}

impl ClockCost {
    /// The programs take turns, and the shortest time of each counts: all that disturbs only makes it longer.
    pub(super) fn measure() -> Result<Self> {
        let without = Plain::load(object::LAB, Does::Drop.name())?;
        let with = Plain::load(object::LAB, Does::ReadClock.name())?;
        let mut shortest = [f64::INFINITY; 2];
        for _ in 0..TURNS {
            for (program, shortest) in [&without, &with].into_iter().zip(&mut shortest) {
                let answer = test_run::xdp(program.program(), &[0; 64], None, REPEAT)
                    .map_err(|e| Error::os("cannot measure the kernel's clock", e))?;
                *shortest = shortest.min(answer.duration.as_nanos() as f64);
            }
        }
        let [without_ns, with_ns] = shortest;
        Ok(Self {
            without_ns,
            with_ns,
            cost_ns: with_ns - without_ns,
        })
    }
}
