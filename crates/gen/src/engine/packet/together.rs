//! Frames that are alike, as one long frame that the kernel takes apart: see [`crate::alike`].

use trawl_kernel::Result;
use trawl_kernel::send::{Offered, State, Together, TogetherSender};

use crate::alike::{Layout, is_alike, join, level_layout, most_together};
use crate::engine::Sent;

/// Fewer than that are not worth the trouble.
const LEAST: usize = 8;
/// What a call in which frames were dropped counts, and how much is too much: each call without takes one off.
///
/// A veth's queue is chosen by the frame's flow here, and somebody else may be filling the same one. A sender that gives
/// this way up sends to the queue of its CPU.
const DROPPING: u32 = 16;
const TOO_MUCH: u32 = 64;
const ETHERNET: usize = 14;

/// The way to the device for frames that are alike.
#[derive(Debug)]
pub(super) struct Joint {
    socket: TogetherSender,
    long: Vec<u8>,
    supported: bool,
    trouble: u32,
    /// How the device stood before the first frame of this call.
    before: Option<State>,
    /// The length of each frame of this call.
    length: Option<usize>,
    /// Frames of the last long one.
    last: u64,
}

impl Joint {
    pub fn open(interface: &str) -> Result<Option<Self>> {
        Ok(TogetherSender::open(interface)?.map(|socket| Self {
            socket,
            long: Vec::new(),
            supported: true,
            trouble: 0,
            before: None,
            length: None,
            last: 0,
        }))
    }

    /// Whether there is sense in trying again.
    pub fn is_supported(&self) -> bool {
        self.supported && self.trouble < TOO_MUCH
    }

    /// The MTU, where the device takes frames this way just now.
    pub fn begin(&mut self) -> Result<Option<u32>> {
        self.before = self.socket.state()?;
        self.length = None;
        Ok(self.before.map(|state| state.mtu))
    }

    /// Offers the first of these frames up to one that is not like them; `None` where that does not go.
    pub fn offer<'f>(
        &mut self,
        frames: impl Iterator<Item = &'f [u8]> + Clone,
        mtu: u32,
    ) -> Result<Option<Sent>> {
        let Some((first, layout)) = frames.clone().next().and_then(|first| {
            let layout = level_layout(first)?;
            (first.len() <= mtu as usize + ETHERNET).then_some((first, layout))
        }) else {
            return Ok(None);
        };
        if *self.length.get_or_insert(first.len()) != first.len() {
            return Ok(None);
        }
        let alike = frames
            .clone()
            .take(most_together(layout, first.len()))
            .take_while(|other| is_alike(layout, first, other))
            .count();
        if alike < LEAST {
            return Ok(None);
        }
        join(layout, frames.take(alike), &mut self.long);
        self.last = alike as u64;
        let refused = match self.socket.offer(&self.long, how(layout, first.len()))? {
            Offered::Taken => 0,
            Offered::Refused => 1,
            Offered::Unsupported => {
                self.supported = false;
                return Ok(None);
            }
        };
        Ok(Some(Sent {
            frames: alike as u64,
            bytes: (alike * first.len()) as u64,
            refused,
            ..Sent::default()
        }))
    }

    /// Takes off what the device dropped of the frames of this call: of those in the middle of a long frame nothing is
    /// said elsewhere.
    pub fn settle(&mut self, sent: &mut Sent) -> Result<()> {
        let Some(before) = self.before.take() else {
            return Ok(());
        };
        let dropped = self.socket.dropped()?.saturating_sub(before.dropped);
        let lost = match (dropped, sent.refused) {
            // Refused before it was taken apart.
            (0, 1..) => self.last,
            _ => dropped.min(sent.frames),
        };
        self.trouble = match lost {
            0 => self.trouble.saturating_sub(1),
            _ => self.trouble + DROPPING,
        };
        sent.frames -= lost;
        sent.bytes -= lost * self.length.unwrap_or(0) as u64;
        sent.refused = lost;
        Ok(())
    }
}

fn how(layout: Layout, length: usize) -> Together {
    Together {
        transport: layout.transport() as u16,
        payload: (length - layout.payload()) as u16,
    }
}
