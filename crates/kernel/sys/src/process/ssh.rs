//! Other hosts, reached by the ssh program with the person's own configuration and keys.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::process::with_signals;
use crate::{Error, Result};

/// A host, and the program that connects to it.
#[derive(Clone, Debug)]
pub struct Ssh {
    /// The program and its options.
    pub program: Vec<String>,
    /// Argument for ssh: USER@HOST, or ssh://USER@HOST:PORT.
    pub destination: String,
}

/// Quotes a text as one argument for a POSIX shell.
pub fn word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

impl Ssh {
    /// Returns a command that runs this script on the host, whatever the user's own shell is. It never asks for a
    /// password.
    pub fn script(&self, script: &str) -> Command {
        let mut words = self.program.iter();
        let mut ssh = Command::new(words.next().map_or("ssh", String::as_str));
        ssh.args(words)
            .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--"])
            .arg(&self.destination)
            .arg(format!("exec sh -c {}", word(script)))
            .stdin(Stdio::null());
        with_signals(&mut ssh);
        ssh
    }

    /// Runs a script to its end and returns its output without the last newline.
    pub fn run(&self, script: &str) -> Result<String> {
        let output = self.script(script).output();
        self.printed(output)
    }

    /// Copies a program to this path, unless the same one exists there already.
    pub fn provide(&self, local: &Path, path: &str) -> Result<()> {
        let what = || format!("cannot copy {} to {}", local.display(), self.destination);
        let sum = |output: &str| output.split(' ').next().unwrap_or_default().to_owned();
        let own = Command::new("sha256sum").arg(local).output();
        let own = sum(&self.printed(own)?);
        let path = word(path);
        let there = self.run(&format!("sha256sum {path} 2>/dev/null || true"))?;
        if sum(&there) == own {
            return Ok(());
        }
        let file = File::open(local).map_err(|e| Error::os(what(), e))?;
        // Several commands may copy to one host at a time: each uses a draft of its own.
        let script = format!(
            "draft={path}.draft.$$; trap 'rm -f \"$draft\"' EXIT; \
             cat > \"$draft\" && chmod 755 \"$draft\" && mv \"$draft\" {path}"
        );
        let output = self.script(&script).stdin(Stdio::from(file)).output();
        self.printed(output).map(drop)
    }

    fn printed(&self, output: std::io::Result<Output>) -> Result<String> {
        let what = || format!("cannot reach {}", self.destination);
        let output = output.map_err(|e| Error::os(what(), e))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let said = match text(&output.stderr) {
            said if said.is_empty() => format!("{} ended with {}", self.destination, output.status),
            said => said,
        };
        Err(Error::failed(what(), said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_remote_shell() {
        let text = "it's $HOME; `id`";
        let script = format!("printf %s {}", word(text));
        let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
        assert_eq!(String::from_utf8_lossy(&output.stdout), text);
    }
}
