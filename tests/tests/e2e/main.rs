//! End to end: the real binary, real namespaces, real XDP. One file for each subject; each test in a lab of its own.

mod account;
mod bundled;
mod chain;
mod clock;
mod clsact;
mod content;
mod ends;
mod formats;
mod gen_frames;
mod length;
mod merge;
mod printing;
mod receive;
mod redirect;
mod refusals;
mod replay;
mod sharing;
mod stamp;
mod tappable;
mod tools;
mod tracing;
mod unchanged;
mod xdp_chain;
mod xdp_load;
mod xdp_refusals;
mod xdp_status;
