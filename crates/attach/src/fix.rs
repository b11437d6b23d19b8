//! What fixes the errors of this crate: data, which the command line puts into words.

use serde::Serialize;
use trawl_kernel::error::Remedy;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fix {
    /// The card does not run XDP programs.
    NativeOrSkb,
    /// The driver does not run XDP programs.
    Skb,
    /// Another program is attached.
    ShowPrograms { interface: String },
    /// A program is attached above the interface.
    ShowAllPrograms,
    /// An offload prevents native XDP.
    ShowOffloads { interface: String },
    /// A command makes room for native XDP.
    CommandOrSkb { command: String },
    /// The MTU is too large for programs that take packets in one piece.
    SmallerMtu { command: String },
    /// A program on this interface prevents others below it.
    UnloadAll { interface: String },
}

impl Remedy for Fix {}
