//! Names of objects that contain the hash of the object's bytes, so that a reader notices other bytes.

use trawl_spool::manifest::sha256;

/// Digits of a hash in a name.
const DIGITS: usize = 32;

fn digits(bytes: &[u8]) -> String {
    let mut hash = sha256(bytes);
    hash.truncate(DIGITS);
    hash
}

/// Returns the key of an object: the stem, its hash, and the ending, which begins with a point.
pub fn key(stem: &str, bytes: &[u8], ending: &str) -> String {
    format!("{stem}-{}{ending}", digits(bytes))
}

/// Returns false if an object's key contains the hash of other bytes.
pub fn may_be(key: &str, bytes: &[u8]) -> bool {
    let name = key.rsplit('/').next().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    let last = stem.rsplit('-').next().unwrap_or_default();
    let is_hash = last.len() == DIGITS && last.bytes().all(|byte| byte.is_ascii_hexdigit());
    !is_hash || last == digits(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_do_not_fit_the_key() {
        let key = key("index/a-1.5/17", b"rows", ".json.zst");
        assert!(key.starts_with("index/a-1.5/17-") && key.ends_with(".json.zst"));
        assert!(may_be(&key, b"rows"));
        assert!(!may_be(&key, b"row"));
        // Version 0.9 gave names without a hash.
        assert!(may_be("index/runs/all-1795818679000000000.json.zst", b"rows"));
    }
}
