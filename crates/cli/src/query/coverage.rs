//! Says what an answer does not cover, before the answer.

use trawl_store::Coverage;

use crate::json::{self, Remark};
use trawl_view::text;

pub(super) fn say(rows: &[Coverage], url: &str) {
    for row in rows.iter().filter(|row| !row.is_whole()) {
        let text = format!("not covered: {}", words(row, url));
        json::say(&Remark::NotCovered(row), &text);
    }
    if rows.is_empty() {
        let text = "nothing is stored for these hosts and times";
        json::say(&Remark::NothingStored, text);
    }
}

fn words(row: &Coverage, url: &str) -> String {
    let mut parts = Vec::new();
    let mut count = |number: u64, words: &str| {
        if number > 0 {
            parts.push(format!("{number} {words}"));
        }
    };
    count(row.unknown, "packets unknown");
    count(row.gaps_of_unknown_size, "gaps of unknown size");
    count(row.evicted, "packets evicted");
    count(row.spooled, "packets in the spool, not stored yet");
    count(
        row.runs_without_end,
        "runs without an end, whose last packets are unknown",
    );
    if row.not_indexed_chunks > 0 {
        parts.push(format!(
            "{} in {} not indexed (trawl index {url})",
            text::count(row.not_indexed, "packet"),
            text::count(row.not_indexed_chunks, "chunk")
        ));
    }
    format!("host {}: {}", row.host, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_named() {
        let row = Coverage {
            host: "a".to_owned(),
            indexed: 10,
            unknown: 3,
            not_indexed: 7,
            not_indexed_chunks: 2,
            ..Coverage::default()
        };
        assert!(!row.is_whole());
        assert_eq!(
            words(&row, "file:///s"),
            "host a: 3 packets unknown, 7 packets in 2 chunks not indexed (trawl index file:///s)"
        );
    }
}
