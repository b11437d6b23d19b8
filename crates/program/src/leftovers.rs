//! What is left of programs, rules and settings whose interface or namespace is no more.

use crate::guard::state;
use crate::standing;

/// Clears it away, as far as nobody is working on it at this moment.
pub fn clear_away() {
    standing::sweep_everywhere();
    state::sweep();
}
