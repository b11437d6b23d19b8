//! What NFS servers answer; what it means follows from the call, which has to have been seen.

use super::line::{Data, Line, Printed, put};
use super::nfs::{Values, kind_name, put_handle, put_name, put_text, put_write_mode};
use super::protocol::Ip;

const SUCCESS: u32 = 0;

pub(super) fn print(line: &mut Line<'_>, ip: &Ip, id: u32, data: Data<'_>) -> Printed {
    const ACCEPTED: u32 = 0;
    const DENIED: u32 = 1;
    match data.u32(8)? {
        ACCEPTED => {
            put!(line, "ok {}", data.len);
            let call = line.flows.call(ip.dst, ip.src, id);
            let Some((version, procedure)) = call else {
                return Ok(());
            };
            let name = put_name(line, version, procedure);
            if version == 4 || matches!(name, "" | "null" | "nop") {
                return Ok(());
            }
            accepted(line, version, name, data)
        }
        DENIED => {
            put!(line, "ERR {}: ", data.len);
            denied(line, data)
        }
        other => {
            put!(line, "Unknown rpc response code={other} {}", data.len);
            Ok(())
        }
    }
}

fn denied(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    const WHY: [&str; 8] = [
        "OK",
        "Bogus Credentials (seal broken)",
        "Rejected Credentials (client should begin new session)",
        "Bogus Verifier (seal broken)",
        "Verifier expired or was replayed",
        "Credentials are too weak",
        "Bogus response verifier",
        "Unknown failure",
    ];
    match data.u32(12)? {
        0 => put!(
            line,
            "RPC Version mismatch ({}-{})",
            data.u32(16)?,
            data.u32(20)?
        ),
        1 => {
            let why = data.u32(16)?;
            match WHY.get(why as usize) {
                Some(text) => put!(line, "Auth {text}"),
                None => put!(line, "Auth Invalid failure code {why}"),
            }
        }
        other => put!(line, "Unknown reason for rejecting rpc message {other}"),
    }
    Ok(())
}

fn accepted(line: &mut Line<'_>, version: u32, name: &str, data: Data<'_>) -> Printed {
    const VERIFIER: usize = 12;
    let mut values = Values::new(data, VERIFIER);
    let values = &mut values;
    values.u32()?;
    values.opaque()?;
    match values.u32()? {
        SUCCESS => {}
        state @ 1..=5 => {
            const STATES: [&str; 5] = [
                "PROG_UNAVAIL",
                "PROG_MISMATCH",
                "PROC_UNAVAIL",
                "GARBAGE_ARGS",
                "SYSTEM_ERR",
            ];
            put!(line, " {}", STATES[state as usize - 1]);
            return Ok(());
        }
        state => {
            put!(line, " ar_stat {state}");
            return Ok(());
        }
    }
    let status = values.u32()?;
    if status != SUCCESS && !line.options.quick {
        match error_name(status) {
            Some(text) => put!(line, " ERROR: {text}"),
            None => put!(line, " ERROR: unk {status}"),
        }
    }
    let shown = match version {
        3 => third(line, name, status == SUCCESS, values),
        _ if status != SUCCESS => Ok(()),
        _ => second(line, name, values),
    };
    // That it failed is all there is to know.
    shown.or_else(|stop| match status {
        SUCCESS => Err(stop),
        _ => Ok(()),
    })
}

/// Version 2; only what succeeded has results.
fn second(line: &mut Line<'_>, name: &str, values: &mut Values<'_>) -> Printed {
    match name {
        "getattr" | "setattr" => attributes(line, values, 2, (!line.options.quick).into()),
        "lookup" | "create" | "mkdir" => {
            put_handle(line, values, 2)?;
            attributes(line, values, 2, line.options.verbosity)
        }
        "read" | "write" => attributes(line, values, 2, line.options.verbosity),
        "readlink" => {
            put!(line, " ");
            put_text(line, values)
        }
        "readdir" if !line.options.quick => {
            put!(
                line,
                " offset 0x{:x} size {} ",
                values.u32()?,
                values.u32()?
            );
            if values.u32()? != 0 {
                put!(line, " eof");
            }
            Ok(())
        }
        "fsstat" if !line.options.quick => {
            values.need(20)?;
            for name in ["tsize", "bsize", "blocks", "bfree", "bavail"] {
                put!(line, " {name} {}", values.u32()?);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn third(line: &mut Line<'_>, name: &str, succeeded: bool, values: &mut Values<'_>) -> Printed {
    let verbosity = line.options.verbosity;
    match name {
        "getattr" if succeeded => attributes(line, values, 3, (!line.options.quick).into()),
        "setattr" | "remove" | "rmdir" => changed(line, values),
        "commit" => {
            changed(line, values)?;
            if verbosity > 1 {
                put!(line, " verf {:x}", values.u64()?);
            }
            Ok(())
        }
        "lookup" => {
            if succeeded {
                put_handle(line, values, 3)?;
                after(line, values)?;
            }
            if verbosity > 1 {
                put!(line, " post dattr:");
                after(line, values)?;
            }
            Ok(())
        }
        "access" => {
            if verbosity > 0 {
                put!(line, " attr:");
            }
            after(line, values)?;
            if succeeded {
                put!(line, " c {:04x}", values.u32()?);
            }
            Ok(())
        }
        "readlink" if succeeded => {
            after(line, values)?;
            put!(line, " ");
            put_text(line, values)
        }
        "read" => {
            after(line, values)?;
            if succeeded && verbosity > 0 {
                put!(line, " {} bytes", values.u32()?);
                if values.u32()? != 0 {
                    put!(line, " EOF");
                }
            }
            Ok(())
        }
        "write" => {
            changed(line, values)?;
            if succeeded && verbosity > 0 {
                put!(line, " {} bytes", values.u32()?);
                if verbosity > 1 {
                    put_write_mode(line, values.u32()?);
                    put!(line, " verf {:x}", values.u64()?);
                }
            }
            Ok(())
        }
        "create" | "mkdir" | "symlink" | "mknod" => made(line, succeeded, values),
        "rename" if verbosity > 0 => {
            put!(line, " from:");
            changed(line, values)?;
            put!(line, " to:");
            changed(line, values)
        }
        "link" if verbosity > 0 => {
            put!(line, " file POST:");
            after(line, values)?;
            put!(line, " dir:");
            changed(line, values)
        }
        "readdir" | "readdirplus" => {
            posted(line, values)?;
            if succeeded && verbosity > 0 {
                put!(line, " verf {:016x}", values.u64()?);
            }
            Ok(())
        }
        "fsstat" if !line.options.quick => {
            posted(line, values)?;
            file_system(line, succeeded, values)
        }
        "fsinfo" => {
            posted(line, values)?;
            limits(line, succeeded, values)
        }
        "pathconf" => {
            posted(line, values)?;
            paths(line, succeeded, values)
        }
        _ => Ok(()),
    }
}

fn made(line: &mut Line<'_>, succeeded: bool, values: &mut Values<'_>) -> Printed {
    if !succeeded {
        return changed(line, values);
    }
    if values.u32()? == 0 {
        return Ok(());
    }
    put_handle(line, values, 3)?;
    if line.verbose() {
        after(line, values)?;
    }
    if line.options.verbosity > 1 {
        put!(line, " dir attr:");
        changed(line, values)?;
    }
    Ok(())
}

fn file_system(line: &mut Line<'_>, succeeded: bool, values: &mut Values<'_>) -> Printed {
    if !succeeded {
        return Ok(());
    }
    values.need(52)?;
    for name in ["tbytes", "fbytes", "abytes"] {
        put!(line, " {name} {}", values.u64()?);
    }
    if line.verbose() {
        for name in ["tfiles", "ffiles", "afiles"] {
            put!(line, " {name} {}", values.u64()?);
        }
        put!(line, " invar {}", values.u32()?);
    }
    Ok(())
}

fn limits(line: &mut Line<'_>, succeeded: bool, values: &mut Values<'_>) -> Printed {
    if !succeeded {
        return Ok(());
    }
    values.need(48)?;
    let [read_most, read_best, read_unit] = [values.u32()?, values.u32()?, values.u32()?];
    let [write_most, write_best, write_unit] = [values.u32()?, values.u32()?, values.u32()?];
    put!(
        line,
        " rtmax {read_most} rtpref {read_best} wtmax {write_most} wtpref {write_best} dtpref {}",
        values.u32()?
    );
    if line.verbose() {
        let longest = values.u64()?;
        put!(
            line,
            " rtmult {read_unit} wtmult {write_unit} maxfsz {longest} delta {}.{:06} ",
            values.u32()?,
            values.u32()?
        );
    }
    Ok(())
}

fn paths(line: &mut Line<'_>, succeeded: bool, values: &mut Values<'_>) -> Printed {
    if !succeeded {
        return Ok(());
    }
    values.need(24)?;
    put!(line, " linkmax {} namemax {}", values.u32()?, values.u32()?);
    for name in ["notrunc", "chownres", "igncase", "keepcase"] {
        let is_so = values.u32()? != 0;
        put!(line, " {}", if is_so { name } else { "" });
    }
    Ok(())
}

/// The attributes of a file afterwards, under their name.
fn posted(line: &mut Line<'_>, values: &mut Values<'_>) -> Printed {
    if line.verbose() {
        put!(line, " POST:");
    }
    after(line, values)
}

/// The attributes of a file afterwards, which may be absent.
fn after(line: &mut Line<'_>, values: &mut Values<'_>) -> Printed {
    match values.u32()? {
        0 => Ok(()),
        _ if !line.verbose() => {
            values.skip(84);
            Ok(())
        }
        _ => attributes(line, values, 3, line.options.verbosity),
    }
}

/// What a file was before and is afterwards.
fn changed(line: &mut Line<'_>, values: &mut Values<'_>) -> Printed {
    const BEFORE_LEN: usize = 24;
    let is_shown = line.options.verbosity > 1;
    if is_shown {
        put!(line, " PRE:");
    }
    match values.u32()? {
        0 => {}
        _ if is_shown => {
            put!(line, " sz {}", values.u64()?);
            for name in ["mtime", "ctime"] {
                put!(line, " {name} {}.{:06}", values.u32()?, values.u32()?);
            }
        }
        _ => {
            values.need(BEFORE_LEN)?;
            values.skip(BEFORE_LEN);
        }
    }
    posted(line, values)
}

fn attributes(
    line: &mut Line<'_>,
    values: &mut Values<'_>,
    version: u32,
    verbosity: u8,
) -> Printed {
    const LEN: usize = 84;
    const LEN_V2: usize = 68;
    const OWNERS_LEN: usize = 20;
    const SIZE_LEN: usize = 8;
    const SIZE_LEN_V2: usize = 4;
    values.need(OWNERS_LEN)?;
    let (len, size_len) = match version {
        3 => (LEN, SIZE_LEN),
        _ => (LEN_V2, SIZE_LEN_V2),
    };
    if verbosity == 0 {
        values.skip(len);
        return Ok(());
    }
    let [kind, mode, links] = [values.u32()?, values.u32()?, values.u32()?];
    // Minus two is nobody.
    let [uid, gid] = [values.u32()? as i32, values.u32()? as i32];
    put!(line, " {} {mode:o} ids {uid}/{gid}", kind_name(kind));
    match version {
        3 => put!(line, " sz {}", values.u64()?),
        _ => put!(line, " sz {}", values.u32()?),
    }
    let rest = len - OWNERS_LEN - size_len;
    if verbosity == 1 {
        values.skip(rest);
        return Ok(());
    }
    values.need(rest)?;
    if version == 3 {
        let _used = values.u64()?;
        let device = (values.u32()?, values.u32()?);
        put!(line, " nlink {links} rdev {}/{}", device.0, device.1);
        let (system, file) = (values.u64()?, values.u64()?);
        put!(line, " fsid {system:x} fileid {file:x} a/m/ctime");
    } else {
        let [_block, device, _blocks] = [values.u32()?, values.u32()?, values.u32()?];
        put!(line, " nlink {links} rdev 0x{device:x}");
        let (system, file) = (values.u32()?, values.u32()?);
        put!(line, " fsid 0x{system:x} nodeid 0x{file:x} a/m/ctime");
    }
    for _ in ["accessed", "modified", "changed"] {
        put!(line, " {}.{:06}", values.u32()?, values.u32()?);
    }
    Ok(())
}

fn error_name(status: u32) -> Option<&'static str> {
    Some(match status {
        1 => "Operation not permitted",
        2 => "No such file or directory",
        5 => "Input/output error",
        6 => "Device not configured",
        11 => "Resource deadlock avoided",
        12 => "Cannot allocate memory",
        13 => "Permission denied",
        17 => "File exists",
        18 => "Cross-device link",
        19 => "Operation not supported by device",
        20 => "Not a directory",
        21 => "Is a directory",
        22 => "Invalid argument",
        26 => "Text file busy",
        27 => "File too large",
        28 => "No space left on device",
        30 => "Read-only file system",
        31 => "Too many links",
        45 | 10_004 => "Operation not supported",
        62 => "Too many levels of symbolic links",
        63 => "File name too long",
        66 => "Directory not empty",
        69 => "Disc quota exceeded",
        70 => "Stale NFS file handle",
        71 => "Too many levels of remote in path",
        99 => "Write cache flushed to disk",
        10_001 => "Illegal NFS file handle",
        10_002 => "Update synchronization mismatch",
        10_003 => "READDIR/READDIRPLUS cookie is stale",
        10_005 => "Buffer or request is too small",
        10_006 => "Unspecified error on server",
        10_007 => "Object of that type not supported",
        10_008 => "Request couldn't be completed in time",
        _ => return None,
    })
}
