//! Compiles the BPF programs of /bpf and turns the headers they share with user space into Rust. A published crate contains
//! the results (scripts/package-crates), which need no clang.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The header that trawl shares with its helper for DPDK; those that it shares with BPF programs are in bpf/include.
const SHARED_WITH_DPDK: &str = "../dpdk/exchange.h";
/// The kernel's structures that programs read.
const KERNEL_TYPES: &str = "lib/kernel_types.h";

/// Directory of the results in a published crate, one for each architecture.
const PREBUILT: &str = "prebuilt";

fn main() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    println!("cargo:rerun-if-env-changed=CLANG");
    let prebuilt = package.join(PREBUILT);
    let is_published = prebuilt.is_dir();
    if is_published && env::var_os("CLANG").is_none() {
        println!("cargo:rerun-if-changed={PREBUILT}");
        return copy_files(&prebuilt.join(target()), Path::new(&out));
    }

    // A published crate also contains the sources, for those who set CLANG to compile them.
    let root = package.join(if is_published { "bpf" } else { "../../../bpf" });
    println!("cargo:rerun-if-changed={}", root.display());
    let (mut objects, mut shared) = (Vec::new(), vec![root.join(SHARED_WITH_DPDK)]);
    for source in files_of(&root) {
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        if let Some(stem) = name.strip_suffix(".bpf.c") {
            compile(&root, &source, &format!("{out}/{stem}.bpf.o"));
            objects.push(stem.to_owned());
        } else if source.parent().is_some_and(|folder| folder.ends_with("include")) {
            shared.push(source);
        }
    }
    assert!(!objects.is_empty(), "no BPF programs found in {}", root.display());
    objects.sort();
    fs::write(format!("{out}/objects.rs"), rust_of_objects(&objects)).expect("OUT_DIR can be written");

    let kernel = fs::read_to_string(root.join(KERNEL_TYPES)).expect("it is part of the source");
    fs::write(format!("{out}/kernel_types.rs"), names_of_structures(&kernel)).expect("OUT_DIR can be written");

    for header in shared {
        println!("cargo:rerun-if-changed={}", header.display());
        let name = header.file_stem().unwrap_or_default().to_string_lossy();
        let text =
            fs::read_to_string(&header).unwrap_or_else(|e| panic!("{} is part of the source: {e}", header.display()));
        fs::write(format!("{out}/{name}.rs"), rust_from_header(&text)).expect("OUT_DIR can be written");
    }
}

/// Returns the name of the target's architecture.
fn target() -> String {
    env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it")
}

fn copy_files(from: &Path, to: &Path) {
    let files = fs::read_dir(from);
    let files =
        files.unwrap_or_else(|e| panic!("no programs for this architecture, {}: {e}; set CLANG", from.display()));
    for file in files {
        let file = file.expect("a published crate can be read");
        fs::copy(file.path(), to.join(file.file_name())).expect("OUT_DIR can be written");
    }
}

/// Returns a static for each object, under the name of its source: a constant would be copied into each crate that uses
/// it.
fn rust_of_objects(stems: &[String]) -> String {
    let (mut rust, mut list) = (String::new(), String::new());
    for stem in stems {
        let name = stem.to_uppercase();
        let bytes = format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{stem}.bpf.o\"))");
        writeln!(rust, "/// The object of `{stem}.bpf.c`.\npub static {name}: &[u8] = {bytes};").expect("strings grow");
        write!(list, "({stem:?}, {name}), ").expect("strings grow");
    }
    format!("{rust}/// All objects, by the names of their sources.\npub static ALL: &[(&str, &[u8])] = &[{list}];\n")
}

/// Lists the files in the folders of bpf/.
fn files_of(root: &Path) -> Vec<PathBuf> {
    let list = |folder: &Path| {
        fs::read_dir(folder)
            .expect("bpf/ can be listed")
            .map(|entry| entry.expect("bpf/ can be listed").path())
            .collect::<Vec<_>>()
    };
    list(root).iter().filter(|path| path.is_dir()).flat_map(|folder| list(folder)).collect()
}

fn compile(root: &Path, source: &Path, object: &str) {
    let arch = match target().as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        "riscv64" => "riscv",
        other => panic!("trawl's BPF programs do not support the architecture {other}"),
    };
    let multiarch = Command::new("cc").arg("-print-multiarch").output();
    let multiarch = multiarch.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
    let root = root.display();
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys reports the location of its headers");
    let status = Command::new(clang())
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
        .args([
            format!("-D__TARGET_ARCH_{arch}"),
            format!("-I{root}"),
            format!("-I/usr/include/{multiarch}"),
            format!("-isystem{libbpf}"),
            // The same bytes wherever they are built.
            format!("-ffile-prefix-map={root}=bpf"),
            format!("-ffile-prefix-map={libbpf}=libbpf"),
            "-fdebug-compilation-dir=.".to_owned(),
        ])
        .arg("-c")
        .arg(source)
        .args(["-o", object])
        .status();
    match status {
        Ok(status) if status.success() => remove_unread(object),
        Ok(_) => panic!("{} did not compile", source.display()),
        Err(error) => {
            panic!("cannot run clang: {error}; install it (apt-get install clang-19) or set CLANG")
        }
    }
}

/// Empties the sections for debuggers and linkers, more than half of an object: libbpf reads BTF alone, and not its
/// relocations. All sections keep their numbers.
fn remove_unread(path: &str) {
    const SECTION: usize = 64;
    let object = fs::read(path).expect("clang has written it");
    let number = |at: usize, length: usize| {
        let bytes = object[at..at + length].iter().rev();
        bytes.fold(0, |high, byte| high << 8 | usize::from(*byte))
    };
    let (table, count, names) = (number(40, 8), number(60, 2), number(62, 2));
    let names = number(table + names * SECTION + 24, 8);
    let mut out = object[..64].to_vec();
    let mut headers = object[table..table + count * SECTION].to_vec();
    for (index, header) in headers.chunks_mut(SECTION).enumerate() {
        let at = table + index * SECTION;
        let (start, length) = (number(at + 24, 8), number(at + 32, 8));
        let name = &object[names + number(at, 4)..];
        let unread: [&[u8]; 3] = [b".debug_", b".rel.debug_", b".rel.BTF"];
        if unread.iter().any(|start| name.starts_with(start)) {
            header[4..8].fill(0);
            header[32..40].fill(0);
            continue;
        }
        out.resize(out.len().next_multiple_of(16), 0);
        header[24..32].copy_from_slice(&(out.len() as u64).to_le_bytes());
        // A section of zeros has no bytes in the file.
        if number(at + 4, 4) != 8 {
            out.extend(&object[start..start + length]);
        }
    }
    out.resize(out.len().next_multiple_of(16), 0);
    let table = out.len() as u64;
    out[40..48].copy_from_slice(&table.to_le_bytes());
    out.extend(headers);
    fs::write(path, out).expect("OUT_DIR can be written");
}

fn clang() -> String {
    env::var("CLANG").unwrap_or_else(|_| {
        let found = ["clang-19", "clang"].into_iter().find(|c| Command::new(c).arg("--version").output().is_ok());
        found.unwrap_or("clang-19").to_owned()
    })
}

fn names_of_structures(header: &str) -> String {
    let name = |line: &str| Some(line.strip_prefix("struct ")?.strip_suffix(" {")?.to_owned());
    let names: Vec<String> = header.lines().filter_map(name).collect();
    format!("pub const STRUCTURES: &[&str] = &{names:?};\n")
}

/// Translates a header of numeric `#define`s and structs of unsigned integers and earlier structs. It stops the build at
/// any other struct member, and Rust checks that there is no padding.
fn rust_from_header(text: &str) -> String {
    let mut rust = String::new();
    let mut inside: Option<(String, Vec<String>)> = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with("/*") || line.starts_with('*') {
            continue;
        }
        if let Some((name, value)) = line.strip_prefix("#define ").and_then(|d| d.split_once(' ')) {
            let value = value.trim_start_matches('(').trim_end_matches(')');
            writeln!(rust, "pub const {name}: usize = {value};").expect("strings grow");
        } else if let Some(name) = line.strip_prefix("struct ").and_then(|s| s.strip_suffix(" {")) {
            let name = camel_case(name);
            writeln!(rust, "#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct {name} {{").expect("strings grow");
            inside = Some((name, Vec::new()));
        } else if line == "};" {
            let (name, sizes) = inside.take().expect("a struct ends where one began");
            let sum = sizes.join(" + ");
            writeln!(
                rust,
                "}}\nconst _: () = assert!(size_of::<{name}>() == {sum});\n\
                 // SAFETY: integers alone, and the sum of their sizes is the whole, so there is no padding.\n\
                 unsafe impl crate::layout::Shared for {name} {{}}"
            )
            .expect("strings grow");
        } else if let Some((_, sizes)) = &mut inside
            && let Some(member) = line.strip_suffix(';')
        {
            let (field, kind) = rust_member(member);
            writeln!(rust, "    pub {field}: {kind},").expect("strings grow");
            sizes.push(format!("size_of::<{kind}>()"));
        }
    }
    rust
}

fn rust_member(member: &str) -> (String, String) {
    let (c_type, name) = member.rsplit_once(' ').unwrap_or_else(|| panic!("shared header: cannot read '{member}'"));
    let rust_type = match c_type {
        "__u8" | "__u16" | "__u32" | "__u64" => c_type[2..].to_owned(),
        other => match other.strip_prefix("struct ") {
            Some(name) => camel_case(name),
            None => panic!("shared header: '{other}' is not a type shared with Rust"),
        },
    };
    match name.split_once('[') {
        Some((name, count)) => (name.to_owned(), format!("[{rust_type}; {}]", count.trim_end_matches(']'))),
        None => (name.to_owned(), rust_type),
    }
}

fn camel_case(name: &str) -> String {
    name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}
