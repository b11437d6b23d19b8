//! The options about the processes of packets.

use trawl_plan::options::{ProcessDetail, ProcessPlan};
use trawl_sys::rights::privilege::User;
use trawl_sys::{Error, Result};

use crate::args::{NamedValue, choice};
use crate::completion;

/// Longest name of a process: TASK_COMM_LEN less its end.
const LONGEST_NAME: usize = 15;

const DETAILS: [NamedValue<ProcessDetail>; 3] = [
    ("plain", "Its number, and a block with its name, path and user", ProcessDetail::Plain),
    ("full", "Its command line too, which may hold secrets", ProcessDetail::Full),
    ("comment", "A comment of the packet, which every reader shows", ProcessDetail::Comment),
];

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Processes")]
pub struct ProcessArgs {
    /// Record the process of each packet: its sender, or its receiver on this host
    #[arg(long, value_parser = choice(&DETAILS), value_name = "DETAIL", num_args = 0..=1, require_equals = true, default_missing_value = "plain", hide_short_help = true)]
    process: Option<ProcessDetail>,
    /// Only packets of this process and its children
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..), hide_short_help = true)]
    pid: Option<u32>,
    /// Only packets of processes with this name
    #[arg(long, value_name = "NAME", value_parser = process_name, hide_short_help = true)]
    comm: Option<String>,
    /// Only packets of this user's processes
    #[arg(long, value_name = "USER", value_parser = user_number, add = completion::users(), hide_short_help = true)]
    uid: Option<u32>,
    /// Only packets of processes in this cgroup or below: its path, its last component, or its number
    #[arg(long, value_name = "CGROUP", conflicts_with = "subject", hide_short_help = true)]
    cgroup: Option<String>,
    /// Only packets of processes in this container: the beginning of its number
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = ["cgroup", "subject"],
        hide_short_help = true
    )]
    container: Option<String>,
}

fn process_name(text: &str) -> Result<String> {
    let what = || format!("cannot choose processes called {text:?}");
    match text.len() {
        0 => Err(Error::usage(what(), "a process has a name")),
        1..=LONGEST_NAME => Ok(text.to_owned()),
        _ => Err(Error::usage(what(), format!("the kernel keeps {LONGEST_NAME} bytes of a name"))
            .fix(format!("use --comm {}", &text[..text.floor_char_boundary(LONGEST_NAME)]))),
    }
}

fn user_number(text: &str) -> std::result::Result<u32, String> {
    match text.parse() {
        Ok(number) => Ok(number),
        Err(_) => match User::find(text) {
            Ok(user) => Ok(user.ids().0),
            Err(error) => Err(error.why().to_owned()),
        },
    }
}

impl ProcessArgs {
    /// Returns the plan, if any of the options is given.
    pub fn plan(&self) -> Option<ProcessPlan> {
        let plan = ProcessPlan {
            detail: self.process.unwrap_or_default(),
            optional: false,
            process: self.pid,
            name: self.comm.clone(),
            user: self.uid,
            cgroup: self.cgroup.clone().or(self.container.clone()),
            without_uses: false,
        };
        (self.process.is_some() || plan.filters()).then_some(plan)
    }
}
