//! The fuzzer's expressions: its seeds, and arbitrary words.

use proptest::prelude::*;

use crate::exercise::expression;

#[test]
fn seeds_are_replayed() {
    trawl_io::libpcap::compile_filters();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/expression");
    let mut seeds = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        expression(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 4, "{seeds} seeds");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_words_are_compiled_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
        trawl_io::libpcap::compile_filters();
        expression(&bytes);
    }
}
