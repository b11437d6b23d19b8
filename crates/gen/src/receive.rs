//! The receiver: an XDP program that counts stamped packets, and what its counts mean.

mod latency;
mod report;

use std::io;

use trawl_kernel::error::{Error, Result};
use trawl_kernel::interface::{Attachment, Interface};
use trawl_kernel::netns::{Namespace, run_maybe_in};
use trawl_kernel::receive::ReceiveProgram;
use trawl_kernel::{bpf, errno};

pub use latency::{Latency, PARTS};
pub use report::{Count, FlowReport, Report};
pub use trawl_kernel::receive::{FlowKey, Verdict};

const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

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
    /// Attaches, in the driver where it can and behind it otherwise.
    pub fn attach(options: &Options<'_>) -> Result<Self> {
        let interface = Interface::find(options.namespace, options.interface)?;
        if let Some(present) = interface.xdp_attached(options.namespace)? {
            return Err(occupied(&interface.name, &present));
        }
        let mut program = ReceiveProgram::load(options.verdict, options.max_flows)?;
        let mut attach =
            |flags| run_maybe_in(options.namespace, || program.attach(interface.index, flags));
        let Err(native) = attach(XDP_FLAGS_DRV_MODE)? else {
            return Ok(Self {
                program,
                mode: "native",
                notice: None,
            });
        };
        let why = why_not(&interface, &native);
        attach(XDP_FLAGS_SKB_MODE)?.map_err(|e| {
            let what = format!("cannot receive on {}", interface.name);
            Error::failed(what, why_not(&interface, &e))
        })?;
        Ok(Self {
            program,
            mode: "skb",
            notice: Some(format!(
                "{}: skb mode, behind the driver: not native since {why}",
                interface.name
            )),
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

fn occupied(interface: &str, present: &Attachment) -> Error {
    let name = bpf::program::open_by_id(present.program_id)
        .and_then(|program| bpf::info::program(std::os::fd::AsFd::as_fd(&program)))
        .map_or_else(|_| "of unknown name".to_owned(), |about| about.name);
    Error::failed(
        format!("cannot receive on {interface}"),
        format!(
            "the XDP program {name} (id {}, {} mode) is on it, and an interface takes one",
            present.program_id, present.mode
        ),
    )
    .fix(format!(
        "take it off first (ip link set dev {interface} xdp off, or end the process that holds it), or receive on the \
         next interface of the way"
    ))
}

fn why_not(interface: &Interface, error: &io::Error) -> String {
    let driver = interface.driver.as_deref().unwrap_or("unknown");
    match error.raw_os_error() {
        Some(errno::EOPNOTSUPP) => format!("the driver ({driver}) has no XDP support"),
        Some(errno::ENOSPC) if driver == "veth" => format!(
            "it has fewer receive queues than its peer has sending ones (ethtool -L {} rx N fixes it)",
            interface.name
        ),
        Some(errno::ERANGE | errno::EINVAL) if interface.mtu > 3500 => format!(
            "the driver ({driver}) refuses it, perhaps for its MTU of {}",
            interface.mtu
        ),
        Some(errno::EBUSY) => "another XDP program came first".to_owned(),
        Some(errno::ENODEV) => "it is gone".to_owned(),
        _ => error.to_string(),
    }
}
