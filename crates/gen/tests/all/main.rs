//! Frames, templates and the receiver.

mod frames;
mod template;
mod window;
