//! Whether a file can be a shared library for this machine, so that a wrong one is refused in plain words: the dynamic
//! linker says of a library for another processor that there is no such file.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Magic, class, byte order and the rest of the identification; type; machine.
const HEADER: usize = 20;
const MAGIC: &[u8] = b"\x7fELF";
const CLASS: usize = 4;
const ORDER: usize = 5;
const TYPE: usize = 16;
const MACHINE: usize = 18;
const SHARED: u16 = 3;
/// Of a 64-bit file: where the headers of its parts are, how large and how many; in each, what of the file it loads.
const PARTS: u64 = 32;
const PART_SIZE: u64 = 54;
const PART_OFFSET: u64 = 8;
const PART_BYTES: u64 = 32;
const PART_LOADED: u32 = 1;

const FIX: &str = "name a libpcap.so that was built for this machine";

/// Why it cannot be one, and what to do.
pub fn check(path: &Path) -> Result<(), (String, &'static str)> {
    let unreadable = |e: Error| match e.kind() {
        ErrorKind::NotFound => (
            "there is no such file".to_owned(),
            "ldconfig -p | grep libpcap tells where the system's is",
        ),
        _ => (trawl_sys::Error::os("", e).why().to_owned(), FIX),
    };
    // Before it is opened: a FIFO would be waited for.
    match std::fs::metadata(path).map_err(unreadable)? {
        data if data.is_dir() => return Err(("it is a directory".to_owned(), FIX)),
        data if !data.is_file() => return Err(("it is not a regular file".to_owned(), FIX)),
        _ => {}
    }
    let file = File::open(path).map_err(unreadable)?;
    let mut header = [0; HEADER];
    let own = own_header();
    if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(MAGIC) {
        return Err(("it is not a shared library".to_owned(), FIX));
    }
    let machine = u16::from_ne_bytes([header[MACHINE], header[MACHINE + 1]]);
    if (header[CLASS], header[ORDER], machine) != (own.class, own.order, own.machine) {
        let other = architecture(&header, &own);
        return Err((
            format!("it is for {other}, and trawl is for {}", own.name),
            FIX,
        ));
    }
    if u16::from_ne_bytes([header[TYPE], header[TYPE + 1]]) != SHARED {
        return Err(("it is not a shared library".to_owned(), FIX));
    }
    match is_cut_off(&file) {
        true => Err((
            "it is cut off: a part that is to be loaded is missing".to_owned(),
            FIX,
        )),
        false => Ok(()),
    }
}

/// The dynamic linker maps what the headers say and dies by a signal where the file ends before it.
fn is_cut_off(file: &File) -> bool {
    let Ok(length) = file.metadata().map(|data| data.len()) else {
        return false;
    };
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let part_is_missing = |part: u64| {
        let kind = word(part)? as u32;
        let end = word(part + PART_OFFSET)?.checked_add(word(part + PART_BYTES)?)?;
        Some(kind == PART_LOADED && end > length)
    };
    let missing = || {
        let first = word(PARTS)?;
        let sizes = word(PART_SIZE)?.to_ne_bytes();
        let [size, count] =
            [0, 2].map(|at| u64::from(u16::from_ne_bytes([sizes[at], sizes[at + 1]])));
        let mut parts = (0..count).map(|number| first.checked_add(number * size));
        // A header that cannot be read is missing too.
        Some(parts.any(|part| part.and_then(part_is_missing).unwrap_or(true)))
    };
    // Trawl's own class has 64 bits wherever it is built.
    usize::BITS == 64 && missing().unwrap_or(true)
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

fn architecture(header: &[u8; HEADER], own: &Own) -> String {
    let bytes = [header[MACHINE], header[MACHINE + 1]];
    let machine = match header[ORDER] {
        2 => u16::from_be_bytes(bytes),
        _ => u16::from_le_bytes(bytes),
    };
    let name = match machine {
        3 => "32-bit x86".to_owned(),
        21 => "64-bit PowerPC".to_owned(),
        22 => "S/390".to_owned(),
        40 => "32-bit ARM".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "64-bit ARM".to_owned(),
        243 => "RISC-V".to_owned(),
        other => format!("another processor (ELF machine {other})"),
    };
    if machine != own.machine {
        return name;
    }
    match (header[CLASS] == own.class, header[CLASS]) {
        (true, _) => format!("{name} with another order of bytes"),
        (false, 1) => format!("{name} with 32-bit pointers"),
        (false, _) => format!("{name} with 64-bit pointers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It would be waited for, and no signal ends that.
    #[test]
    fn what_is_no_file_is_refused_before_it_is_opened() {
        let path = std::env::temp_dir().join(format!("trawl-elf-{}-fifo", std::process::id()));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        let why = check(&path).err().map(|(why, _)| why);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(why.as_deref(), Some("it is not a regular file"));
    }

    fn refusal(name: &str, change: impl Fn(&mut [u8])) -> Option<String> {
        let mut bytes = std::fs::read("/proc/self/exe").unwrap()[..64].to_vec();
        bytes[TYPE] = SHARED as u8;
        // No parts: these lie further down.
        bytes[PART_SIZE as usize + 2..][..2].fill(0);
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
        let same = refusal("same", |bytes| bytes[CLASS] = 1);
        assert!(same.unwrap().contains(" with 32-bit pointers, and trawl"));
        let order = refusal("order", |bytes| {
            bytes[ORDER] = 3 - bytes[ORDER];
            bytes.swap(MACHINE, MACHINE + 1);
        });
        assert!(order.unwrap().contains(" with another order of bytes"));
        let cut = refusal("cut", |bytes| bytes[PART_SIZE as usize + 2] = 3);
        assert!(cut.unwrap().starts_with("it is cut off"));
        let object = refusal("object", |bytes| bytes[TYPE] = 1);
        assert_eq!(object.as_deref(), Some("it is not a shared library"));
    }
}
