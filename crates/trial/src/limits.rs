//! Functions of the kernel whose results a trial cannot reproduce, found in a program's instructions.

use trawl_ebpf::{Insn, helper, op, starts};

/// Beginnings of the names of functions that look up connections, flow tables and tunnels.
const CONNECTIONS: [&str; 4] = ["bpf_xdp_ct_", "bpf_ct_", "bpf_xdp_flow_", "bpf_xdp_get_xfrm_"];

/// Returns a note for each function that a program calls whose results depend on the host, as sentences without a full
/// stop.
pub(crate) fn of_helpers(program: &[Insn]) -> Vec<String> {
    let is_call = |one: &Insn| one.code == op::CALL_CODE && one.src() == 0;
    let calls = starts(program).map(|at| program[at]).filter(is_call);
    calls.filter_map(|call| of_helper(call.imm)).map(str::to_owned).collect()
}

fn of_helper(number: i32) -> Option<&'static str> {
    match number {
        helper::FIB_LOOKUP => Some("bpf_fib_lookup finds the routes and neighbours of the test's own namespace"),
        helper::CHECK_MTU => Some("bpf_check_mtu finds the interfaces of the test's own namespace"),
        helper::SK_LOOKUP_TCP | helper::SK_LOOKUP_UDP | helper::SKC_LOOKUP_TCP => {
            Some("lookups of sockets search the test's own namespace")
        }
        helper::PERF_EVENT_OUTPUT => Some("bpf_perf_event_output fails, because nobody reads its events"),
        helper::TIMER_START => Some("timers run by the real clock"),
        _ => None,
    }
}

/// Returns a note for each function of the kernel's modules (kfunc) whose results depend on the host.
pub(crate) fn of_kernel_functions(names: &[String]) -> Vec<String> {
    let is_about_connections = |name: &&String| CONNECTIONS.iter().any(|start| name.starts_with(start));
    let notes = names.iter().filter(is_about_connections);
    notes.map(|name| format!("{name} finds the connections and tunnels of the test's own namespace")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_notes() {
        let program = [op::call(helper::FIB_LOOKUP), op::call(helper::KTIME_GET_NS), op::exit()];
        assert_eq!(of_helpers(&program).len(), 1);
        let names = ["bpf_xdp_ct_lookup", "bpf_xdp_metadata_rx_hash"].map(str::to_owned);
        assert_eq!(
            of_kernel_functions(&names),
            ["bpf_xdp_ct_lookup finds the connections and tunnels of the test's own namespace"]
        );
    }
}
