//! What this kernel and these privileges allow, found out by trying.

pub mod insn;

use std::sync::OnceLock;

use insn::{Insn, Program};

/// Whether XDP programs may read the wall clock: `bpf_ktime_get_tai_ns`, since 6.1.
pub fn has_tai_helper() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let code = [
            Insn::call(libbpf_sys::BPF_FUNC_ktime_get_tai_ns),
            Insn::set(0, 2),
            Insn::exit(),
        ];
        Program::new(libbpf_sys::BPF_PROG_TYPE_XDP, &code)
            .load("trawl_probe")
            .is_ok()
    })
}
