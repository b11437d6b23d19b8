//! What a service manager is told, if there is one (sd_notify).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Set-up is done, and this is what goes on now.
pub fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}"));
}

/// The end has begun.
pub fn stopping() {
    tell("STOPPING=1");
}

fn tell(text: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let send = |address| UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address);
    // A manager that does not listen is no reason to end.
    let _sent: io::Result<usize> = address.and_then(send);
}
