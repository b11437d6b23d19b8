//! What the kernel, the driver or libbpf refuses, in words: the reason, and the command that fixes it.

mod advice;
mod conflict;
mod load;
mod verifier;

pub use conflict::{conflict, loan};
pub use load::{
    cannot_fit, cannot_load, cannot_open, elsewhere, is_about_licence, no_program, not_an_object,
    other_machine,
};
