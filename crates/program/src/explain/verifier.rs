//! The verifier's log, often thousands of lines, condensed to what a person needs: the reason, the source line it is
//! about, and the instruction.

use std::fmt;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    /// The line of the source and the instruction that it is about, where the log has them.
    source: Option<String>,
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

/// What is in a log; `None` for one that tells of no refusal.
pub fn condense(log: &str) -> Option<Refusal> {
    let lines = log.lines().flat_map(apart);
    let lines: Vec<&str> = lines.filter(|line| !is_bookkeeping(line)).collect();
    let at = lines.iter().rposition(|line| !is_state(line))?;
    // What a message is about may be told in several lines; the last ones that are neither code nor state are it.
    let first = lines[..=at]
        .iter()
        .rposition(|line| is_state(line))
        .map_or(0, |before| before + 1);
    let reason = lines[first..=at]
        .iter()
        .map(|line| line.trim())
        .collect::<Vec<_>>()
        .join("; ");
    let before = &lines[..first];
    let instruction = before.iter().rev().find(|line| is_instruction(line));
    Some(Refusal {
        reason,
        source: before.iter().rev().find_map(|line| source_line(line)),
        instruction: instruction.map(|line| without_state(line).to_owned()),
    })
}

/// Behind a jump the kernel does not always begin a new line: a message may stand in that of the instruction.
fn apart(line: &str) -> impl Iterator<Item = &str> {
    let at = end_of_jump(line).unwrap_or(line.len());
    let (instruction, rest) = line.split_at(at);
    // Registers are listed after a semicolon.
    let (instruction, message) = match rest.trim_start().starts_with(';') {
        true => (line, ""),
        false => (instruction, rest.trim()),
    };
    [instruction, message]
        .into_iter()
        .filter(|part| !part.is_empty())
}

/// Where the jump ends that is an instruction's last part: `12: (55) if r1 != 0x3 goto pc-5`
fn end_of_jump(line: &str) -> Option<usize> {
    const TARGET: &str = "goto pc";
    let at = is_instruction(line).then(|| line.find(TARGET))?? + TARGET.len();
    let rest = line[at..].strip_prefix(['+', '-'])?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    Some(at + 1 + digits)
}

/// `; int x = data[4]; @ prog.c:12` in newer kernels, without the place in older ones.
fn source_line(line: &str) -> Option<String> {
    let line = line.strip_prefix("; ")?;
    Some(match line.rsplit_once(" @ ") {
        Some((code, place)) => format!("{place} '{}'", code.trim()),
        None => format!("the line '{}'", line.trim()),
    })
}

/// `12: (71) r1 = *(u8 *)(r2 +0)`
fn is_instruction(line: &str) -> bool {
    line.split_once(": (").is_some_and(|(number, rest)| {
        !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
            && rest.as_bytes().get(2) == Some(&b')')
    })
}

/// An instruction's registers are listed after a semicolon.
fn without_state(line: &str) -> &str {
    line.split(" ; ").next().unwrap_or(line).trim()
}

/// Anything that shows where the verifier is, and not what it found.
fn is_state(line: &str) -> bool {
    let line = line.trim_start();
    let begins_with_number = || {
        line.split_once(':').is_some_and(|(number, _)| {
            !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        })
    };
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
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

/// ` R1=ctx(off=0,imm=0) R10=fp0`, also with `_w` and the like after the number.
fn is_register_dump(line: &str) -> bool {
    let Some(rest) = line.strip_prefix('R') else {
        return false;
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && rest[digits..].starts_with(['=', '_'])
}

/// Counts at the log's end.
fn is_bookkeeping(line: &str) -> bool {
    let begins = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
    line.trim().is_empty()
        || begins(&[
            "processed ",
            "verification time",
            "stack depth",
            "max_states",
            "insns_state",
        ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_and_the_reason_are_kept() {
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
    fn a_loop_without_end_is_called_one() {
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
    fn what_follows_a_jump_is_told() {
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
    fn older_kernels_do_not_name_the_place() {
        let log = "; return x;\n3: (95) exit\nR0 !read_ok\nprocessed 3 insns\n";
        assert_eq!(
            condense(log).unwrap().to_string(),
            "R0 !read_ok, at the line 'return x;', instruction 3: (95) exit"
        );
    }

    #[test]
    fn a_log_without_a_refusal_says_nothing() {
        assert_eq!(condense(""), None);
        assert_eq!(
            condense("processed 3 insns (limit 1000000)\nverification time 5 usec\n"),
            None
        );
    }

    proptest::proptest! {
        /// Kernels of all ages write these logs, and a buffer may have cut one anywhere.
        #[test]
        fn any_text_is_taken(log in "(([0-9]{1,3}: \\([0-9a-f]{2}\\) |; |R[0-9]|from )?[ -~]{0,30}\n){0,8}") {
            if let Some(found) = condense(&log) {
                assert!(!found.to_string().contains('\n'));
            }
        }
    }
}
