//! Compiles the BPF programs of tests/programs and tests/objects, which the tests load like a user's own.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-env-changed=CLANG");
    // Loadable programs, and objects for the error cases of loading.
    write_list("programs", "PROGRAMS");
    write_list("objects", "OBJECTS");
}

fn write_list(directory: &str, constant: &str) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    println!("cargo:rerun-if-changed={}", sources.display());
    let mut names: Vec<String> = fs::read_dir(&sources)
        .unwrap_or_else(|e| panic!("{} is part of the source: {e}", sources.display()))
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            Some(name.strip_suffix(".bpf.c")?.to_owned())
        })
        .collect();
    names.sort();
    let mut list = format!("pub const {constant}: &[(&str, &[u8])] = &[\n");
    for name in &names {
        let object = format!("{out}/{name}.bpf.o");
        compile(&sources.join(format!("{name}.bpf.c")), &object);
        writeln!(list, "    ({name:?}, include_bytes!({object:?})),").expect("strings grow");
    }
    list.push_str("];\n");
    fs::write(format!("{out}/{directory}.rs"), list).expect("OUT_DIR can be written");
}

fn compile(source: &Path, object: &str) {
    let multiarch = Command::new("cc").arg("-print-multiarch").output();
    let multiarch = multiarch.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let newest = source.ends_with("newest.bpf.c");
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-target", "bpf", if newest { "-mcpu=v4" } else { "-mcpu=v3" }])
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(format!("-I/usr/include/{multiarch}"))
        .arg("-isystem")
        .arg(env::var("DEP_BPF_INCLUDE").expect("libbpf-sys names the directory of its headers"))
        .arg("-c")
        .arg(source)
        .args(["-o", object])
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(_) => panic!("{} did not compile", source.display()),
        Err(error) => panic!("cannot run {clang}: {error}; install it or set CLANG"),
    }
}
