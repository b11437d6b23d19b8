//! Kernel helper functions that trawl's instructions call, or whose calls trawl replaces.
#![allow(missing_docs)]

pub const MAP_LOOKUP_ELEM: i32 = 1;
pub const PROBE_READ: i32 = 4;
pub const KTIME_GET_NS: i32 = 5;
pub const GET_PRANDOM_U32: i32 = 7;
pub const GET_SMP_PROCESSOR_ID: i32 = 8;
/// Does not return on success.
pub const TAIL_CALL: i32 = 12;
pub const REDIRECT: i32 = 23;
pub const PERF_EVENT_OUTPUT: i32 = 25;
pub const SKB_LOAD_BYTES: i32 = 26;
pub const PROBE_READ_STR: i32 = 45;
pub const REDIRECT_MAP: i32 = 51;
pub const XDP_ADJUST_META: i32 = 54;
pub const FIB_LOOKUP: i32 = 69;
pub const SK_LOOKUP_TCP: i32 = 84;
pub const SK_LOOKUP_UDP: i32 = 85;
pub const SKC_LOOKUP_TCP: i32 = 99;
pub const PROBE_READ_USER: i32 = 112;
pub const PROBE_READ_KERNEL: i32 = 113;
pub const PROBE_READ_KERNEL_STR: i32 = 115;
pub const JIFFIES64: i32 = 118;
pub const KTIME_GET_BOOT_NS: i32 = 125;
pub const KTIME_GET_COARSE_NS: i32 = 160;
pub const SOCK_FROM_FILE: i32 = 162;
pub const CHECK_MTU: i32 = 163;
pub const TIMER_START: i32 = 171;
pub const LOOP: i32 = 181;
pub const XDP_GET_BUFF_LEN: i32 = 188;
pub const XDP_LOAD_BYTES: i32 = 189;
pub const KTIME_GET_TAI_NS: i32 = 208;

pub(crate) fn name(id: i32) -> &'static str {
    match id {
        MAP_LOOKUP_ELEM => "bpf_map_lookup_elem",
        GET_PRANDOM_U32 => "bpf_get_prandom_u32",
        GET_SMP_PROCESSOR_ID => "bpf_get_smp_processor_id",
        TAIL_CALL => "bpf_tail_call",
        SKB_LOAD_BYTES => "bpf_skb_load_bytes",
        SOCK_FROM_FILE => "bpf_sock_from_file",
        LOOP => "bpf_loop",
        XDP_GET_BUFF_LEN => "bpf_xdp_get_buff_len",
        XDP_LOAD_BYTES => "bpf_xdp_load_bytes",
        KTIME_GET_TAI_NS => "bpf_ktime_get_tai_ns",
        _ => "unknown",
    }
}
