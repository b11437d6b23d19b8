//! The one `--netns` argument.

use std::ops::Deref;

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
