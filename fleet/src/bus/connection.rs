//! The connection to NATS: this side's identity, the trusted keys, and the names of the streams.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};

use super::{News, Reporter};
use crate::tls;

/// Streams of the desired states, which operators alone write, and of the states that hosts report. Their subjects end
/// with the host, after the public key of the operator in the one of desired states, which are republished as
/// `trawl.cmd.KEY.HOST`.
pub const DESIRED_STREAM: &str = "KV_trawl";
pub const DESIRED: &str = "$KV.trawl.cmd.";
pub const STATE_STREAM: &str = "KV_trawl_state";
pub const STATE: &str = "$KV.trawl.state.";
pub const COMMAND: &str = "trawl.cmd.";
/// Subject of questions to a host, whose name follows.
pub const ASK: &str = "trawl.ask.";
/// Stream of the commands that hosts log, to which they can only add. Its subjects end with the host.
pub const LOG_STREAM: &str = "trawl_log";
pub const LOG: &str = "trawl.log.";

/// The server, this side's name and credentials, and the trusted keys.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The servers' addresses, separated by commas.
    pub url: String,
    /// Name of this side: a host, or the operator.
    pub name: String,
    /// Public keys of the operators whose commands a host follows.
    pub operators: Vec<String>,
    /// Contents of the credential files.
    pub nkey: Option<String>,
    pub credentials: Option<String>,
    pub tls_certificate: Option<String>,
    pub tls_key: Option<String>,
    pub tls_ca: Option<String>,
    /// Copies of each state on the servers, for streams that do not exist yet.
    pub replicas: usize,
}

/// Returns the servers' addresses without the passwords that they may contain.
pub fn shown(urls: &str) -> String {
    let one = |url: &str| match url.split_once("://").map(|(scheme, rest)| (scheme, rest.rsplit_once('@'))) {
        Some((scheme, Some((_, address)))) => format!("{scheme}://{address}"),
        _ => url.to_owned(),
    };
    urls.split(',').map(one).collect::<Vec<_>>().join(",")
}

/// Returns the delay before a connection. Agents do not all return at once to a server that was restarted; an operator
/// waits only after a failure.
fn delay(attempts: usize, is_agent: bool) -> Duration {
    if attempts <= 1 && !is_agent {
        return Duration::ZERO;
    }
    let most = (200 << attempts.min(6)).min(8000);
    // Each hasher has random keys.
    let random = RandomState::new().build_hasher().finish();
    Duration::from_millis(most / 4 + random % (most * 3 / 4))
}

/// Returns true if a text is an operator's public key.
pub fn is_key(text: &str) -> bool {
    KeyPair::from_public_key(text).is_ok_and(|key| key.public_key() == text)
}

/// Checks a host name, which becomes a part of subjects.
pub fn check_name(name: &str) -> trawl_sys::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_right = name.chars().all(is_plain) && name.split('.').all(|part| !part.is_empty());
    if is_right {
        Ok(())
    } else {
        Err(trawl_sys::Error::usage(
            format!("cannot use '{name}' as a host's name on the bus"),
            "it may contain letters, digits, '-' and '_', and '.' between them",
        )
        .fix("--host NAME"))
    }
}

impl Config {
    /// Connects; a patient caller retries the first connection until it succeeds.
    pub async fn connect<T: Send + 'static>(&self, patient: bool, reporter: &Reporter<T>) -> Result<Client, String> {
        let reporter = reporter.clone();
        let mut options = ConnectOptions::new()
            .name(format!("trawl {}", self.name))
            // Keeps other clients' answers out of this one's inbox.
            .custom_inbox_prefix(format!("_INBOX_{}", self.name))
            .connection_timeout(Duration::from_secs(5))
            .ping_interval(Duration::from_secs(10))
            .request_timeout(Some(Duration::from_secs(5)))
            .reconnect_delay_callback(move |attempts| delay(attempts, patient))
            .event_callback(move |event| {
                let news = match event {
                    Event::Connected => Some(News::Connected),
                    Event::Disconnected | Event::Closed => Some(News::Disconnected),
                    Event::ServerError(error) => Some(News::Refused(error.to_string())),
                    Event::ClientError(error) => Some(News::Refused(error.to_string())),
                    _ => None,
                };
                news.into_iter().for_each(|news| reporter.send(news));
                std::future::ready(())
            });
        if let Some(seed) = &self.nkey {
            options = options.nkey(seed.trim().to_owned());
        }
        if let Some(text) = &self.credentials {
            let read = options.credentials(text);
            options = read.map_err(|e| format!("cannot read the credentials: {e}"))?;
        }
        let addresses: Result<Vec<ServerAddr>, _> = self.url.split(',').map(|url| url.trim().parse()).collect();
        let addresses = addresses.map_err(|e| format!("cannot read the server's address: {e}"))?;
        let is_encrypted = addresses.iter().any(ServerAddr::tls_required);
        if is_encrypted || self.tls_ca.is_some() || self.tls_certificate.is_some() {
            let identity = self.tls_certificate.as_deref().zip(self.tls_key.as_deref());
            options = options.require_tls(true).tls_client_config(tls::client(self.tls_ca.as_deref(), identity)?);
        }
        if patient {
            options = options.retry_on_initial_connect();
        }
        let user = addresses.iter().find_map(|address| address.username().zip(address.password()));
        if let Some((user, password)) = user {
            options = options.user_and_password(user.to_owned(), password.to_owned());
        }
        let connected = options.connect(addresses.as_slice()).await;
        connected.map_err(|e| format!("cannot connect: {e}"))
    }

    /// Returns the key that identifies this side and signs its messages.
    pub fn key(&self) -> Result<KeyPair, String> {
        let text = self.nkey.as_ref().or(self.credentials.as_ref());
        key_in(text.ok_or("a private key is missing: name its file by --nkey or --creds")?)
    }
}

/// An operator's signature.
#[derive(Serialize, Deserialize)]
pub struct Signature {
    /// The operator's public key.
    pub operator: String,
    /// The signature in hexadecimal digits.
    signature: String,
}

impl Signature {
    pub fn new(key: &KeyPair, bytes: &[u8]) -> Result<Self, String> {
        let signature = key.sign(bytes);
        let signature = signature.map_err(|e| format!("cannot sign: {e}"))?;
        Ok(Self { operator: key.public_key(), signature: signature.iter().map(|byte| format!("{byte:02x}")).collect() })
    }

    /// Verifies the signature of these bytes; accepts any operator if `operators` is `None`.
    pub fn verify(&self, bytes: &[u8], operators: Option<&[String]>) -> Result<(), String> {
        let key = KeyPair::from_public_key(&self.operator).map_err(|e| e.to_string())?;
        if operators.is_some_and(|all| !all.contains(&self.operator)) {
            return Err(format!("it is signed by {}, a key that belongs to no known operator", self.operator));
        }
        let signature = digits(&self.signature).ok_or("its signature is damaged")?;
        key.verify(bytes, &signature).map_err(|_| "its signature is of another host or text".to_owned())
    }
}

#[derive(Serialize, Deserialize)]
pub struct Signed {
    /// Counted up by the operators rather than the server, which may restart from zero.
    pub revision: u64,
    #[serde(flatten)]
    pub signature: Signature,
    pub desired: String,
}

/// Extracts the private key from an NKey file or a credentials file.
pub fn key_in(text: &str) -> Result<KeyPair, String> {
    let seed = text.lines().map(str::trim).find(|line| line.starts_with("SU"));
    let seed = seed.ok_or("the file contains no private key of a user (SU…)")?;
    KeyPair::from_seed(seed).map_err(|e| format!("cannot use the private key: {e}"))
}

impl Signed {
    pub fn new(key: &KeyPair, host: &str, revision: u64, desired: String) -> Result<Self, String> {
        let signature = Signature::new(key, &signed_bytes(host, revision, &desired))?;
        Ok(Self { revision, signature, desired })
    }

    /// Verifies and reads an operator's command for a host; accepts any operator if `operators` is `None`.
    pub fn open(bytes: &[u8], host: &str, operators: Option<&[String]>) -> Result<Self, String> {
        let signed: Self =
            serde_json::from_slice(bytes).map_err(|_| "it is not signed, or signed in the format of a newer trawl")?;
        let bytes = signed_bytes(host, signed.revision, &signed.desired);
        signed.signature.verify(&bytes, operators)?;
        Ok(signed)
    }
}

fn signed_bytes(host: &str, revision: u64, desired: &str) -> Vec<u8> {
    format!("trawl desired state\n{host}\n{revision}\n{desired}").into_bytes()
}

fn digits(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        let urls = "tls://a:secret@one:4222,nats://b:secret@two,three";
        assert_eq!(shown(urls), "tls://one:4222,nats://two,three");
    }

    #[test]
    fn agents_return_at_different_times() {
        let delays: Vec<Duration> = (0..1000).map(|_| delay(3, true)).collect();
        let (least, most) = (delays.iter().min().expect("some"), delays.iter().max().expect("some"));
        assert!(*least >= Duration::from_millis(400) && *most < Duration::from_millis(1600), "{least:?} {most:?}");
        assert!(*most - *least > Duration::from_millis(1000));
        assert_eq!(delay(1, false), Duration::ZERO);
        assert!(delay(1, true) > Duration::ZERO && delay(1000, false) < Duration::from_secs(8));
    }

    #[test]
    fn only_commands_an_operator_signed_for_the_host_are_opened() {
        let (key, other) = (KeyPair::new_user(), KeyPair::new_user());
        let signed = Signed::new(&key, "alpha", 7, "{}".to_owned()).expect("signed");
        let text = serde_json::to_string(&signed).expect("JSON");
        let operators = [key.public_key()];
        let open = |text: &str, host: &str, operators: &[String]| {
            Signed::open(text.as_bytes(), host, Some(operators)).map(|one| (one.revision, one.desired))
        };
        assert_eq!(open(&text, "alpha", &operators), Ok((7, "{}".to_owned())));
        for (text, host, operators) in [
            (text.clone(), "beta", &operators[..]),
            (text.replace(":7,", ":8,"), "alpha", &operators),
            (text.replace("\"{}\"", "\"{ }\""), "alpha", &operators),
            (text.clone(), "alpha", &[other.public_key()]),
            (text.clone(), "alpha", &[]),
            (text.replace(&signed.signature.signature, "0"), "alpha", &operators),
            ("{\"captures\": []}".to_owned(), "alpha", &operators),
            ("{\"stream\":\"KV_trawl\",\"seq\":9}".to_owned(), "alpha", &operators),
            (String::new(), "alpha", &operators),
        ] {
            assert!(open(&text, host, operators).is_err(), "{text} for {host}");
        }
    }

    #[test]
    fn keys_are_found_in_both_kinds_of_files() {
        let seed = KeyPair::new_user().seed().expect("a seed");
        assert!(key_in(&seed).is_ok());
        let credentials = format!("-----BEGIN USER NKEY SEED-----\n{seed}\n------END\n");
        assert!(key_in(&credentials).is_ok());
        assert!(key_in("SUX").is_err() && key_in("").is_err());
    }
}
