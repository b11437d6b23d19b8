//! NFS calls and their replies: calls of versions 2 and 3 with their arguments, others by the head alone.

use crate::print::flows::Call;
use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::names;
use crate::print::network::Ip;

const PORT: u16 = 2049;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const HANDLE_LEN_V2: usize = 32;

/// Shows a call or reply; returns false for anything else.
pub fn print(line: &mut Line<'_>, ip: &Ip, (src, dst): (u16, u16), data: Data<'_>) -> Result<bool, Stop> {
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
            line.flows.add_call(Call { client: ip.src, server: ip.dst, id, version, procedure });
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

/// Shows and returns a procedure's name; empty if it has none.
fn put_name(line: &mut Line<'_>, version: u32, procedure: u32) -> &'static str {
    let table = match version {
        3 => "nfs.procedure.3",
        4 => "nfs.procedure.4",
        _ => "nfs.procedure.2",
    };
    let name = names::find(table, procedure).unwrap_or_default();
    match name {
        "" => put!(line, " proc-{procedure}"),
        name => put!(line, " {name}"),
    }
    name
}

/// Consecutive XDR values.
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

    /// Returns the bytes after a length.
    pub fn opaque(&mut self) -> Result<&'a [u8], Stop> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }
}

/// Shows a handle by its length alone: only the server can interpret it.
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
    line.put_chars(text);
    put!(line, "\"");
    Ok(())
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
                put!(line, " <{}>", names::text("nfs.write", mode));
            }
        }
        "write" => {
            let [begin, offset, total, stored] = [values.u32()?, values.u32()?, values.u32()?, values.u32()?];
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
            let kind = names::text("nfs.kind", values.u32()?);
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
    match asked {
        0 => {}
        0x3f => put!(line, " NFS_ACCESS_FULL"),
        0x40.. => put!(line, " {asked:04x}"),
        _ => put!(line, " {}", names::joined("nfs.access", asked, "|")),
    }
}

/// Attributes that a new file is to have; `None` for those that the call leaves open.
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
        Ok(Self { mode, uid, gid, accessed: time(values)?, modified: time(values)? })
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

/// Shows a server's reply: the result of its call, or the error.
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
    let Some((version, procedure)) = line.flows.find_call(ip.dst, ip.src, id) else {
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
            put!(line, " {}", names::text("nfs.state", state));
            return Ok(());
        }
    }
    match values.u32()? {
        SUCCESS => {}
        status => put!(line, " ERROR: {}", names::text("nfs.error", status)),
    }
    Ok(())
}
