//! A table of the taps, for tests of what they all do.

use trawl_lab::program::{Does, Loaded};

use crate::Lab;

/// Options of a capture by one tap, and the program that the tap needs on the receiving interface.
#[derive(Debug)]
pub struct Tap {
    pub options: &'static [&'static str],
    pub program: Option<Does>,
}

/// Every tap that needs nothing but a program.
pub const TAPS: &[Tap] =
    &[tap(&["--tap", "xdp"], None), TAILCALL, tap(&["--tap", "tc"], None), tap(&["--tap", "packet"], None)];

pub const TAILCALL: Tap = tap(&["--tap", "tailcall"], Some(Does::DropWithHook));
pub const XDP_IN_SKB_MODE: Tap = tap(&["--tap", "xdp", "--mode", "skb"], None);

const fn tap(options: &'static [&'static str], program: Option<Does>) -> Tap {
    Tap { options, program }
}

impl Tap {
    pub fn name(&self) -> &'static str {
        self.options[1]
    }

    /// Loads the program that the tap needs.
    pub fn load(&self, lab: &Lab) -> Option<Loaded> {
        let load = |does| Loaded::native(does, &lab.pair.b).expect("the program");
        self.program.map(load)
    }
}
