//! Output of other programs, such as nft and tc.

use std::process::Command;

/// Returns the output of a command; empty if it is missing or fails.
pub fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}
