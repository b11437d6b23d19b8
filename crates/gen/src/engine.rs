//! How frames are handed to the device.

mod choice;
mod fix;
mod live;
mod packet;
mod ring;
mod slots;
mod xsk;

pub use choice::{Choice, Notes, Wish, open};
pub use live::Live;
pub use packet::Packet;
pub use ring::Ring;
pub use xsk::Xsk;

use trawl_sys::Result;

use crate::source::Source;

/// What one call of [`Engine::send`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames that the device took, and their bytes, without the checksum that ends an Ethernet frame.
    pub frames: u64,
    pub bytes: u64,
    /// Times that the device had no room for a frame: it, or another one, is offered again.
    pub refused: u64,
    /// The source has no frame before this time: see [`crate::Next::Later`].
    pub later: Option<u64>,
    /// The source is at its end, and the device has taken all.
    pub ended: bool,
}

/// A way to the device. It belongs to one thread, and to the namespace that it was opened in.
pub trait Engine: std::fmt::Debug {
    /// How it is called on the command line.
    fn name(&self) -> &'static str;

    /// Called once before the run: what takes its time may be done here, and may send frames of the source.
    fn prepare(&mut self, _source: &mut dyn Source) -> Result<Sent> {
        Ok(Sent::default())
    }

    /// Offers up to `want` frames of the source to the device. May take fewer, for want of room on the other side.
    /// Frames that the source gave and the device has not taken yet are offered first in the next call.
    fn send(&mut self, source: &mut dyn Source, now: u64, want: u64) -> Result<Sent>;

    /// The most frames that one call should be asked for.
    fn most(&self) -> u64;

    /// What may be wrong when the device takes nothing at all.
    fn suspicion(&self) -> &'static str {
        "is it up, and its other end?"
    }

    /// Whether frames that the source gave wait to be taken.
    fn has_frames(&self) -> bool {
        false
    }

    /// Called when nothing more will be sent: waits, for a bounded time, until the device has dealt with what it was
    /// given, and tells what it took that was not told before.
    fn finish(&mut self) -> Result<Sent> {
        Ok(Sent::default())
    }
}
