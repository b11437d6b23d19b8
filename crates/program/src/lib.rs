//! XDP programs as things to be seen, loaded, chained and made tappable, and the bundled ones.

pub mod rewrite;
