//! The programs on an interface that could be traced.

use std::os::fd::{AsFd, OwnedFd};

use trawl_bpf::{functions, program};
use trawl_program::chain;
use trawl_program::chain::dispatcher::Dispatcher;
use trawl_sys::netlink::{XdpAttachment, XdpMode};
use trawl_sys::{Error, Result};

use crate::capture_site::CaptureSite;
use trawl_plan::options::Programs;

/// A program that could be traced.
#[derive(Debug)]
pub struct Traceable {
    pub id: u32,
    /// Full name of its function, if it has type information.
    pub name: String,
    /// Function for tracing programs; `None` without type information.
    pub function: Option<u32>,
    pub fd: OwnedFd,
}

impl Traceable {
    fn open(id: u32) -> Result<Self> {
        let fail = |e| Error::os(format!("cannot inspect the XDP program {id}"), e);
        let fd = program::open_by_id(id).map_err(fail)?;
        let functions = functions::of(fd.as_fd()).map_err(fail)?;
        Ok(Self {
            id,
            name: functions::name_of(fd.as_fd()).map_err(fail)?,
            function: functions.first().map(|function| function.type_id),
            fd,
        })
    }

    /// Explains that it cannot be traced.
    pub fn has_no_types(&self, label: &str) -> Error {
        let what = format!("cannot trace the XDP program {} on {label}", self.describe());
        Error::failed(what, "it was loaded without type information").fix("compile it with -g, or use --tap packet")
    }

    pub fn describe(&self) -> String {
        format!("{} (id {})", self.name, self.id)
    }
}

/// The programs on an interface.
#[derive(Debug)]
pub struct Present {
    /// Number of the attached program.
    pub head: u32,
    /// First program that packets meet: the attached one, or the only program of a dispatcher, which then runs instead of
    /// the dispatcher.
    pub main: Traceable,
    /// Programs after the main one, in order.
    pub members: Vec<Traceable>,
    /// Programs that the main one reaches by jumps, which bypass the hook of tracing programs.
    pub jumped_to: Vec<Traceable>,
    pub mode: XdpMode,
}

impl Present {
    pub fn at(site: &CaptureSite) -> Result<Option<Self>> {
        let Some(attachment) = site.interface.xdp_attached(site.namespace.as_ref())? else {
            return Ok(None);
        };
        let head = attachment.program_id;
        let mut members = Dispatcher::read(head).map_or_else(Vec::new, |found| found.members);
        let main = match members.iter().position(|member| member.whole) {
            Some(only) => members.swap_remove(only).program,
            None => head,
        };
        Ok(Some(Self {
            head,
            main: Traceable::open(main)?,
            members: members.iter().map(|member| Traceable::open(member.program)).collect::<Result<_>>()?,
            jumped_to: chain::after(main).into_iter().map(Traceable::open).collect::<Result<_>>()?,
            mode: attachment.mode,
        }))
    }

    pub fn attachment(&self) -> XdpAttachment {
        XdpAttachment { mode: self.mode, program_id: self.head }
    }

    pub fn all(&self) -> impl Iterator<Item = &Traceable> {
        std::iter::once(&self.main).chain(&self.members)
    }

    /// Returns the chosen programs that tracing does not see.
    pub fn out_of_sight(&self, programs: &Programs) -> Option<String> {
        let linked = self.jumped_to.iter();
        let meant = linked.filter(|one| programs.mean(&one.name, one.id));
        let names: Vec<String> = meant.map(Traceable::describe).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Returns the chosen programs, in the order in which packets meet them.
    pub fn choose(&self, programs: &Programs, site: &CaptureSite) -> Result<Vec<&Traceable>> {
        let what = || format!("cannot trace an XDP program on {}", site.label);
        let chosen: Vec<&Traceable> = match programs {
            Programs::Attached => vec![&self.main],
            Programs::All => self.all().collect(),
            Programs::Named(name) => self.all().filter(|one| one.name == *name).collect(),
            Programs::Id(id) if *id == self.head => vec![&self.main],
            Programs::Id(id) => self.all().filter(|one| one.id == *id).collect(),
        };
        if chosen.is_empty() {
            if let Some(unseen) = self.out_of_sight(programs) {
                let why = format!("packets reach {unseen} by a jump, and tracing does not see the targets of jumps");
                return Err(Error::failed(what(), why).fix("use the hooks of the chain's programs: --tap tailcall"));
            }
            let present: Vec<String> = self.all().map(Traceable::describe).collect();
            let wanted = match programs {
                Programs::Id(id) => format!("the id {id}"),
                Programs::Named(name) => format!("the name {name}"),
                Programs::Attached | Programs::All => String::new(),
            };
            return Err(Error::failed(
                what(),
                format!("no attached program has {wanted} (attached: {})", present.join(", ")),
            )
            .fix("name one of these with --program, or use --program all"));
        }
        Ok(chosen)
    }
}
