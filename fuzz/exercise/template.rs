//! The generator's template files, from any text.

use trawl_gen::template::Template;
use trawl_gen::traffic::Limits;

/// Number of frames of each template that are checked.
const FRAMES: u64 = 40;

/// Parses a template. An accepted template makes valid frames, and the error of a refused one has its position in the
/// file.
pub fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let limits = Limits { mtu: Some(1500), seed: 1, stamp: None };
    let made = Template::parse("a file".to_owned(), text.to_owned()).and_then(|template| template.pattern(&limits));
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
