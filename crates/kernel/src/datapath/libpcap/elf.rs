//! Whether a file can be a shared library for this machine, so that a wrong one is refused in plain words: the dynamic
//! linker says of a library for another processor that there is no such file.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Magic, class, byte order and the rest of the identification; type; machine.
const HEADER: usize = 20;
const MAGIC: &[u8] = b"\x7fELF";
const CLASS: usize = 4;
const ORDER: usize = 5;
const TYPE: usize = 16;
const MACHINE: usize = 18;
const SHARED: u16 = 3;

const FIX: &str = "name a libpcap.so that was built for this machine";

/// Why it cannot be one, and what to do.
pub fn check(path: &Path) -> Result<(), (String, &'static str)> {
    let mut file = File::open(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => (
            "there is no such file".to_owned(),
            "ldconfig -p | grep libpcap tells where the system's is",
        ),
        _ => (crate::Error::os("", e).why().to_owned(), FIX),
    })?;
    match file.metadata() {
        Ok(data) if data.is_dir() => return Err(("it is a directory".to_owned(), FIX)),
        Ok(data) if !data.is_file() => return Err(("it is not a regular file".to_owned(), FIX)),
        _ => {}
    }
    let mut header = [0; HEADER];
    let own = own_header();
    if file.read_exact(&mut header).is_err() || !header.starts_with(MAGIC) {
        return Err(("it is not a shared library".to_owned(), FIX));
    }
    if header[CLASS] != own.class || header[ORDER] != own.order {
        let other = architecture(&header);
        return Err((
            format!("it is for {other}, and trawl is for {}", own.name),
            FIX,
        ));
    }
    let machine = u16::from_ne_bytes([header[MACHINE], header[MACHINE + 1]]);
    if machine != own.machine {
        let other = architecture(&header);
        return Err((
            format!("it is for {other}, and trawl is for {}", own.name),
            FIX,
        ));
    }
    if u16::from_ne_bytes([header[TYPE], header[TYPE + 1]]) != SHARED {
        return Err(("it is not a shared library".to_owned(), FIX));
    }
    Ok(())
}

struct Own {
    class: u8,
    order: u8,
    machine: u16,
    name: &'static str,
}

/// What this program's own header says.
fn own_header() -> Own {
    let (machine, name) = match std::env::consts::ARCH {
        "x86_64" => (62, "x86-64"),
        "x86" => (3, "32-bit x86"),
        "aarch64" => (183, "64-bit ARM"),
        "arm" => (40, "32-bit ARM"),
        "riscv64" => (243, "RISC-V"),
        "powerpc64" => (21, "64-bit PowerPC"),
        "s390x" => (22, "S/390"),
        other => (0, other),
    };
    Own {
        class: if usize::BITS == 64 { 2 } else { 1 },
        order: if cfg!(target_endian = "little") { 1 } else { 2 },
        machine,
        name,
    }
}

fn architecture(header: &[u8; HEADER]) -> String {
    let bytes = [header[MACHINE], header[MACHINE + 1]];
    let machine = match header[ORDER] {
        2 => u16::from_be_bytes(bytes),
        _ => u16::from_le_bytes(bytes),
    };
    match machine {
        3 => "32-bit x86".to_owned(),
        21 => "64-bit PowerPC".to_owned(),
        22 => "S/390".to_owned(),
        40 => "32-bit ARM".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "64-bit ARM".to_owned(),
        243 => "RISC-V".to_owned(),
        other => format!("another processor (ELF machine {other})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, change: impl Fn(&mut [u8])) -> Option<String> {
        let mut bytes = std::fs::read("/proc/self/exe").unwrap()[..64].to_vec();
        bytes[TYPE] = SHARED as u8;
        change(&mut bytes);
        let path = std::env::temp_dir().join(format!("trawl-elf-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let answer = check(&path).err().map(|(why, _)| why);
        std::fs::remove_file(&path).unwrap();
        answer
    }

    #[test]
    fn other_processors_are_named() {
        assert_eq!(refusal("own", |_| ()), None);
        let arm = refusal("arm", |bytes| {
            bytes[MACHINE] = if cfg!(target_arch = "aarch64") {
                62
            } else {
                183
            }
        });
        assert!(arm.unwrap().starts_with("it is for "));
        let small = refusal("small", |bytes| (bytes[CLASS], bytes[MACHINE]) = (1, 3));
        assert!(
            small
                .unwrap()
                .starts_with("it is for 32-bit x86, and trawl is for ")
        );
        let object = refusal("object", |bytes| bytes[TYPE] = 1);
        assert_eq!(object.as_deref(), Some("it is not a shared library"));
    }
}
