//! Heads of NFS calls and replies.

use super::line::{Data, Line, Stop, put};

const PORT: u16 = 2049;
const CALL: u32 = 0;
const REPLY: u32 = 1;

/// Shows a call or reply; false if it is none.
pub(super) fn nfs(
    line: &mut Line<'_>,
    (src, dst): (u16, u16),
    data: Data<'_>,
) -> Result<bool, Stop> {
    let (Ok(id), Ok(direction)) = (data.u32(0), data.u32(4)) else {
        return Ok(false);
    };
    match (src, dst, direction) {
        (_, PORT, CALL) => {
            line.protocol = "nfs";
            put!(line, "NFS request xid {id} {}", data.len);
            let (version, procedure) = (data.u32(16)?, data.u32(20)?);
            match name(version, procedure) {
                Some(name) => put!(line, " {name}"),
                None => put!(line, " proc-{procedure}"),
            }
            Ok(true)
        }
        (PORT, _, REPLY) => {
            line.protocol = "nfs";
            put!(line, "NFS reply xid {id} reply ");
            match data.u32(8)? {
                0 => put!(line, "ok {}", data.len),
                1 => put!(line, "ERR {}", data.len),
                other => put!(line, "Unknown rpc response code={other} {}", data.len),
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

fn name(version: u32, procedure: u32) -> Option<&'static str> {
    const SECOND: [&str; 18] = [
        "null", "getattr", "setattr", "nop", "lookup", "readlink", "read", "nop", "write",
        "create", "remove", "rename", "link", "symlink", "mkdir", "rmdir", "readdir", "fsstat",
    ];
    const THIRD: [&str; 22] = [
        "null",
        "getattr",
        "setattr",
        "lookup",
        "access",
        "readlink",
        "read",
        "write",
        "create",
        "mkdir",
        "symlink",
        "mknod",
        "remove",
        "rmdir",
        "rename",
        "link",
        "readdir",
        "readdirplus",
        "fsstat",
        "fsinfo",
        "pathconf",
        "commit",
    ];
    let names: &[&str] = if version == 3 { &THIRD } else { &SECOND };
    names.get(procedure as usize).copied()
}
