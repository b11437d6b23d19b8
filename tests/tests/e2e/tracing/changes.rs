//! Programs that come and go while they are looked at.
