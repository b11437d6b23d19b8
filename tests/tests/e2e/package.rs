//! Files installed by `make install` and `make deb`, and their removal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use trawl_tests::{args, binary, root_or_skip, skip};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trawl-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory of the test's own");
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn is_there(tool: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {tool}")])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdout(Stdio::null())
        .status();
    let is_there = found.is_ok_and(|status| status.success());
    if !is_there {
        skip(&format!("{tool} is not installed"));
    }
    is_there
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let output: Output = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}:\n{out}{err}");
    out + &err
}

fn make(target: &str, destination: &str) {
    succeeds(
        Command::new("make")
            .args(["--no-print-directory", target])
            .arg(format!("DESTDIR={destination}"))
            .arg(format!("BINARY={}", binary::path().display()))
            .current_dir(repository()),
    );
}

fn files_below(directory: &str) -> Vec<String> {
    let list = succeeds(Command::new("find").args([directory, "-not", "-type", "d"]));
    list.lines().map(str::to_owned).collect()
}

#[test]
fn install_and_uninstall_leave_nothing() {
    let scratch = Scratch::new("install");
    let destination = scratch.file("root");
    make("install", &destination);
    let files = files_below(&destination);
    let has = |end: &str| files.iter().any(|file| file.ends_with(end));
    for end in args!(
        "/usr/local/bin/trawl /usr/local/bin/kubectl-trawl /usr/local/bin/kubectl-trawl-fleet /man1/kubectl-trawl.1 /man1/trawl-read.1 \
         /completions/trawl /_trawl /trawl.fish /trawl-serve.service /trawl-capture@.service \
         /trawl-guard@.service /trawl-keep@.service -linux-gnu/wireshark/extcap/trawl \
         /profiles/trawl/colorfilters /profiles/trawl/dfilter_buttons /profiles/trawl/recent -linux-gnu/wireshark/plugins/trawl.lua"
    ) {
        assert!(has(end), "{end} in {files:?}");
    }
    // These are the only folders that Wireshark reads for every user.
    for end in ["/extcap/trawl", "/plugins/trawl.lua", "/profiles/trawl/preferences"] {
        let file = files.iter().find(|file| file.ends_with(end));
        let below = file.and_then(|file| file.strip_prefix(&destination));
        let is_below = below.is_some_and(|path| !path.starts_with("/usr/local"));
        assert!(is_below, "{file:?}");
    }
    let unit = format!("{destination}/usr/local/lib/systemd/system/trawl-serve.service");
    let unit = std::fs::read_to_string(unit).expect("the unit");
    assert!(unit.contains("ExecStart=/usr/local/bin/trawl serve"), "{unit}");
    make("uninstall", &destination);
    assert_eq!(files_below(&destination), Vec::<String>::new());
}

/// systemd judges the units to be consistent, and the services to be restricted.
#[test]
fn units_are_judged_well_by_systemd() {
    if !is_there("systemd-analyze") {
        return;
    }
    let scratch = Scratch::new("units");
    let units = repository().join("packaging/systemd");
    for entry in std::fs::read_dir(units).expect("a part of the source").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(entry.path()).expect("a unit");
        let text = text.replace("/usr/bin/trawl", &binary::path().display().to_string());
        let file = scratch.file(&name.replace('@', "@eth0"));
        std::fs::write(&file, text).expect("a file");
        let said = succeeds(
            Command::new("systemd-analyze")
                .args(["verify", "--man=no", "--recursive-errors=no", &file])
                .env("SYSTEMD_LOG_LEVEL", "warning"),
        );
        // The command may complain about the machine's other units.
        assert!(!said.contains("trawl"), "{said}");
        // 0 is the safest, 10 the most exposed; the command fails above the threshold, here 4.0.
        succeeds(Command::new("systemd-analyze").args(["security", "--offline=true", "--threshold=40", &file]));
    }
}

fn package(directory: &str, version: &str) -> String {
    succeeds(
        Command::new(repository().join("scripts/deb"))
            .arg(directory)
            .env("BINARY", binary::path())
            .env("VERSION", version)
            .env("DPKG_DEB_COMPRESSOR_LEVEL", "0")
            .current_dir(repository()),
    );
    let architecture = succeeds(Command::new("dpkg").arg("--print-architecture"));
    format!("trawl_{version}_{}.deb", architecture.trim())
}

#[test]
#[ignore = "make test-long runs it"]
fn package_installs_runs_upgrades_and_is_removed() {
    if !root_or_skip() || !is_there("debootstrap") || !is_there("dpkg-deb") {
        return;
    }
    let scratch = Scratch::new("package");
    let root = scratch.file("root");
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    // A minimal system may lack the package's dependencies.
    let made = Command::new("debootstrap")
        .args(["--variant=minbase", "--include=libelf1,zlib1g,libpcap0.8"])
        .args([suite.unwrap_or("stable"), &root])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .expect("debootstrap runs");
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stdout);
        let last = said.lines().last().unwrap_or_default();
        skip(&format!("debootstrap cannot make a system: {last}"));
        return;
    }
    let packages = format!("{root}/tmp");
    let (first, later) = (package(&packages, "0.1.0~1"), package(&packages, "0.1.0~2"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/package.sh");
    let said = succeeds(
        Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh"])
            .arg(script)
            .args([&root, &first, &later]),
    );
    for step in ["installed", "ran", "upgraded", "removed", "purged"] {
        assert!(said.lines().any(|line| line == step), "{step}: {said}");
    }
    if is_there("lintian") {
        // Without this option, lintian warns if it runs as root.
        let judged = Command::new("lintian")
            .args(["--allow-root", "--fail-on", "error,warning"])
            .arg(format!("{packages}/{later}"))
            .output()
            .expect("lintian runs");
        let said = String::from_utf8_lossy(&judged.stdout).into_owned();
        assert!(judged.status.success(), "{said}");
    }
}

/// trawl stays small, because the store, the query engine and the experiments are in other programs.
#[test]
fn trawl_has_few_dependencies_and_a_small_binary() {
    const MAX_CRATES: usize = 130;
    const MAX_BYTES: u64 = 16_000_000;
    let words = "tree --locked --offline --package trawl --edges normal --prefix none --format {p}";
    let mut cargo = Command::new(env!("CARGO"));
    let tree = cargo.args(words.split(' ')).current_dir(repository());
    let Ok(tree) = tree.output() else {
        return skip("cargo is not installed");
    };
    assert!(tree.status.success(), "{tree:?}");
    let text = String::from_utf8_lossy(&tree.stdout);
    let crates: BTreeSet<&str> = text.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    if text.contains("object_store ") {
        let count = crates.len();
        return skip(&format!("{count} crates, since the store is still a part of trawl"));
    }
    assert!(crates.len() < MAX_CRATES, "{} crates", crates.len());
    let binary = binary::path().with_file_name("../release/trawl");
    if let Ok(about) = std::fs::metadata(binary) {
        assert!(about.len() < MAX_BYTES, "{} bytes", about.len());
    }
}
