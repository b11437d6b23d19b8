//! BFD, which checks that a path carries packets.

use crate::print::line::{Data, Line, Printed, put};
use crate::print::names;

const ECHO: u16 = 3785;
pub const PORTS: [u16; 4] = [3784, ECHO, 4784, 6784];

pub fn print(line: &mut Line<'_>, port: u16, data: Data<'_>) -> Printed {
    const HEADER_LEN: usize = 24;
    const AUTHENTICATED: u8 = 0x04;
    line.protocol = "bfd";
    if port == ECHO {
        put!(line, "BFD, Echo, length: {}", data.len);
        return Ok(());
    }
    let (version, flags) = (data.u8(0)? >> 5, data.u8(1)?);
    if version != 1 {
        put!(line, "BFDv{version}, Control, length: {}", data.len);
        return Ok(());
    }
    let path = names::of("bfd.path", port);
    let state = names::of("bfd.state", flags >> 6);
    let set = names::flags("bfd.flags", flags & 0x3f);
    if !line.verbose() {
        put!(line, "BFDv1, {path}, State {state}, Flags: [{set}], length: {}", data.len);
        return Ok(());
    }
    put!(line, "BFDv1, length: {}\n\t{path}, State {state}, Flags: [{set}]", data.len);
    line.show(data, ", Diagnostic: {n8 0&1f bfd.diagnostic} (0x{x8 0&1f})")?;
    let (times, sends) = (u32::from(data.u8(2)?), data.u32(12)?);
    let detection = times.wrapping_mul(sends) / 1000;
    put!(line, "\n\tDetection Timer Multiplier: {times} ({detection} ms Detection time)");
    line.show(data, ", BFD Length: {u8 3}")?;
    line.show(data, "\n\tMy Discriminator: 0x{x32 4}, Your Discriminator: 0x{x32 8}")?;
    for (name, at) in [("Desired min Tx", 12), ("Required min Rx", 16), ("Required min Echo", 20)] {
        let name = format!("{name} Interval:");
        put!(line, "\n\t  {name:<27} {:4} ms", data.u32(at)? / 1000);
    }
    if flags & AUTHENTICATED != 0 {
        authentication(line, data.skip(HEADER_LEN))?;
    }
    Ok(())
}

/// Shows the password, or the digest over the message with an increasing number.
fn authentication(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    let (kind, len) = (data.u8(0)?, usize::from(data.u8(1)?));
    line.show(data, "\n\tAuthentication: {n8 0 bfd.authentication} ({u8 0}), length: {u8 1}\n\t  Auth Key ID: {u8 2}")?;
    match (kind, len) {
        (1, 4..=19) => {
            put!(line, ", Password: ");
            line.put_chars(data.slice(3, len - 3)?);
        }
        (2 | 3, 24) | (4 | 5, 28) => {
            line.show(data, ", Sequence Number: 0x{x32 4}\n\t  ")?;
            put!(line, "{}: ", if len == 24 { "Digest" } else { "Hash" });
            line.put_hex(data.slice(8, len - 8)?);
        }
        (1..=5, _) => put!(line, "[invalid length {len}]"),
        _ => {}
    }
    Ok(())
}
