//! The fuzzer's template files: whole, cut anywhere, and with lines missing or duplicated.

#[path = "../../../../fuzz/exercise/template.rs"]
mod exercise;

fn seeds() -> Vec<Vec<u8>> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/template");
    let entries = std::fs::read_dir(root).expect("the seeds are part of the source");
    let seeds: Vec<Vec<u8>> =
        entries.map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a seed")).collect();
    assert!(!seeds.is_empty());
    seeds
}

/// The fuzzer's seeds, and its former findings: whole, and cut anywhere.
#[test]
fn seeds_are_accepted_or_refused() {
    for seed in seeds() {
        exercise::file(&seed);
        (0..seed.len()).step_by(3).for_each(|cut| exercise::file(&seed[..cut]));
    }
}

/// Each line is omitted, and each is duplicated.
#[test]
fn missing_and_duplicate_lines_are_handled() {
    for seed in seeds() {
        let text = String::from_utf8(seed).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        for at in 0..lines.len() {
            exercise::file([&lines[..at], &lines[at + 1..]].concat().join("\n").as_bytes());
            exercise::file([&lines[..=at], &lines[at..]].concat().join("\n").as_bytes());
        }
    }
}
