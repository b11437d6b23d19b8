//! tc: the clsact qdisc and bpf filters on it, for kernels that have no tcx links.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::Netlink;
use super::socket::Reply;
use super::socket::{NetlinkRequest, find, read_text, read_u32};
use crate::error::{Error, Result};

const TC_H_CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const TC_H_ROOT_PARENT_INGRESS: u32 = 0xffff_fff2;
const TC_H_ROOT_PARENT_EGRESS: u32 = 0xffff_fff3;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
const TC_HEADER: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    fn parent(self) -> u32 {
        match self {
            Self::Ingress => TC_H_ROOT_PARENT_INGRESS,
            Self::Egress => TC_H_ROOT_PARENT_EGRESS,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// Position of a filter, as required to delete it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterHandle {
    pub interface: u32,
    pub direction: Direction,
    pub priority: u16,
    pub handle: u32,
}

/// A bpf filter found on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    pub handle: FilterHandle,
    pub name: String,
    pub program_id: Option<u32>,
    pub direct_action: bool,
}

/// struct tcmsg.
fn header(interface: u32, handle: u32, parent: u32, info: u32) -> [u8; TC_HEADER] {
    let mut bytes = [0; TC_HEADER];
    bytes[4..8].copy_from_slice(&interface.to_ne_bytes());
    bytes[8..12].copy_from_slice(&handle.to_ne_bytes());
    bytes[12..16].copy_from_slice(&parent.to_ne_bytes());
    bytes[16..20].copy_from_slice(&info.to_ne_bytes());
    bytes
}

/// Packs priority and protocol (all) into tcm_info.
fn info(priority: u16) -> u32 {
    u32::from(priority) << 16 | u32::from((libc::ETH_P_ALL as u16).to_be())
}

impl Netlink {
    /// Ensures that the clsact qdisc exists; returns true if this call added it, and false if it existed before (and so
    /// must stay afterwards).
    pub fn add_clsact(&mut self, interface: u32) -> Result<bool> {
        if let Some(kind) = self.ingress_qdisc(interface)? {
            return match kind.as_str() {
                "clsact" => Ok(false),
                other => Err(Error::failed(
                    format!("cannot add the clsact qdisc to interface number {interface}{}", self.scope),
                    format!("its handle belongs to an {other} qdisc"),
                )
                .fix("tc qdisc del dev IF ingress")),
            };
        }
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        let mut request = NetlinkRequest::new(libc::RTM_NEWQDISC, flags).family_header(&header(
            interface,
            CLSACT_HANDLE,
            TC_H_CLSACT,
            0,
        ));
        request.text(TCA_KIND, "clsact");
        match self.socket.change(request) {
            Ok(()) => Ok(true),
            // Another program added it in between.
            Err(refusal) if refusal.errno == libc::EEXIST => Ok(false),
            Err(refusal) => {
                Err(refusal.about(format!("cannot add the clsact qdisc to interface number {interface}{}", self.scope)))
            }
        }
    }

    pub fn del_clsact(&mut self, interface: u32) -> Result<()> {
        let mut request =
            NetlinkRequest::new(libc::RTM_DELQDISC, 0).family_header(&header(interface, CLSACT_HANDLE, TC_H_CLSACT, 0));
        request.text(TCA_KIND, "clsact");
        self.socket.change(request).map_err(|r| {
            r.about(format!("cannot delete the clsact qdisc of interface number {interface}{}", self.scope))
        })
    }

    /// Deletes the clsact qdisc, unless it has a filter.
    pub fn del_unused_clsact(&mut self, interface: u32) -> Result<()> {
        for direction in [Direction::Ingress, Direction::Egress] {
            if !self.has_clsact(interface)? || !self.filters(interface, direction)?.is_empty() {
                return Ok(());
            }
        }
        self.del_clsact(interface)
    }

    /// Returns true if the clsact qdisc exists.
    pub fn has_clsact(&mut self, interface: u32) -> Result<bool> {
        Ok(self.ingress_qdisc(interface)?.as_deref() == Some("clsact"))
    }

    /// Returns the kind of the qdisc at ffff: (clsact or ingress). It is asked for alone, since a dump lists the qdiscs
    /// of all interfaces.
    fn ingress_qdisc(&mut self, interface: u32) -> Result<Option<String>> {
        // Kernels before 6.7 answer only requests for an echo.
        let echo = libc::NLM_F_ECHO as u16;
        let request =
            NetlinkRequest::new(libc::RTM_GETQDISC, echo).family_header(&header(interface, 0, TC_H_CLSACT, 0));
        match self.socket.get(request) {
            Ok(reply) => {
                let attributes = reply.payload.get(TC_HEADER..).unwrap_or_default();
                Ok(find(attributes, TCA_KIND).map(read_text))
            }
            Err(refusal) if refusal.errno == libc::ENOENT => Ok(None),
            Err(refusal) => {
                Err(refusal.about(format!("cannot read the qdisc of interface number {interface}{}", self.scope)))
            }
        }
    }

    /// Attaches a loaded program as a direct-action filter for all protocols.
    pub fn add_filter(&mut self, handle: FilterHandle, program: BorrowedFd<'_>, name: &str) -> Result<()> {
        let FilterHandle { interface, direction, priority, handle } = handle;
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        let mut request = NetlinkRequest::new(libc::RTM_NEWTFILTER, flags).family_header(&header(
            interface,
            handle,
            direction.parent(),
            info(priority),
        ));
        request.text(TCA_KIND, "bpf").nest(TCA_OPTIONS, |options| {
            options
                .u32(TCA_BPF_FD, program.as_raw_fd() as u32)
                .text(TCA_BPF_NAME, name)
                .u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
        });
        self.socket.change(request).map_err(|r| {
            r.about(format!(
                "cannot add the {} filter {name} to interface number {interface}{}",
                direction.name(),
                self.scope
            ))
        })
    }

    pub fn del_filter(&mut self, handle: FilterHandle) -> Result<()> {
        let FilterHandle { interface, direction, priority, handle } = handle;
        let mut request = NetlinkRequest::new(libc::RTM_DELTFILTER, 0).family_header(&header(
            interface,
            handle,
            direction.parent(),
            info(priority),
        ));
        request.text(TCA_KIND, "bpf");
        self.socket.change(request).map_err(|r| {
            r.about(format!(
                "cannot delete the {} filter {priority}/{handle} of interface number {interface}{}",
                direction.name(),
                self.scope
            ))
        })
    }

    /// Returns the bpf filters on an interface in one direction.
    pub fn filters(&mut self, interface: u32, direction: Direction) -> Result<Vec<Filter>> {
        let replies = self
            .socket
            .dump(|| {
                NetlinkRequest::new(libc::RTM_GETTFILTER, 0).family_header(&header(interface, 0, direction.parent(), 0))
            })
            .map_err(|r| r.about(format!("cannot list the filters of interface number {interface}{}", self.scope)))?;
        Ok(replies.iter().filter_map(|reply| parse_filter(reply, direction)).collect())
    }
}

fn parse_filter(reply: &Reply, direction: Direction) -> Option<Filter> {
    let attributes = reply.payload.get(TC_HEADER..)?;
    if find(attributes, TCA_KIND).map(read_text)? != "bpf" {
        return None;
    }
    // Each priority also has an entry without options: the chain's head, not a filter.
    let options = find(attributes, TCA_OPTIONS)?;
    let number = |kind| find(options, kind).and_then(|v| read_u32(v, 0));
    Some(Filter {
        handle: FilterHandle {
            interface: read_u32(&reply.payload, 4)?,
            direction,
            priority: (read_u32(&reply.payload, 16)? >> 16) as u16,
            handle: read_u32(&reply.payload, 8)?,
        },
        name: find(options, TCA_BPF_NAME).map(read_text).unwrap_or_default(),
        program_id: number(TCA_BPF_ID),
        direct_action: number(TCA_BPF_FLAGS).unwrap_or(0) & TCA_BPF_FLAG_ACT_DIRECT != 0,
    })
}
