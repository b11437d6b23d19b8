//! TFTP.

use crate::print::line::{Data, Line, Printed, Stop, put};
use crate::print::names;

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    line.protocol = "tftp";
    put!(line, "TFTP, length {}", data.len);
    if data.len < 2 {
        return Err(Stop::Cut);
    }
    let code = data.u16(0)?;
    put!(line, ", {}", names::text("tftp", code));
    match code {
        3 | 4 => line.show(data, " block {u16 2}")?,
        1 | 2 => {
            put!(line, " \"");
            let rest = word(line, data.skip(2))?;
            put!(line, "\" ");
            let options = word(line, rest)?;
            words(line, options)?;
        }
        5 => {
            line.show(data, " {n16 2 tftp.error}")?;
            if names::find("tftp.error", data.u16(2)?).is_none() {
                put!(line, " \"");
            }
            put!(line, " \"");
            word(line, data.skip(4))?;
            put!(line, "\"");
        }
        6 => words(line, data.skip(2))?,
        _ => {}
    }
    Ok(())
}

/// Shows strings that end with a zero byte each.
fn words(line: &mut Line<'_>, mut data: Data<'_>) -> Printed {
    while data.len > 0 {
        if data.u8(0)? != 0 {
            put!(line, " ");
        }
        data = word(line, data)?;
    }
    Ok(())
}

fn word<'a>(line: &mut Line<'_>, data: Data<'a>) -> Result<Data<'a>, Stop> {
    let end = data.bytes.iter().position(|byte| *byte == 0);
    line.put_chars(&data.bytes[..end.unwrap_or(data.bytes.len())]);
    end.map(|end| data.skip(end + 1)).ok_or(Stop::Cut)
}
