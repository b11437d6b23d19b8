//! Lowered filters against libpcap and against the interpreter, without privileges.

mod agreement;
mod ancillary;
mod cut_frames;
mod inner;
mod random_expressions;
mod random_programs;
mod support;
