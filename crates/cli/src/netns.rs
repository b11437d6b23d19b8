//! The `--netns` argument: of one namespace, and of several.

use std::ops::Deref;

use trawl_sys::Result;
use trawl_sys::netns::{CURRENT, Namespace};

#[derive(Clone, Debug, Default, clap::Args)]
pub struct NetnsArg {
    /// Network namespace, of interfaces that name none: a name, a path or a process id
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
}

impl Deref for NetnsArg {
    type Target = Option<String>;

    fn deref(&self) -> &Option<String> {
        &self.netns
    }
}

/// Network namespaces to look at: the caller's, those that are named, or all.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NamespacesArg {
    /// Network namespace to look at: a name, a path or a process id; may be given several times [default: the one that trawl runs in]
    #[arg(long, value_name = "NAME")]
    netns: Vec<String>,
    /// Look at all network namespaces of this machine
    #[arg(long, conflicts_with = "netns")]
    all_namespaces: bool,
}

impl NamespacesArg {
    /// Returns the names; none for all namespaces.
    pub fn names(&self) -> Vec<String> {
        match (self.all_namespaces, &self.netns[..]) {
            (true, _) => Vec::new(),
            (false, []) => vec![CURRENT.to_owned()],
            (false, names) => names.to_vec(),
        }
    }

    /// Opens the namespaces; none for all.
    pub fn open(&self) -> Result<Vec<Namespace>> {
        self.names()
            .iter()
            .map(|name| Namespace::open(name))
            .collect()
    }

    /// The namespace of interfaces that name none.
    pub fn of_interfaces(&self) -> Option<&str> {
        match &self.netns[..] {
            [one] => Some(one),
            _ => None,
        }
    }
}
