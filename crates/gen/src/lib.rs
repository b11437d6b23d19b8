//! The generator: what is sent, how fast, and by which engine; and the receiver that checks it.
