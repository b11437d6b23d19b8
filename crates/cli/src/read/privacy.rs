//! `--anonymize` and `--headers`: the key, and the report on what was left out.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::json;
use trawl_packet::anonymize::Addresses;
use trawl_sys::{Error, Result};
use trawl_view::rewrite::{LeftOut, Privacy};

use super::args::Request;
use crate::json;

/// Bytes of a key that are read: far more than a key needs.
const KEY_LIMIT: u64 = 64 << 10;

/// Returns the changes that were requested.
pub(super) fn of(request: &Request) -> Result<Option<Privacy>> {
    let addresses = request.anonymize.as_deref().map(addresses).transpose()?;
    let is_wanted = request.headers || addresses.is_some();
    Ok(is_wanted.then(|| Privacy::new(request.headers, addresses)))
}

fn addresses(path: &Path) -> Result<Addresses> {
    let name = path.display();
    let fail = |e| Error::os(format!("cannot read the key {name}"), e);
    let fix = format!("make a key with: openssl rand -hex 32 > {name}");
    let file = File::open(path).map_err(|e| fail(e).fix(fix.clone()))?;
    let mut key = Vec::new();
    file.take(KEY_LIMIT).read_to_end(&mut key).map_err(fail)?;
    Addresses::new(&key).map_err(|e| Error::failed(format!("cannot use the key {name}"), e).fix(fix))
}

/// Reports what was left out besides payload.
pub(super) fn report(left_out: LeftOut) {
    let LeftOut { contents, comments, blocks } = left_out;
    let counted = |count: u64, one: &str, more: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{count} {more}")),
    };
    let parts: Vec<String> = [
        counted(
            contents,
            "packet's contents after the link header, which trawl does not know",
            "packets' contents after the link header, which trawl does not know",
        ),
        counted(comments, "comment", "comments"),
        counted(blocks, "block's contents, which trawl does not know", "blocks' contents, which trawl does not know"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !parts.is_empty() {
        json::say(
            "left_out_for_privacy",
            json!({ "packets": contents, "comments": comments, "blocks": blocks }),
            &format!("left out for privacy: {}", parts.join("; ")),
        );
    }
}
