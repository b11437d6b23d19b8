//! Filter expressions: text to classic BPF to eBPF instructions. No root, no loading.
