//! NFS calls and their replies, calls of versions 2 and 3 with what they are about, the others by the head alone.

use super::flows::Call;
use super::line::{Data, Line, Printed, Stop, put};
use super::protocol::Ip;
use super::text::put_chars;

const PORT: u16 = 2049;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const HANDLE_LEN_V2: usize = 32;

/// Procedures under version 3's names; version 2's are numbered otherwise.
const PROCEDURES: [&str; 22] = [
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
const PROCEDURES_V2: [&str; 18] = [
    "null", "getattr", "setattr", "nop", "lookup", "readlink", "read", "nop", "write", "create",
    "remove", "rename", "link", "symlink", "mkdir", "rmdir", "readdir", "fsstat",
];
const WRITE_MODES: [&str; 3] = ["unstable", "datasync", "filesync"];
const KINDS: [&str; 8] = ["NON", "REG", "DIR", "BLK", "CHR", "LNK", "unk-ft 6", "FIFO"];

/// Shows a call or reply; false if it is none.
pub(super) fn print(
    line: &mut Line<'_>,
    ip: &Ip,
    (src, dst): (u16, u16),
    data: Data<'_>,
) -> Result<bool, Stop> {
    if src != PORT && dst != PORT {
        return Ok(false);
    }
    let (Ok(id), Ok(direction)) = (data.u32(0), data.u32(4)) else {
        return Ok(false);
    };
    match (src, dst, direction) {
        (_, PORT, CALL) => {
            line.protocol = "nfs";
            put!(line, "NFS request xid {id} {}", data.len);
            let (version, procedure) = (data.u32(16)?, data.u32(20)?);
            line.flows.called(Call {
                client: ip.src,
                server: ip.dst,
                id,
                version,
                procedure,
            });
            let name = put_name(line, version, procedure);
            call(line, version, name, data)?;
            Ok(true)
        }
        (PORT, _, REPLY) => {
            line.protocol = "nfs";
            put!(line, "NFS reply xid {id} reply ");
            reply(line, ip, id, data)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Shows and gives a procedure's name; an empty one if it has none.
fn put_name(line: &mut Line<'_>, version: u32, procedure: u32) -> &'static str {
    let names: &[&'static str] = match version {
        3 => &PROCEDURES,
        4 => &["null", "compound"],
        _ => &PROCEDURES_V2,
    };
    let name = names.get(procedure as usize).copied().unwrap_or_default();
    match name {
        "" => put!(line, " proc-{procedure}"),
        name => put!(line, " {name}"),
    }
    name
}

/// Values one after the other, as XDR has them.
struct Values<'a> {
    data: Data<'a>,
    at: usize,
}

impl<'a> Values<'a> {
    pub fn new(data: Data<'a>, at: usize) -> Self {
        Self { data, at }
    }

    pub fn u32(&mut self) -> Result<u32, Stop> {
        let value = self.data.u32(self.at)?;
        self.at += 4;
        Ok(value)
    }

    pub fn u64(&mut self) -> Result<u64, Stop> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Stop> {
        let padded = len.checked_next_multiple_of(4).ok_or(Stop::Cut)?;
        let bytes = self.data.slice(self.at, padded)?;
        self.at += padded;
        Ok(&bytes[..len])
    }

    /// Of as many bytes as a number before them says.
    pub fn opaque(&mut self) -> Result<&'a [u8], Stop> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }
}

/// A handle means something to the server alone.
fn put_handle(line: &mut Line<'_>, values: &mut Values<'_>, version: u32) -> Printed {
    let handle = match version {
        3 => values.opaque()?,
        _ => values.bytes(HANDLE_LEN_V2)?,
    };
    put!(line, " fh Unknown/");
    for byte in handle {
        put!(line, "{byte:02X}");
    }
    Ok(())
}

fn put_text(line: &mut Line<'_>, values: &mut Values<'_>) -> Printed {
    let text = values.opaque()?;
    put!(line, "\"");
    put_chars(line, text);
    put!(line, "\"");
    Ok(())
}

fn kind_name(kind: u32) -> String {
    let name = KINDS.get(kind as usize).filter(|_| kind != 6);
    name.map_or_else(|| format!("unk-ft {kind}"), |name| (*name).to_owned())
}

fn put_write_mode(line: &mut Line<'_>, mode: u32) {
    match WRITE_MODES.get(mode as usize) {
        Some(name) => put!(line, " <{name}>"),
        None => put!(line, " <#{mode}>"),
    }
}

fn call(line: &mut Line<'_>, version: u32, name: &str, data: Data<'_>) -> Printed {
    const CREDENTIALS: usize = 24;
    if version == 4 || matches!(name, "" | "null" | "nop") {
        return Ok(());
    }
    let mut values = Values::new(data, CREDENTIALS);
    for _ in ["credentials", "verifier"] {
        values.u32()?;
        values.opaque()?;
    }
    let values = &mut values;
    put_handle(line, values, version)?;
    match name {
        "lookup" | "create" | "mkdir" | "remove" | "rmdir" => {
            put!(line, " ");
            put_text(line, values)?;
        }
        "access" => put_access(line, values.u32()?),
        "read" | "commit" if version == 3 => {
            let (offset, count) = (values.u64()?, values.u32()?);
            put!(line, " {count} bytes @ {offset}");
        }
        "read" => {
            let (offset, count) = (values.u32()?, values.u32()?);
            put!(line, " {count} bytes @ {offset}");
        }
        "write" if version == 3 => {
            let (offset, count) = (values.u64()?, values.u32()?);
            let (mode, stored) = (values.u32()?, values.u32()?);
            put!(line, " {stored} ({count}) bytes @ {offset}");
            if line.verbose() {
                put_write_mode(line, mode);
            }
        }
        "write" => {
            let [begin, offset, total, stored] =
                [values.u32()?, values.u32()?, values.u32()?, values.u32()?];
            put!(line, " {stored} ({total}) bytes @ {offset} ({begin})");
        }
        "symlink" => {
            put!(line, " ");
            put_text(line, values)?;
            put!(line, " ->");
            let attributes = match version {
                3 => Some(NewAttributes::read(values)?),
                _ => None,
            };
            put_text(line, values)?;
            attributes.inspect(|new| new.put(line));
        }
        "mknod" => {
            put!(line, " ");
            put_text(line, values)?;
            let kind = kind_name(values.u32()?);
            let attributes = NewAttributes::read(values)?;
            put!(line, " {kind}");
            if line.verbose() && matches!(&kind[..], "CHR" | "BLK") {
                put!(line, " {}/{}", values.u32()?, values.u32()?);
            }
            attributes.put(line);
        }
        "rename" => {
            put!(line, " ");
            put_text(line, values)?;
            put!(line, " ->");
            put_handle(line, values, version)?;
            put!(line, " ");
            put_text(line, values)?;
        }
        "link" => {
            put!(line, " ->");
            put_handle(line, values, version)?;
            put!(line, " ");
            put_text(line, values)?;
        }
        "readdir" | "readdirplus" if version == 3 => {
            let (cookie, verifier) = (values.u64()?, values.u64()?);
            put!(line, " {} bytes @ {}", values.u32()?, cookie as i64);
            if line.verbose() {
                if name == "readdirplus" {
                    put!(line, " max {}", values.u32()?);
                }
                put!(line, " verf {verifier:016x}");
            }
        }
        "readdir" => {
            let cookie = values.u32()?;
            put!(line, " {} bytes @ {cookie}", values.u32()?);
        }
        _ => {}
    }
    Ok(())
}

fn put_access(line: &mut Line<'_>, asked: u32) {
    const RIGHTS: [&str; 6] = ["READ", "LOOKUP", "MODIFY", "EXTEND", "DELETE", "EXECUTE"];
    match asked {
        0x3f => put!(line, " NFS_ACCESS_FULL"),
        0x40.. => put!(line, " {asked:04x}"),
        _ => {
            let set = (0..RIGHTS.len()).filter(|bit| asked & 1 << bit != 0);
            for (index, bit) in set.enumerate() {
                let separator = if index == 0 { ' ' } else { '|' };
                put!(line, "{separator}NFS_ACCESS_{}", RIGHTS[bit]);
            }
        }
    }
}

/// What a file that is made is to have; nothing is said of the others.
struct NewAttributes {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    accessed: Option<(u32, u32)>,
    modified: Option<(u32, u32)>,
}

impl NewAttributes {
    fn read(values: &mut Values<'_>) -> Result<Self, Stop> {
        const GIVEN: u32 = 2;
        fn number(values: &mut Values<'_>) -> Result<Option<u32>, Stop> {
            match values.u32()? {
                0 => Ok(None),
                _ => values.u32().map(Some),
            }
        }
        fn time(values: &mut Values<'_>) -> Result<Option<(u32, u32)>, Stop> {
            match values.u32()? {
                GIVEN => Ok(Some((values.u32()?, values.u32()?))),
                _ => Ok(None),
            }
        }
        let (mode, uid, gid) = (number(values)?, number(values)?, number(values)?);
        if values.u32()? != 0 {
            values.u64()?;
        }
        Ok(Self {
            mode,
            uid,
            gid,
            accessed: time(values)?,
            modified: time(values)?,
        })
    }

    fn put(&self, line: &mut Line<'_>) {
        if !line.verbose() {
            return;
        }
        if let Some(mode) = self.mode {
            put!(line, " mode {mode:o}");
        }
        for (name, id) in [("uid", self.uid), ("gid", self.gid)] {
            if let Some(id) = id {
                put!(line, " {name} {id}");
            }
        }
        if line.options.verbosity > 1 {
            for (name, time) in [("atime", self.accessed), ("mtime", self.modified)] {
                if let Some((seconds, fraction)) = time {
                    put!(line, " {name} {seconds}.{fraction:06}");
                }
            }
        }
    }
}

/// What a server answers: whether it did what was asked, which follows from the call, and why not.
fn reply(line: &mut Line<'_>, ip: &Ip, id: u32, data: Data<'_>) -> Printed {
    const ACCEPTED: u32 = 0;
    const SUCCESS: u32 = 0;
    const VERIFIER: usize = 12;
    match data.u32(8)? {
        ACCEPTED => put!(line, "ok {}", data.len),
        state => {
            match state {
                1 => put!(line, "ERR {}", data.len),
                _ => put!(line, "Unknown rpc response code={state} {}", data.len),
            }
            return Ok(());
        }
    }
    let Some((version, procedure)) = line.flows.call(ip.dst, ip.src, id) else {
        return Ok(());
    };
    let name = put_name(line, version, procedure);
    if version == 4 || matches!(name, "" | "null" | "nop") {
        return Ok(());
    }
    let values = &mut Values::new(data, VERIFIER);
    values.u32()?;
    values.opaque()?;
    match values.u32()? {
        SUCCESS => {}
        state => {
            const STATES: [&str; 6] = [
                "",
                "PROG_UNAVAIL",
                "PROG_MISMATCH",
                "PROC_UNAVAIL",
                "GARBAGE_ARGS",
                "SYSTEM_ERR",
            ];
            match STATES.get(state as usize) {
                Some(name) => put!(line, " {name}"),
                None => put!(line, " ar_stat {state}"),
            }
            return Ok(());
        }
    }
    match values.u32()? {
        SUCCESS => {}
        status => match error_name(status) {
            Some(text) => put!(line, " ERROR: {text}"),
            None => put!(line, " ERROR: unk {status}"),
        },
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
