//! Users of the embedded bus: operators, who may do all but write other operators' desired states, and hosts, each with
//! rights to its own subjects alone.

use std::collections::{BTreeMap, HashMap, HashSet};

use nkeys::KeyPair;
use serde::Deserialize;
use trawl_sys::{Error, Result};

use crate::bus::{ASK, COMMAND, DESIRED, DESIRED_STREAM, LOG, OPERATOR, STATE, check_name};

/// The file of users: public keys of operators, and of hosts by their names.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    operators: Vec<String>,
    #[serde(default)]
    hosts: BTreeMap<String, String>,
}

/// Users by their public keys.
#[derive(Debug, Default)]
pub struct Users {
    operators: HashSet<String>,
    hosts: HashMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// An operator, by the public key.
    Operator(String),
    Host(String),
}

impl Users {
    pub fn parse(text: &str) -> Result<Self> {
        let what = "cannot use the users of the bus";
        let file: File = toml::from_str(text).map_err(|e| Error::usage(what, e.to_string().trim_end()))?;
        let mut users = Self::default();
        let check = |key: &String| {
            let checked = KeyPair::from_public_key(key);
            checked.map_err(|e| Error::usage(what, format!("'{key}' is no public key: {e}")))
        };
        for key in file.operators {
            check(&key)?;
            users.operators.insert(key);
        }
        for (host, key) in file.hosts {
            check_name(&host)?;
            check(&key)?;
            if host == OPERATOR {
                // Its inbox would be the operators' inbox.
                return Err(Error::usage(what, format!("no host may be called '{OPERATOR}'")));
            }
            if users.operators.contains(&key) || users.hosts.insert(key.clone(), host).is_some() {
                return Err(Error::usage(what, format!("two users have the key {key}")));
            }
        }
        Ok(users)
    }

    /// Returns the user who signed the nonce; the signature is in base64 for URLs.
    pub fn authenticate(&self, key: &str, nonce: &str, signature: &str) -> Option<User> {
        let user = match self.hosts.get(key) {
            Some(host) => User::Host(host.clone()),
            None if self.operators.contains(key) => User::Operator(key.to_owned()),
            None => return None,
        };
        let signature = data_encoding::BASE64URL_NOPAD.decode(signature.trim_end_matches('=').as_bytes()).ok()?;
        KeyPair::from_public_key(key).ok()?.verify(nonce.as_bytes(), &signature).ok()?;
        Some(user)
    }
}

impl User {
    pub fn may_publish(&self, subject: &str) -> bool {
        match self {
            Self::Operator(key) => {
                subject.strip_prefix(DESIRED).is_none_or(|rest| rest.split('.').next() == Some(key.as_str()))
            }
            Self::Host(host) => {
                let question = format!("$JS.API.DIRECT.GET.{DESIRED_STREAM}.{DESIRED}");
                is_of_any_operator(host, &question, subject)
                    || [STATE, LOG].iter().any(|start| is_of(host, start, subject))
            }
        }
    }

    /// Returns true if the user may see messages of a subject, which may have wildcards.
    pub fn may_subscribe(&self, subject: &str) -> bool {
        match self {
            Self::Operator(_) => true,
            Self::Host(host) => {
                // Exactly two tokens: `_INBOX_a.>` would cover the inbox of a host a.b.
                let inbox = subject.strip_prefix(&format!("_INBOX_{host}."));
                let is_inbox = inbox.is_some_and(|rest| !rest.contains('>') && rest.split('.').count() == 2);
                is_inbox || is_of(host, ASK, subject) || is_of_any_operator(host, COMMAND, subject)
            }
        }
    }
}

fn is_of(host: &str, start: &str, subject: &str) -> bool {
    subject.strip_prefix(start) == Some(host)
}

/// Returns true if a subject is a start, an operator's public key or `*`, and the host.
fn is_of_any_operator(host: &str, start: &str, subject: &str) -> bool {
    subject.strip_prefix(start).and_then(|rest| rest.split_once('.')).is_some_and(|(_, of)| of == host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_has_rights_to_its_own_subjects_alone() {
        let host = User::Host("a".to_owned());
        for subject in ["$KV.trawl.state.a", "trawl.log.a", "$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.U1.a"] {
            assert!(host.may_publish(subject), "{subject}");
        }
        for subject in [
            "$KV.trawl.state.b",
            "$KV.trawl.state.a.b",
            "$KV.trawl.cmd.U1.a",
            "trawl.cmd.U1.a",
            "$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.U1.b",
            "$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.U1.a.b",
            "$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.a",
            "$JS.API.STREAM.INFO.KV_trawl",
        ] {
            assert!(!host.may_publish(subject), "{subject}");
        }
        for subject in ["trawl.cmd.*.a", "trawl.cmd.U1.a", "trawl.ask.a", "_INBOX_a.x.*", "_INBOX_a.x.1"] {
            assert!(host.may_subscribe(subject), "{subject}");
        }
        for subject in [
            "trawl.cmd.*.b",
            "trawl.cmd.*",
            "trawl.cmd.*.*",
            "trawl.cmd.a",
            "trawl.cmd.>",
            "trawl.>",
            ">",
            "_INBOX_a.>",
            "_INBOX_a.b.x.*",
            "_INBOX_b.x.*",
        ] {
            assert!(!host.may_subscribe(subject), "{subject}");
        }
    }

    #[test]
    fn operator_writes_its_own_states_alone() {
        let operator = User::Operator("U1".to_owned());
        for (subject, may) in [
            ("$KV.trawl.cmd.U1.a", true),
            ("$KV.trawl.cmd.U1.a.b", true),
            ("$KV.trawl.cmd.U2.a", false),
            ("$KV.trawl.cmd.a", false),
            ("trawl.ask.a", true),
            ("$JS.API.STREAM.INFO.KV_trawl", true),
        ] {
            assert_eq!(operator.may_publish(subject), may, "{subject}");
        }
    }

    #[test]
    fn users_are_known_by_their_signatures() {
        let (operator, host, other) = (KeyPair::new_user(), KeyPair::new_user(), KeyPair::new_user());
        let text = |host: &str, key: &KeyPair| {
            format!("operators = [\"{}\"]\n[hosts]\n\"{host}\" = \"{}\"", operator.public_key(), key.public_key())
        };
        let users = Users::parse(&text("a.b", &host)).expect("users");
        let sign = |key: &KeyPair, nonce: &str| {
            data_encoding::BASE64URL_NOPAD.encode(&key.sign(nonce.as_bytes()).expect("a signature"))
        };
        let known = |key: &KeyPair, nonce: &str| users.authenticate(&key.public_key(), "nonce", &sign(key, nonce));
        assert_eq!(known(&operator, "nonce"), Some(User::Operator(operator.public_key())));
        assert_eq!(known(&host, "nonce"), Some(User::Host("a.b".to_owned())));
        assert_eq!(known(&host, "another"), None);
        assert_eq!(known(&other, "nonce"), None);
        assert_eq!(users.authenticate(&host.public_key(), "nonce", "?"), None);
        for (name, key) in [("operator", &host), ("a b", &host), ("a", &operator)] {
            assert!(Users::parse(&text(name, key)).is_err(), "{name}");
        }
        assert!(Users::parse("operators = [\"U\"]").is_err());
    }
}
