//! Explanations of what happened to packets: why the kernel dropped them, and the path that each took. The engines
//! return values; their users print them.

pub mod follow;
pub mod slow;
pub mod why;
