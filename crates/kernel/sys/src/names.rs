//! Shell-style glob matching (fnmatch(3)).

use std::ffi::CString;

/// Matches a pattern: `*` any text, `?` any letter, `[a-c]` one of these, `[!a-c]` none of these.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (Ok(pattern), Ok(name)) = (CString::new(pattern), CString::new(name)) else {
        return false;
    };
    // SAFETY: both are strings that end with a zero byte and live until the call is over.
    let found = unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), libc::FNM_NOESCAPE) };
    found == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_the_shell() {
        for (pattern, name, expected) in [
            ("veth*", "veth0", true),
            ("veth*", "veth", true),
            ("veth*", "eth0", false),
            ("*", "lo", true),
            ("*th*1", "veth0.1", true),
            ("*th*1", "veth0.2", false),
            ("eth?", "eth0", true),
            ("eth?", "eth10", false),
            ("eth[0-2]", "eth1", true),
            ("eth[0-2]", "eth3", false),
            ("eth[!0-2]", "eth3", true),
            ("eth[!0-2]*", "eth1", false),
            ("eth[", "eth[", true),
            ("e[]t]h", "e]h", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
