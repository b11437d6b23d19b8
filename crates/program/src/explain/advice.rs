//! What a program's author can do about a refusal: the verifier's messages say what it met, seldom what it wants.

/// What the verifier says, and what helps. The first that fits counts.
const VERIFIER: &[(&[&str], &str)] = &[
    (
        &["GPL-restricted", "GPL compatible"],
        "say in its source: char LICENSE[] SEC(\"license\") = \"GPL\";",
    ),
    (
        // libbpf puts this number in the place of a relocation that it cannot resolve.
        &["unknown#195896080"],
        "this line asks for a type, a field or a value that this kernel does not have: ask before, by \
         bpf_core_field_exists() or bpf_core_type_exists()",
    ),
    (
        // And such numbers in the place of weak functions that the kernel does not have.
        &["unknown#2002"],
        "this line calls a function that this kernel does not have, or has with other arguments than declared here \
         (vmlinux.h declares it as it is): ask before, by bpf_ksym_exists()",
    ),
    (
        &["missing btf func_info", "BTF is required"],
        "compile it with -g: the verifier needs its types here",
    ),
    (
        &["args while"],
        "what stands in a dispatcher has the packet's context as its only argument, used or not: \
         int program(struct xdp_md *context)",
    ),
    (
        &["device-bound program"],
        "it asks the device for what that knows of a packet, which only a program that was loaded for one device may, and \
         such a program cannot be loaded here: bpftool prog load FILE.o PIN type xdp xdpmeta_dev IF, then bpftool net attach xdp pinned PIN \
         dev IF",
    ),
    (
        &["access to packet", "outside of the packet"],
        "compare with the packet's end before this line: if (pointer + length > data_end) return XDP_PASS; a helper that \
         moves the packet's ends makes earlier checks void",
    ),
    (
        &["_or_null'", "or_null_'", "possibly null pointer"],
        "a look-up may find nothing: compare the pointer with NULL before this line",
    ),
    (
        &["invalid bpf_context access", "dereference of modified ctx"],
        "an XDP program can read the fields of struct xdp_md, each by its own name, and write none of them",
    ),
    (
        &["invalid mem access 'scalar'", "invalid mem access 'inv'"],
        "this is no pointer any more: one into the packet ends with a helper that moves the packet's ends (read ctx->data \
         again), others with arithmetic that the verifier cannot follow",
    ),
    (
        &[
            "access to map value",
            "outside of the allowed memory range",
            "unbounded memory access",
            "min value is negative",
            "math between",
            "zero-sized read",
            "invalid zero size",
        ],
        "the verifier does not know the number's limits: make them plain before this line, as in if (n < 1 || n > MAX) \
         return XDP_PASS; or n &= MASK;",
    ),
    (
        &[
            "infinite loop",
            "jumps is too complex",
            "program is too large",
            "back-edge",
        ],
        "the verifier goes through each round of a loop, a million instructions at most: give the loop a constant limit \
         that is small enough, or let bpf_loop() make the rounds",
    ),
    (
        &[
            "combined stack size",
            "stack size of",
            "invalid write to stack",
            "call stack of previous frames",
        ],
        "a program has 512 bytes of stack, with the functions that it is in the middle of calling: keep what is large in \
         a per-CPU array",
    ),
    (
        &["frames is too deep", "recursive call"],
        "functions call each other at most eight deep, and never themselves",
    ),
    (
        &["Unreleased reference", "reference leak"],
        "give back on every way out what was taken: bpf_ringbuf_submit() or bpf_ringbuf_discard(), bpf_sk_release(), …",
    ),
    (
        &["spin_lock", "spin_unlock", "holding a lock"],
        "call bpf_spin_unlock() on every way out, and nothing but arithmetic before it",
    ),
    (
        &[
            "unknown func",
            "invalid func",
            "cannot use helper",
            "program of this type",
        ],
        "this kernel has no such function for XDP programs: uname -r tells its version, and bpftool feature probe the \
         functions that each kind of program can call",
    ),
    (
        &["R0 !read_ok", "At program exit"],
        "each way out of the program needs a verdict: return XDP_PASS;",
    ),
    (
        &[
            "!read_ok",
            "invalid read from stack",
            "invalid indirect read",
            "read from stack",
        ],
        "it is read before anything was put there: set it first (struct key key = {};)",
    ),
    (
        &["pointer arithmetic", "arithmetic on"],
        "only a number with known limits can be added to or taken from a pointer",
    ),
    (
        &["expected=fp", "expected=map_"],
        "this argument has to be a pointer to memory: the address of a variable on the stack, or a map's value",
    ),
    (
        &["unreachable insn"],
        "instructions that no way leads to are not allowed: take them out",
    ),
];

/// Errors by which the kernel refuses a map, as libbpf writes them.
const MAP: &[(&str, &str)] = &[
    (
        "E2BIG",
        "a map of that size is more than the kernel makes: fewer entries, or smaller ones",
    ),
    (
        "ENOMEM",
        "there is not enough memory for it: fewer entries, or map_flags BPF_F_NO_PREALLOC for a hash",
    ),
    (
        "EPERM",
        "on kernels before 5.11 it counts as locked memory: ulimit -l unlimited; on newer ones it requires root",
    ),
    (
        "EINVAL",
        "the kernel does not take a map of that type with such keys, values, flags or number of entries: an array has keys \
         of 4 bytes, every map but rings of events some entries, a ring buffer a power of two of whole pages",
    ),
];

/// What helps against what the verifier says.
pub fn on_verifier(reason: &str) -> Option<&'static str> {
    let fits = |words: &&[&str]| words.iter().any(|word| reason.contains(word));
    let found = VERIFIER.iter().find(|(words, _)| fits(words));
    found.map(|(_, advice)| *advice)
}

/// What helps against what libbpf says.
pub fn on_libbpf(says: &str) -> Option<&'static str> {
    if says.contains("failed to create") {
        let found = MAP.iter().find(|(errno, _)| says.contains(errno));
        return found.map(|(_, advice)| *advice);
    }
    if says.contains("failed to find BTF for extern") {
        return Some("compile it with -g");
    }
    if says.contains("not found in kernel or module BTFs") || says.contains("not resolved") {
        return Some(
            "this kernel does not have it: declare it __weak, and ask for it before it is used (bpf_ksym_exists())",
        );
    }
    if says.contains("failed to open system Kconfig") {
        return Some(
            "it asks how the kernel was configured, which is read from /proc/config.gz or /boot/config-$(uname -r)",
        );
    }
    says.contains("incompatible with vmlinux").then_some(
        "this kernel has a function of that name with other arguments: declare it as vmlinux.h does (bpftool btf dump \
         file /sys/kernel/btf/vmlinux format c)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_first_counts() {
        let advice = |reason| on_verifier(reason).unwrap_or_default();
        assert!(advice("R0 !read_ok").contains("verdict"));
        assert!(advice("R3 !read_ok").contains("set it first"));
        assert!(advice("R0 invalid mem access 'map_value_or_null'").contains("NULL"));
        assert!(advice("R6 invalid mem access 'scalar'").contains("ctx->data"));
        let sum =
            "math between map_value pointer and register with unbounded min value is not allowed";
        assert!(advice(sum).contains("n &= MASK"));
        assert!(advice("unknown func bpf_nothing#999").contains("no such function"));
        let bound = "metadata kfuncs require device-bound program";
        assert!(advice(bound).contains("xdpmeta_dev"));
        assert!(
            advice("own() has 0 args while xdp_dispatcher() has 1 args")
                .contains("xdp_md *context")
        );
        assert_eq!(on_verifier("something that nobody has met"), None);
    }

    #[test]
    fn maps_are_told_by_the_error() {
        let advice = |says| on_libbpf(says).unwrap_or_default();
        assert!(advice("map 'a': failed to create: -E2BIG").contains("size"));
        assert!(advice("map 'a': failed to create: -ENOMEM").contains("memory"));
        assert_eq!(on_libbpf("map 'a': failed to create: -EIO"), None);
    }
}
