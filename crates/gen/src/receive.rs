//! The receiver: an XDP program that counts stamped packets, and what its counts mean.

mod latency;
mod report;

use std::os::fd::AsFd;

use trawl_attach::Site;
use trawl_attach::snapshot::name_of;
use trawl_io::receive::ReceiveProgram;
use trawl_sys::error::{Error, Result};
use trawl_sys::interface::Interface;
use trawl_sys::netlink::XdpAttachment;
use trawl_sys::netns::Namespace;

pub use latency::{Latency, PARTS};
pub use report::{Count, FlowReport, Report};
pub use trawl_io::receive::{FlowKey, Verdict};

/// The program, in messages.
const NAME: &str = "the receiver";

/// How to receive.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    pub namespace: Option<&'a Namespace>,
    pub interface: &'a str,
    /// What becomes of stamped packets.
    pub verdict: Verdict,
    /// Flows that are followed one by one; packets of others are counted only.
    pub max_flows: u32,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub stamped: Count,
    pub unstamped: Count,
    pub lost: u64,
}

/// Counts until it is dropped.
#[derive(Debug)]
pub struct Receiver {
    program: ReceiveProgram,
    mode: &'static str,
    notice: Option<String>,
}

impl Receiver {
    /// Attaches in native mode where the driver can, in generic mode otherwise.
    pub fn attach(options: &Options<'_>) -> Result<Self> {
        let interface = Interface::find(options.namespace, options.interface)?;
        if let Some(present) = interface.xdp_attached(options.namespace)? {
            return Err(occupied(&interface.name, &present));
        }
        let mut program = ReceiveProgram::load(options.verdict, options.max_flows)?;
        let site = Site::named(options.namespace.cloned(), &interface.name)?;
        let cannot = |e| Error::os(format!("cannot receive on {}", interface.name), e);
        let fd = program.program().map_err(cannot)?;
        let (link, attached) = trawl_attach::hold(&site, fd.as_fd(), None)
            .map_err(|refused| refused.explain(&site, NAME))?;
        program.attached_by(link);
        Ok(Self {
            program,
            mode: attached.mode.name(),
            notice: attached.instead_of.map(|refused| {
                format!(
                    "{}: using skb mode, after the driver: {}",
                    interface.name,
                    refused.explain(&site, NAME).why()
                )
            }),
        })
    }

    /// `native` or `skb`.
    pub fn mode(&self) -> &'static str {
        self.mode
    }

    /// What the user should know of how it is attached.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The interface is gone; what was counted is still there.
    pub fn is_orphaned(&self) -> bool {
        self.program.is_orphaned()
    }

    /// Stamped packets and others so far: a cheap look.
    pub fn counts(&self) -> Result<(Count, Count)> {
        Ok(report::counts(&self.program.totals()?))
    }

    /// The same with what is missing, which takes a look at every flow.
    pub fn progress(&self) -> Result<Progress> {
        let (stamped, unstamped) = self.counts()?;
        let flows = self.program.flows()?;
        Ok(Progress {
            stamped,
            unstamped,
            lost: flows.iter().map(|(_, flow)| report::lost(flow)).sum(),
        })
    }

    /// Everything so far.
    pub fn report(&self) -> Result<Report> {
        Report::of(&self.program.totals()?, &self.program.flows()?)
    }

    /// Leaves the interface and says what there was in all, exactly.
    pub fn finish(mut self) -> Result<Report> {
        self.program.detach();
        self.report()
    }
}

fn occupied(interface: &str, present: &XdpAttachment) -> Error {
    let name = name_of(present.program_id).unwrap_or_else(|| "of unknown name".to_owned());
    Error::failed(
        format!("cannot receive on {interface}"),
        format!(
            "the XDP program {name} (id {}, {} mode) is on it, and an interface takes one",
            present.program_id,
            present.mode.name()
        ),
    )
    .fix(format!(
        "detach it first (trawl xdp status -i {interface} names the command for what trawl loaded; ip link set dev \
         {interface} xdp off removes what no link holds), or receive on the next hop's interface"
    ))
}
