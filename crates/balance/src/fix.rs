//! What fixes the errors of this crate: data, which the command line puts into words.

use serde::Serialize;
use trawl_kernel::error::Remedy;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fix {
    /// No balancer is attached.
    Load { interface: String },
    /// The table is in another version's format.
    Reload,
    /// The table would take the packets of the SSH session.
    ApplyAnyway,
    /// The service has no port to check.
    CheckPort,
    /// A TCP connection cannot check the service.
    CheckTcpPort,
    /// There is not enough memory for the flows.
    FewerFlows { default: u32 },
    /// The table of all services is too large.
    FewerServices,
    /// There is no such virtual address or backend.
    ListVips,
    /// The backend is not on the same network.
    Tunnel,
}

impl Remedy for Fix {}
