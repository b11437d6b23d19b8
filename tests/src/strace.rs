//! The system calls of a command by strace, and the command killed at one of them.

use std::collections::HashMap;

/// A system call of a traced run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// Its number among the calls of that name, from 1 on, as strace counts.
    ordinal: usize,
    /// The call in strace's notation.
    pub text: String,
}

impl Call {
    /// Returns strace's argument that kills a command as it enters this call.
    pub fn killing(&self) -> String {
        format!("inject={}:signal=SIGKILL:when={}", self.name, self.ordinal)
    }
}

/// Parses strace's output for one thread.
pub fn calls(trace: &str) -> Vec<Call> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    trace
        .lines()
        .filter_map(|line| {
            let (name, _) = line.split_once('(')?;
            let count = counts.entry(name).or_default();
            *count += 1;
            Some(Call { name: name.to_owned(), ordinal: *count, text: line.to_owned() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_their_names() {
        let all = calls("bpf(1) = 0\nunlink(\"a(b\") = 0\nbpf(2) = 3\n+++ exited with 0 +++\n");
        let kills: Vec<String> = all.iter().map(Call::killing).collect();
        assert_eq!(
            kills,
            [
                "inject=bpf:signal=SIGKILL:when=1",
                "inject=unlink:signal=SIGKILL:when=1",
                "inject=bpf:signal=SIGKILL:when=2"
            ]
        );
    }
}
