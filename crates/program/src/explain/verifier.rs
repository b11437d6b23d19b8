//! Condenses the verifier's log, which often has thousands of lines, to the reason of a refusal, and the source line
//! and the instruction that it is about.

use std::fmt;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    /// The source line that the refusal is about, if the log has it.
    source: Option<String>,
    /// The instruction that the refusal is about, if the log has it.
    instruction: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        if let Some(source) = &self.source {
            write!(f, ", at {source}")?;
        }
        match &self.instruction {
            Some(instruction) => write!(f, ", instruction {instruction}"),
            None => Ok(()),
        }
    }
}

/// Extracts the refusal from a log; `None` if it contains none.
pub fn condense(log: &str) -> Option<Refusal> {
    let lines: Vec<&str> = log.lines().flat_map(apart).filter(|line| !is_bookkeeping(line)).collect();
    let at = lines.iter().rposition(|line| !is_state(line))?;
    // A message may span several lines: the last ones that are neither code nor state.
    let first = lines[..=at].iter().rposition(|line| is_state(line)).map_or(0, |before| before + 1);
    let reason = lines[first..=at].iter().map(|line| line.trim()).collect::<Vec<_>>().join("; ");
    let before = &lines[..first];
    let instruction = before.iter().rev().find(|line| is_instruction(line));
    Some(Refusal {
        reason,
        source: before.iter().rev().find_map(|line| source_line(line)),
        instruction: instruction.map(|line| without_state(line).to_owned()),
    })
}

/// Splits a message from an instruction: after a jump the kernel does not always begin a new line.
fn apart(line: &str) -> impl Iterator<Item = &str> {
    let at = end_of_jump(line).unwrap_or(line.len());
    let (instruction, rest) = line.split_at(at);
    // Registers are listed after a semicolon.
    let (instruction, message) =
        if rest.trim_start().starts_with(';') { (line, "") } else { (instruction, rest.trim()) };
    [instruction, message].into_iter().filter(|part| !part.is_empty())
}

/// Returns the end of a jump that is an instruction's last part: `12: (55) if r1 != 0x3 goto pc-5`
fn end_of_jump(line: &str) -> Option<usize> {
    const TARGET: &str = "goto pc";
    let at = is_instruction(line).then(|| line.find(TARGET))?? + TARGET.len();
    let rest = line[at..].strip_prefix(['+', '-'])?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    Some(at + 1 + digits)
}

/// Parses `; int x = data[4]; @ prog.c:12`; older kernels leave out the file and line.
fn source_line(line: &str) -> Option<String> {
    let line = line.strip_prefix("; ")?;
    Some(match line.rsplit_once(" @ ") {
        Some((code, position)) => format!("{position} '{}'", code.trim()),
        None => format!("the line '{}'", line.trim()),
    })
}

/// Matches `12: (71) r1 = *(u8 *)(r2 +0)`.
fn is_instruction(line: &str) -> bool {
    line.split_once(": (").is_some_and(|(number, rest)| {
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && rest.as_bytes().get(2) == Some(&b')')
    })
}

/// Removes an instruction's registers, which are listed after a semicolon.
fn without_state(line: &str) -> &str {
    line.split(" ; ").next().unwrap_or(line).trim()
}

/// Returns true for lines about the verifier's progress rather than its findings.
fn is_state(line: &str) -> bool {
    let line = line.trim_start();
    let begins_with_number = || {
        line.split_once(':').is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    let begins = |phrases: &[&str]| phrases.iter().any(|phrase| line.starts_with(phrase));
    line.starts_with("; ")
        || begins_with_number()
        || begins(&[
            "from ",
            "caller:",
            "cur state:",
            "old state:",
            "callee:",
            "returning from callee:",
            "to caller at ",
            "last_idx",
            "regs=",
            "mark_precise",
            "parent ",
            "R0=",
            "R0_",
            "Func#",
            "func#",
            "Validating ",
            "arg#",
            "reg type unsupported",
            "frame1:",
            "propagating",
        ])
        || is_register_dump(line)
}

/// Matches ` R1=ctx(off=0,imm=0) R10=fp0`, also with `_w` and the like after the number.
fn is_register_dump(line: &str) -> bool {
    let Some(rest) = line.strip_prefix('R') else {
        return false;
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && rest[digits..].starts_with(['=', '_'])
}

/// Returns true for statistics at the log's end.
fn is_bookkeeping(line: &str) -> bool {
    let begins = |phrases: &[&str]| phrases.iter().any(|phrase| line.starts_with(phrase));
    line.trim().is_empty() || begins(&["processed ", "verification time", "stack depth", "max_states", "insns_state"])
}

/// Texts in the verifier's message, and the advice for them. The first match counts.
const VERIFIER: &[(&[&str], &str)] = &[
    (&["GPL-restricted", "GPL compatible"], "say in its source: char LICENSE[] SEC(\"license\") = \"GPL\";"),
    (
        // libbpf writes this number for a relocation that it cannot resolve.
        &["unknown#195896080"],
        "this kernel lacks a type, a field or a value that the line uses: check first with \
         bpf_core_field_exists() or bpf_core_type_exists()",
    ),
    (
        // Weak functions that the kernel lacks become such numbers.
        &["unknown#2002"],
        "this kernel lacks a function that the line calls, or has it with other arguments (see vmlinux.h): check first \
         with bpf_ksym_exists()",
    ),
    (&["missing btf func_info", "BTF is required"], "compile it with -g: the verifier needs its types here"),
    (
        &["args while"],
        "a program in a dispatcher must take exactly one argument, the context: int program(struct xdp_md *context)",
    ),
    (
        &["device-bound program"],
        "the program reads metadata of the device, which requires a program loaded for that device; bpftool loads one: \
         bpftool prog load FILE.o PIN type xdp xdpmeta_dev IF, then bpftool net attach xdp pinned PIN \
         dev IF",
    ),
    (
        &["access to packet", "outside of the packet"],
        "compare with the packet's end before this line: if (pointer + length > data_end) return XDP_PASS; a helper that \
         resizes the packet invalidates earlier checks",
    ),
    (
        &["_or_null'", "or_null_'", "possibly null pointer"],
        "a lookup may find nothing: compare the pointer with NULL before this line",
    ),
    (
        &["invalid bpf_context access", "dereference of modified ctx"],
        "an XDP program can read the fields of struct xdp_md, each by its own name, and write none of them",
    ),
    (
        &["invalid mem access 'scalar'", "invalid mem access 'inv'"],
        "the pointer is invalid: a helper that resizes the packet invalidates packet pointers (read ctx->data again), and so \
         does arithmetic that the verifier cannot follow",
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
        "the verifier does not know the number's limits: check them before this line, as in if (n < 1 || n > MAX) \
         return XDP_PASS; or n &= MASK;",
    ),
    (
        &["infinite loop", "jumps is too complex", "program is too large", "back-edge"],
        "the verifier follows every iteration of a loop, a million instructions at most: give the loop a smaller constant \
         limit, or use bpf_loop()",
    ),
    (
        &["combined stack size", "stack size of", "invalid write to stack", "call stack of previous frames"],
        "a program and the functions that it calls share 512 bytes of stack: keep large data in a per-CPU array",
    ),
    (&["frames is too deep", "recursive call"], "functions call each other at most eight deep, and never themselves"),
    (
        &["Unreleased reference", "reference leak"],
        "release acquired resources on every path: bpf_ringbuf_submit() or bpf_ringbuf_discard(), bpf_sk_release(), …",
    ),
    (
        &["spin_lock", "spin_unlock", "holding a lock"],
        "call bpf_spin_unlock() on every path, and nothing but arithmetic before it",
    ),
    (
        &["unknown func", "invalid func", "cannot use helper", "program of this type"],
        "this kernel has no such function for XDP programs: uname -r shows its version, and bpftool feature probe \
         lists the functions that each type of program can call",
    ),
    (&["R0 !read_ok", "At program exit"], "each path out of the program needs a verdict: return XDP_PASS;"),
    (
        &["!read_ok", "invalid read from stack", "invalid indirect read", "read from stack"],
        "the register or the stack is read before it is written: set it first (struct key key = {};)",
    ),
    (
        &["pointer arithmetic", "arithmetic on"],
        "only a number with known limits can be added to or subtracted from a pointer",
    ),
    (
        &["expected=fp", "expected=map_"],
        "this argument has to be a pointer to memory: the address of a variable on the stack, or a map's value",
    ),
    (&["unreachable insn"], "unreachable instructions are not allowed: remove them"),
];

/// libbpf's names of the errors by which the kernel refuses a map, and the advice for them.
const MAP: &[(&[&str], &str)] = &[
    (&["E2BIG"], "the map is too large: reduce max_entries or the value size"),
    (&["ENOMEM"], "not enough memory: reduce max_entries, or set map_flags BPF_F_NO_PREALLOC for a hash"),
    (&["EPERM"], "before Linux 5.11 a map counts as locked memory: ulimit -l unlimited; later kernels require root"),
    (
        &["EINVAL"],
        "the kernel refuses the key size, value size, flags or max_entries of the map: an array has keys of 4 bytes, a \
         ring buffer a power of two of whole pages, and only perf event arrays may have no entries",
    ),
];

/// Texts in libbpf's other messages, and the advice for them.
const LIBBPF: &[(&[&str], &str)] = &[
    (&["failed to find BTF for extern"], "compile it with -g"),
    (
        &["not found in kernel or module BTFs", "not resolved"],
        "this kernel lacks it: declare it __weak, and test for it before its use (bpf_ksym_exists())",
    ),
    (
        &["failed to open system Kconfig"],
        "it needs the kernel's configuration, which is read from /proc/config.gz or /boot/config-$(uname -r)",
    ),
    (
        &["incompatible with vmlinux"],
        "this kernel has a function of that name with other arguments: declare it as vmlinux.h does (bpftool btf dump \
         file /sys/kernel/btf/vmlinux format c)",
    ),
];

/// Returns the advice of the first row with a text in the message.
fn advice(table: &'static [(&[&str], &str)], message: &str) -> Option<&'static str> {
    let fits = |phrases: &[&str]| phrases.iter().any(|phrase| message.contains(phrase));
    let found = table.iter().find(|(phrases, _)| fits(phrases));
    found.map(|(_, advice)| *advice)
}

/// Returns advice on a message of the verifier.
pub fn on_verifier(reason: &str) -> Option<&'static str> {
    advice(VERIFIER, reason)
}

/// Returns advice on a message of libbpf.
pub fn on_libbpf(says: &str) -> Option<&'static str> {
    if says.contains("failed to create") { advice(MAP, says) } else { advice(LIBBPF, says) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_and_reason_are_kept() {
        let log = "0: R1=ctx() R10=fp0\n\
                   ; int bad(struct xdp_md *ctx) @ bad.c:7\n\
                   0: (61) r1 = *(u32 *)(r1 +0)          ; R1_w=pkt(r=0)\n\
                   ; return *(char *)(long)ctx->data; @ bad.c:9\n\
                   1: (71) r0 = *(u8 *)(r1 +0)\n\
                   invalid access to packet, off=0 size=1, R1(id=0,off=0,r=0)\n\
                   R1 offset is outside of the packet\n\
                   processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n";
        assert_eq!(
            condense(log).unwrap().to_string(),
            "invalid access to packet, off=0 size=1, R1(id=0,off=0,r=0); R1 offset is outside of the packet, at \
             bad.c:9 'return *(char *)(long)ctx->data;', instruction 1: (71) r0 = *(u8 *)(r1 +0)"
        );
    }

    #[test]
    fn endless_loop_is_named() {
        let log = "; i++; @ loop.c:4\n\
                   6: (55) if r1 != 0x3b9aca00 goto pc-5infinite loop detected at insn 2\n\
                   cur state: R1=scalar() R10=fp0 fp-8=mmmm????\n\
                   old state: R1=scalar() R10=fp0 fp-8=mmmm????\n\
                   processed 13 insns (limit 1000000)\n";
        assert_eq!(
            condense(log).unwrap().to_string(),
            "infinite loop detected at insn 2, at loop.c:4 'i++;', instruction 6: (55) if r1 != 0x3b9aca00 goto pc-5"
        );
    }

    #[test]
    fn message_after_a_jump_is_found() {
        let log = "; if (s == 5) @ huge.bpf.c:4\n\
                   29264: (18) r3 = 0x1234572b4          ; R3=0x1234572b4\n\
                   29266: (1d) if r0 == r3 goto pc+1252 BPF program is too large. Processed 1000001 insn\n\
                   processed 1000001 insns (limit 1000000) max_states_per_insn 34\n";
        assert_eq!(
            condense(log).unwrap().to_string(),
            "BPF program is too large. Processed 1000001 insn, at huge.bpf.c:4 'if (s == 5)', \
             instruction 29266: (1d) if r0 == r3 goto pc+1252"
        );
        let log = "2: (15) if r0 == 0x0 goto pc+1          ; R0=scalar()\n\
                   3: (71) r0 = *(u8 *)(r0 +0)\n\
                   R0 invalid mem access 'scalar'\n";
        assert_eq!(
            condense(log).unwrap().to_string(),
            "R0 invalid mem access 'scalar', instruction 3: (71) r0 = *(u8 *)(r0 +0)"
        );
    }

    #[test]
    fn older_kernels_name_no_file() {
        let log = "; return x;\n3: (95) exit\nR0 !read_ok\nprocessed 3 insns\n";
        assert_eq!(
            condense(log).unwrap().to_string(),
            "R0 !read_ok, at the line 'return x;', instruction 3: (95) exit"
        );
    }

    #[test]
    fn log_without_a_refusal_gives_none() {
        assert_eq!(condense(""), None);
        assert_eq!(condense("processed 3 insns (limit 1000000)\nverification time 5 usec\n"), None);
    }

    proptest::proptest! {
        /// Logs come from kernels of all versions, and a buffer may have cut one anywhere.
        #[test]
        fn any_text_is_accepted(log in "(([0-9]{1,3}: \\([0-9a-f]{2}\\) |; |R[0-9]|from )?[ -~]{0,30}\n){0,8}") {
            if let Some(found) = condense(&log) {
                assert!(!found.to_string().contains('\n'));
            }
        }
    }

    #[test]
    fn first_match_counts() {
        let advice = |reason| on_verifier(reason).unwrap_or_default();
        assert!(advice("R0 !read_ok").contains("verdict"));
        assert!(advice("R3 !read_ok").contains("set it first"));
        assert!(advice("R0 invalid mem access 'map_value_or_null'").contains("NULL"));
        assert!(advice("R6 invalid mem access 'scalar'").contains("ctx->data"));
        let sum = "math between map_value pointer and register with unbounded min value is not allowed";
        assert!(advice(sum).contains("n &= MASK"));
        assert!(advice("unknown func bpf_nothing#999").contains("no such function"));
        let bound = "metadata kfuncs require device-bound program";
        assert!(advice(bound).contains("xdpmeta_dev"));
        assert!(advice("own() has 0 args while xdp_dispatcher() has 1 args").contains("xdp_md *context"));
        assert_eq!(on_verifier("an unknown message"), None);
    }

    #[test]
    fn map_advice_depends_on_the_error() {
        let advice = |says| on_libbpf(says).unwrap_or_default();
        assert!(advice("map 'a': failed to create: -E2BIG").contains("size"));
        assert!(advice("map 'a': failed to create: -ENOMEM").contains("memory"));
        assert_eq!(on_libbpf("map 'a': failed to create: -EIO"), None);
    }
}
