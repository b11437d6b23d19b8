//! Replays the fuzz targets' seeds, and inputs that a fuzzer once found, in the ordinary tests.

use std::path::Path;

#[path = "../../../../fuzz/exercise/capture.rs"]
mod capture;

fn replay(target: &str, run: impl Fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&root)
        .unwrap_or_else(|error| panic!("{}: {error}", root.display()))
        .map(|entry| entry.expect("a directory entry").path());
    let mut seeds = 0;
    for path in entries {
        let bytes = std::fs::read(&path).expect("read a seed");
        for cut in [bytes.len(), bytes.len() / 2, bytes.len().saturating_sub(1)] {
            run(&bytes[..cut]);
        }
        seeds += 1;
    }
    assert!(seeds > 0, "no seeds in {}", root.display());
}

#[test]
fn capture_files() {
    replay("capture_file", capture::capture_file);
}

#[test]
fn blocks() {
    replay("blocks", capture::blocks);
}

#[test]
fn printer() {
    replay("printer", capture::packet);
}

#[test]
fn compressed_files() {
    // The files are short enough to try every length.
    let every_cut = |bytes: &[u8]| {
        (0..=bytes.len()).for_each(|cut| capture::compressed_file(&bytes[..cut]));
        (0..bytes.len()).for_each(|from| capture::compressed_file(&bytes[from..]));
        for at in (0..bytes.len()).step_by(5) {
            let mut changed = bytes.to_vec();
            changed[at] ^= 0xff;
            capture::compressed_file(&changed);
        }
    };
    replay("compressed", every_cut);
}
