//! Path of the binary under test.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Returns `TRAWL_BIN`, or the `trawl` built with this test.
pub fn path() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let found = std::env::var_os("TRAWL_BIN").map_or_else(next_to_this_test, PathBuf::from);
        assert!(
            found.is_file(),
            "there is no binary to test at {}: build it with `cargo build -p trawl`, or name one with TRAWL_BIN",
            found.display()
        );
        found
    })
}

/// Returns the path of `trawl` in the directory of the binaries: the parent of `deps`, which contains the tests.
fn next_to_this_test() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let directory = test.parent().and_then(Path::parent).expect("a target directory");
    directory.join("trawl")
}

/// Copies a program by another process. A descriptor of this one, open for writing, could be inherited by a process
/// that another test starts at the same moment; the kernel would refuse to run the copy.
pub fn copy(program: impl AsRef<Path>, to: impl AsRef<Path>) {
    let [program, to] = [program.as_ref(), to.as_ref()].map(Path::to_string_lossy);
    crate::witness::run("cp", &[&program, &to]);
}
