//! Which interfaces a command that shows something is asked for.

use clap::ArgAction;
use trawl_program::Site;
use trawl_sys::Result;
use trawl_sys::netns::{self, Namespace};

#[derive(Debug, clap::Args)]
pub struct SiteArgs {
    /// These interfaces, NAME or NAMESPACE:NAME [default: all that have an XDP program]
    #[arg(value_name = "IF")]
    interfaces: Vec<String>,
    /// The same, as trawl capture takes them
    #[arg(short = 'i', long = "interface", value_name = "IF", action = ArgAction::Append, num_args = 1..)]
    more_interfaces: Vec<String>,
    /// In these network namespaces: names, paths or process ids
    #[arg(long, value_name = "NAME", action = ArgAction::Append, num_args = 1..)]
    netns: Vec<String>,
    /// In this namespace and in all that have a name
    #[arg(long, conflicts_with = "netns")]
    all_namespaces: bool,
}

impl SiteArgs {
    pub fn are_named(&self) -> bool {
        !self.interfaces.is_empty() || !self.more_interfaces.is_empty()
    }

    pub fn find(&self) -> Result<Vec<Site>> {
        let mut sites = Vec::new();
        if !self.are_named() {
            for namespace in self.namespaces()? {
                sites.extend(Site::all_in(namespace.as_ref())?);
            }
            return Ok(sites);
        }
        for text in self.interfaces.iter().chain(&self.more_interfaces) {
            // An interface that says where it is, or one in each of the namespaces.
            if text.contains(':') || self.netns.is_empty() {
                sites.push(Site::find(text, None)?);
                continue;
            }
            for namespace in &self.netns {
                sites.push(Site::find(text, Some(namespace))?);
            }
        }
        Ok(sites)
    }

    fn namespaces(&self) -> Result<Vec<Option<Namespace>>> {
        if self.all_namespaces {
            // One that is deleted meanwhile is not there any more.
            let named = netns::list();
            let named = named
                .iter()
                .filter_map(|name| Namespace::by_name(name).ok());
            let here = Namespace::current()?;
            let others = named.filter(|one| *one != here).map(Some);
            return Ok(std::iter::once(None).chain(others).collect());
        }
        if self.netns.is_empty() {
            return Ok(vec![None]);
        }
        let open = |name: &String| Namespace::open(name).map(Some);
        self.netns.iter().map(open).collect()
    }
}
