//! The program while it is attached: what is watched of it, how it is attached again, and how it leaves.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use trawl_bpf::{info, link};
use trawl_sys::netlink::XdpMode;
use trawl_sys::privilege::Capabilities;
use trawl_sys::warden::Warden;
use trawl_sys::{Error, errno, netns};

use super::{Seated, hold, link_of};
use crate::AttachedTap;
use crate::capture_site::CaptureSite;
use crate::event::{Event, Left};
use crate::many::TableEntry;
use crate::watch::{Cause, Sight, attached_now};

#[derive(Debug)]
pub(super) struct AttachedXdp {
    pub(super) site: CaptureSite,
    pub(super) mode: XdpMode,
    pub(super) seated: Rc<Seated>,
    pub(super) link: Option<Arc<OwnedFd>>,
    /// Another capture's program at the head of the chain, when it was last looked at.
    pub(super) known: Option<u32>,
    /// Where its packets count, if the program is one for many interfaces.
    pub(super) place: Option<TableEntry>,
}

impl AttachedTap for AttachedXdp {
    fn detach(&mut self) -> Vec<Event> {
        let Some(link) = self.link.take() else {
            return Vec::new();
        };
        let own = self.seated.id;
        let is_head = info::link(link.as_fd()).is_ok_and(|about| own == about.program);
        let mut seat = self.seated.seat.borrow_mut();
        let result = match seat.program_after(0) {
            _ if !is_head => Ok(()),
            Some(next) => {
                link::replace_program(link.as_fd(), next.as_fd(), self.seated.program.as_fd())
            }
            // Not by closing alone: the warden holds the link as well.
            None => link::detach(link.as_fd()),
        };
        match self.place.take() {
            // The seat is for the other interfaces as well.
            Some(place) => std::mem::drop(place),
            None => seat.leave(),
        }
        match result {
            Ok(()) => Vec::new(),
            // It went away together with its interface.
            Err(error) if matches!(error.raw_os_error(), Some(errno::ENOLINK | errno::ENODEV)) => {
                Vec::new()
            }
            Err(error) => vec![Event::NotUndone {
                what: Left::XdpHook,
                why: error.to_string(),
            }],
        }
    }

    fn keeps(&self) -> Capabilities {
        crate::to_attach_again(&self.site)
    }

    fn watch(&mut self, warden: &mut Warden) -> Sight {
        let Some(link) = &self.link else {
            return Sight::Clear;
        };
        let about = info::link(link.as_fd());
        match about {
            Ok(about) if about.ifindex != 0 && self.is_ours(about.program) => Sight::Clear,
            _ => self.attach_again(warden),
        }
    }
}

impl AttachedXdp {
    fn is_ours(&mut self, id: u32) -> bool {
        if self.seated.id == id || self.known == Some(id) {
            return true;
        }
        self.known = self.seated.seat.borrow().holds(id).then_some(id);
        self.known.is_some()
    }

    /// The link has another program, or it is detached: the one that all captures here share is made anew by the first
    /// that notices.
    fn attach_again(&mut self, warden: &mut Warden) -> Sight {
        let cause = Cause::LinkDetached;
        let _lock = match netns::lock(self.site.namespace.as_ref()) {
            Ok(lock) => lock,
            Err(error) => return Sight::Lost(cause, Some(error.to_string())),
        };
        let Some(present) = attached_now(&self.site) else {
            return Sight::Clear;
        };
        let link = match present {
            Some(present) if self.is_ours(present.program_id) => {
                link_of(&present, &self.site).ok_or_else(|| "its link is gone".to_owned())
            }
            Some(present) => return Sight::Lost(Cause::replaced_by(&present), None),
            None => {
                let head = self.seated.seat.borrow().head();
                let head = head.as_ref().unwrap_or(&self.seated.program);
                hold(&self.site, head, Some(self.mode))
                    .map(|(link, _)| link)
                    .map_err(|e| e.to_string())
            }
        };
        let mut watched = |link: OwnedFd| {
            let link = Arc::new(link);
            let seat = self.seated.seat.borrow();
            warden.watch([seat.hand_over(&link, &self.seated.program)])?;
            Ok::<_, Error>(link)
        };
        match link.and_then(|link| watched(link).map_err(|e| e.to_string())) {
            Ok(link) => {
                self.link = Some(link);
                Sight::Restored(cause)
            }
            Err(why) => Sight::Lost(cause, Some(why)),
        }
    }
}

impl Drop for AttachedXdp {
    fn drop(&mut self) {
        self.detach();
    }
}
