//! For the fuzzer and its seeds: template files of any text.

use super::Template;
use crate::traffic::Limits;

/// Frames that are looked at of each template.
const FRAMES: u64 = 40;

/// What is understood makes frames that a device would take; what is not is refused with a place in the file.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let limits = Limits {
        mtu: Some(1500),
        seed: 1,
        stamp: None,
    };
    let made = Template::parse("a file".to_owned(), text.to_owned())
        .and_then(|template| template.pattern(&limits));
    match made {
        Ok(pattern) => {
            for number in (0..FRAMES).chain([u64::from(u32::MAX), u64::MAX - 1]) {
                let length = pattern.frame(number).len();
                assert!((14..=pattern.longest()).contains(&length), "{text}");
            }
        }
        Err(error) => assert!(error.to_string().starts_with("a file:"), "{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds() -> Vec<Vec<u8>> {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/template");
        let entries = std::fs::read_dir(root).expect("the seeds are part of the source");
        let seeds: Vec<Vec<u8>> = entries
            .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a seed"))
            .collect();
        assert!(!seeds.is_empty());
        seeds
    }

    /// The fuzzer's seeds, and whatever it once found: whole, and cut anywhere.
    #[test]
    fn seeds_are_taken_or_refused() {
        for seed in seeds() {
            file(&seed);
            (0..seed.len())
                .step_by(3)
                .for_each(|cut| file(&seed[..cut]));
        }
    }

    /// Each line is left out, and each is there twice.
    #[test]
    fn lines_may_be_missing_or_there_twice() {
        for seed in seeds() {
            let text = String::from_utf8(seed).expect("text");
            let lines: Vec<&str> = text.lines().collect();
            for at in 0..lines.len() {
                file(
                    [&lines[..at], &lines[at + 1..]]
                        .concat()
                        .join("\n")
                        .as_bytes(),
                );
                file([&lines[..=at], &lines[at..]].concat().join("\n").as_bytes());
            }
        }
    }
}
