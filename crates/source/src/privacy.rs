//! The changes of `--anonymize` and `--headers`, the key, and the stage of a capture that makes them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use trawl_packet::anonymize::Addresses;
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::blocks;
use trawl_pipeline::{Blocks, Pressure, Stage, Writer};
use trawl_sys::{Error, Result};
use trawl_view::rewrite::Privacy;

/// Bytes of a key that are read: far more than a key needs.
const KEY_LIMIT: u64 = 64 << 10;

/// Returns the changes that were requested: packets cut to their headers, addresses replaced with the key in a file.
pub fn privacy(headers: bool, key: Option<&Path>) -> Result<Option<Privacy>> {
    let addresses = key.map(addresses).transpose()?;
    let is_wanted = headers || addresses.is_some();
    Ok(is_wanted.then(|| Privacy::new(headers, addresses)))
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

/// The stage that changes packets and blocks before all outputs of a capture.
#[derive(Debug)]
pub struct PrivacyStage {
    privacy: Privacy,
    /// Link types of the interface blocks.
    link_types: Vec<u16>,
    out: Vec<u8>,
}

impl PrivacyStage {
    pub fn new(privacy: Privacy) -> Self {
        Self { privacy, link_types: Vec::new(), out: Vec::new() }
    }
}

impl Stage for PrivacyStage {
    fn push(&mut self, written: Blocks<'_>, next: &mut dyn Writer) -> Result<Pressure> {
        if written.bytes().is_empty() {
            return next.write(written);
        }
        self.out.clear();
        for block in blocks(written.bytes()) {
            self.link_types.extend(Interface::from_block(&block).map(|interface| interface.link_type));
            let link_type = |id: u32| self.link_types.get(id as usize).copied().unwrap_or_default();
            self.privacy.append(&mut self.out, &block, link_type);
        }
        next.write(Blocks::Bytes(&self.out))
    }
}
