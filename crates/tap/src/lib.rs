//! Taps: where a packet is seen, one file each behind one trait; and the merge of what they saw.
