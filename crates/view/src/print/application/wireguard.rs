//! WireGuard's messages.

use crate::print::line::{Data, Line, Printed, put};

pub fn print(line: &mut Line<'_>, data: Data<'_>) -> Printed {
    put!(line, "UDP, length {}", data.len);
    message(line, data);
    Ok(())
}

fn message(line: &mut Line<'_>, data: Data<'_>) {
    let little = |at: usize| data.array::<4>(at).map(u32::from_le_bytes);
    let Ok(kind) = little(0) else { return };
    let shown = match (kind, data.len) {
        (1, 148) => little(4).map(|sender| format!("handshake initiation, sender 0x{sender:08x}")),
        (2, 92) => little(4).and_then(|sender| {
            let receiver = little(8)?;
            Ok(format!(
                "handshake response, sender 0x{sender:08x}, receiver 0x{receiver:08x}"
            ))
        }),
        (3, 64) => little(4).map(|receiver| format!("cookie reply, receiver 0x{receiver:08x}")),
        (4, 32..) => little(4).and_then(|receiver| {
            let counter = data.array::<8>(8).map(u64::from_le_bytes)?;
            let name = if data.len == 32 { "keepalive" } else { "data" };
            Ok(format!(
                "{name}, receiver 0x{receiver:08x}, counter {counter}"
            ))
        }),
        _ => return,
    };
    match shown {
        Ok(text) => put!(line, ": WireGuard, {text}"),
        Err(_) => put!(line, ": WireGuard [|wireguard]"),
    }
}
