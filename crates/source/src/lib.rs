//! Sources of packets for commands: capture files, and the records of a running capture.

mod files;
mod filter;
mod input;
pub mod live;
mod notice;
mod privacy;
mod ring;

pub use files::{Choice, Files, FilesPlan, Wanted, format_for};
pub use filter::{FileFilter, file_filter};
pub use input::{Input, Span, identity, is_a_pipe};
pub use notice::{Notice, OnNotice};
pub use privacy::{PrivacyStage, privacy};
pub use ring::packets_of;
