//! Changes to replayed frames, on arbitrary bytes.

use trawl_gen::replay::rewrite::{Rewrite, TagChange};

/// Applies every change to an arbitrary frame. The first byte selects the change of its tag.
pub fn exercise(bytes: &[u8]) {
    let Some((choice, frame)) = bytes.split_first() else {
        return;
    };
    let prefix = |old: &str, new: &str| Some((old.parse().ok()?, new.parse().ok()?));
    let prefixes = [prefix("0.0.0.0/1", "10.0.0.0/8"), prefix("::/0", "fd00::/64")];
    let rewrite = Rewrite {
        source_mac: Some([2; 6]),
        macs: vec![([0xff; 6], [4; 6])],
        destination_v4: Some([192, 0, 2, 1].into()),
        prefixes: prefixes.into_iter().flatten().collect(),
        tag: match choice % 3 {
            0 => None,
            1 => Some(TagChange::Remove),
            _ => Some(TagChange::Set(u16::from(*choice))),
        },
        tags: vec![(0, 1)],
        ..Rewrite::default()
    };
    let mut room = frame.to_vec();
    room.resize(frame.len() + rewrite.growth(), 0);
    let length = rewrite.apply(&mut room, frame.len());
    assert!(length <= room.len() && length + 4 >= frame.len());
}
