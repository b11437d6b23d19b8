//! libpcap's own answer, from its own compiler, optimiser and interpreter.

use std::sync::Arc;

use trawl_io::libpcap::{CompiledFilter, FilterRequest, Library};

/// A compiled expression.
pub struct Oracle(CompiledFilter);

impl Oracle {
    pub fn matches(&self, frame: &[u8]) -> bool {
        let answer = self.0.matches(frame);
        answer.expect("the system's libpcap has an interpreter")
    }
}

/// Compiles an expression for Ethernet frames.
pub fn oracle(expression: &str, optimise: bool) -> Oracle {
    let request = FilterRequest { link_type: 1, snaplen: 262_144, netmask: None, optimise, file: None };
    let library: Arc<Library> = Library::load(None).unwrap();
    let program = CompiledFilter::new(&library, expression, &request);
    Oracle(program.unwrap_or_else(|e| panic!("{expression}: {e}")))
}
