//! Users of the page: a file with a name and the SHA-256 of a token on each line.

use std::path::{Path, PathBuf};

use trawl_front::http::{Request, is_same};
use trawl_spool::manifest::sha256;
use trawl_sys::files::text_file;
use trawl_sys::{Error, Result};
use trawl_view::text;

/// Name of the cookie with the token.
const COOKIE: &str = "trawl";
/// Time that a browser keeps the cookie, in seconds.
const KEPT: u64 = 30 * 86_400;

/// The file, which is read again for each request: a user that it lacks is refused at once.
#[derive(Debug)]
pub struct Users(PathBuf);

#[derive(Debug, PartialEq, Eq)]
struct User {
    name: String,
    hash: String,
}

impl Users {
    /// Checks the file.
    pub fn new(path: &Path) -> Result<Self> {
        let users = Self(path.to_owned());
        if users.all()?.is_empty() {
            let fix = "add a line: a name, and the SHA-256 of a token in hexadecimal digits";
            return Err(Error::usage(users.what(), "it has no user").fix(fix));
        }
        Ok(users)
    }

    fn what(&self) -> String {
        format!("cannot use the tokens in {}", self.0.display())
    }

    fn all(&self) -> Result<Vec<User>> {
        parse(&text_file::read(&self.0)?).map_err(|why| {
            let fix = "write a name, a space, and the 64 hexadecimal digits of the token's SHA-256";
            Error::usage(self.what(), why).fix(fix)
        })
    }

    /// Returns the name of the user with a token.
    pub fn with_token(&self, token: &str) -> Result<Option<String>> {
        let hash = sha256(token.as_bytes());
        // All lines are compared, so that the duration does not show which one matches.
        let users = self.all()?.into_iter();
        Ok(users.fold(None, |found, user| if is_same(&hash, &user.hash) { Some(user.name) } else { found }))
    }

    /// Returns the name of the user that sent a request; `None` without a valid token.
    pub fn of(&self, request: &Request) -> Result<Option<String>> {
        token_of(request).map_or(Ok(None), |token| self.with_token(token))
    }
}

fn token_of(request: &Request) -> Option<&str> {
    let bearer = request.header("authorization").and_then(|given| given.strip_prefix("Bearer "));
    bearer.or_else(|| {
        let cookies = request.header("cookie")?.split(';');
        let mut named = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        named.find(|(name, _)| *name == COOKIE).map(|(_, token)| token)
    })
}

/// Returns the header value that lets a browser keep a token, which scripts cannot read and other sites cannot use;
/// `None` if the token has characters that a cookie cannot have.
pub fn cookie(token: &str, is_encrypted: bool) -> Option<String> {
    let can_be_kept = |letter: u8| letter.is_ascii_graphic() && !b"\",;\\".contains(&letter);
    let secure = if is_encrypted { "; Secure" } else { "" };
    let kept = if token.is_empty() { 0 } else { KEPT };
    let cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={kept}{secure}");
    token.bytes().all(can_be_kept).then_some(cookie)
}

fn parse(file: &str) -> std::result::Result<Vec<User>, String> {
    let lines = file.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let users = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let user = |(number, line): (usize, &str)| {
        let mut words = line.split_whitespace();
        let (Some(name), Some(hash), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("line {number} is not a name and a hash"));
        };
        if hash.len() != 64 || !hash.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(format!("the hash of {} in line {number} is no SHA-256", text::printable(name)));
        }
        Ok(User { name: name.to_owned(), hash: hash.to_ascii_lowercase() })
    };
    users.map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_names_with_hashes() {
        let hash = sha256(b"secret");
        let file = format!("# operators\n\nalice {hash}\n  bob\t{}\n", hash.to_uppercase());
        let names: Vec<String> = parse(&file).expect("users").into_iter().map(|user| user.name).collect();
        assert_eq!(names, ["alice", "bob"]);
        for (wrong, why) in [
            ("alice", "line 1 is not a name and a hash"),
            ("alice secret", "the hash of alice in line 1 is no SHA-256"),
            ("\n\x1b[2J secret", "the hash of \\u001b[2J in line 2 is no SHA-256"),
            (&format!("alice {hash} admin"), "line 1 is not a name and a hash"),
        ] {
            assert_eq!(parse(wrong), Err(why.to_owned()), "{wrong}");
        }
    }

    #[test]
    fn tokens_cannot_add_to_the_cookie() {
        assert!(cookie("a+b/c=", true).is_some_and(|cookie| cookie.starts_with("trawl=a+b/c=; HttpOnly")));
        for token in ["a;b", "a b", "a\r\nX: y", "é", "a\"b", "a,b"] {
            assert_eq!(cookie(token, false), None, "{token}");
        }
        assert!(cookie("", false).is_some_and(|cookie| cookie.contains("Max-Age=0")));
    }
}
