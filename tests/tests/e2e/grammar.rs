//! The forms of iproute2 that commands accept, and the names of earlier versions.

use trawl_tests::Lab;
use trawl_tests::xdp::{CleanUp, fails, succeeds};

#[test]
fn commands_take_the_habits_of_iproute2() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    succeeds(&["xdp", "load", "dev", &place, "drop"]);
    let status = succeeds(&["xdp", "status", "-i", &place]);
    assert!(status.contains("loaded by trawl"), "{status}");
    for words in
        [&["xdp", "show", "dev", &place][..], &["xdp", "list", &place], &["xdp", "statu", "--interface", &place]]
    {
        assert_eq!(succeeds(words), status, "{words:?}");
    }
    fails(&["xdp", "sta", &place], 2, &["sta"]);
    succeeds(&["xdp", "unload", "dev", &place]);
    succeeds(&["guard", "load", "-i", &place]);
    let rules = succeeds(&["guard", "list", &place]);
    for words in [&["guard", "show", "dev", &place][..], &["guard", "status", &place]] {
        assert_eq!(succeeds(words), rules, "{words:?}");
    }
    succeeds(&["guard", "unload", "dev", &place]);
}

#[test]
fn former_names_are_understood() {
    for words in [&["clean", "--json"][..], &["doctor", "--clean", "--json"]] {
        let cleaned = succeeds(words);
        assert!(cleaned.contains("\"removed_labs\""), "{cleaned}");
    }
}
