//! Questions of operators to hosts, for packets that stay there. An operator signs each question, and the host encrypts its
//! answer for the operator's key of this session: who reads or repeats messages on the bus learns nothing.

use std::time::Duration;

use async_nats::Client;
use nkeys::{KeyPair, XKey};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use trawl_sys::events::Wake;
use trawl_sys::{Error, Result};

use super::connection::{ASK, Signature};
use super::{Config, Reporter, shown};

/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Length of a public key, with which an answer begins.
const KEY: usize = 56;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(flatten)]
    signature: Signature,
    /// Public key for the answer.
    key: String,
    text: String,
}

fn signed_bytes(host: &str, key: &str, text: &str) -> Vec<u8> {
    format!("trawl question\n{host}\n{key}\n{text}").into_bytes()
}

/// Answers a message with what `answer` returns for an operator's question; an error if it is none.
pub fn reply(
    message: &[u8],
    config: &Config,
    answer: &dyn Fn(&[u8]) -> Vec<u8>,
) -> std::result::Result<Vec<u8>, String> {
    let asked: Asked = serde_json::from_slice(message).map_err(|_| "it is not signed")?;
    let bytes = signed_bytes(&config.name, &asked.key, &asked.text);
    asked.signature.verify(&bytes, Some(&config.operators))?;
    let operator = XKey::from_public_key(&asked.key).map_err(|e| e.to_string())?;
    let own = XKey::new();
    let sealed = own.seal(&answer(asked.text.as_bytes()), &operator);
    let sealed = sealed.map_err(|e| format!("cannot encrypt the answer: {e}"))?;
    Ok([own.public_key().as_bytes(), &sealed].concat())
}

/// An operator's connection for questions.
pub struct Asker {
    runtime: Runtime,
    client: Client,
    operator: KeyPair,
    key: XKey,
}

impl Asker {
    pub fn open(config: &Config) -> Result<Self> {
        let what = format!("cannot ask hosts at {}", shown(&config.url));
        let failed = |why: String| Error::failed(what.clone(), why);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|e| Error::os(what.clone(), e))?;
        let operator = config.key().map_err(failed)?;
        let (sender, _) = std::sync::mpsc::channel();
        let reporter = Reporter::<()> {
            sender,
            wake: Wake::new()?,
        };
        let client = runtime.block_on(config.connect(false, &reporter));
        Ok(Self {
            client: client.map_err(failed)?,
            runtime,
            operator,
            key: XKey::new(),
        })
    }

    pub fn ask(&self, host: &str, text: &str) -> std::result::Result<Vec<u8>, String> {
        let key = self.key.public_key();
        let signature = Signature::new(&self.operator, &signed_bytes(host, &key, text))?;
        let asked = Asked {
            signature,
            key,
            text: text.to_owned(),
        };
        let asked = serde_json::to_vec(&asked).map_err(|e| e.to_string())?;
        let request = self.client.request(format!("{ASK}{host}"), asked.into());
        let answered = self.runtime.block_on(async {
            let answered = tokio::time::timeout(PATIENCE, request).await;
            answered.map_err(|_| "it does not answer".to_owned())
        })?;
        let message = answered.map_err(|_| "it does not answer".to_owned())?;
        let opened = message
            .payload
            .split_at_checked(KEY)
            .and_then(|(key, sealed)| {
                let host = XKey::from_public_key(std::str::from_utf8(key).ok()?).ok()?;
                self.key.open(sealed, &host).ok()
            });
        opened.ok_or_else(|| {
            let said: String = String::from_utf8_lossy(&message.payload)
                .chars()
                .take(200)
                .collect();
            format!("it refuses: {}", trawl_view::text::printable(&said))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_for_the_operator_who_asked() {
        let operator = KeyPair::new_user();
        let config = Config {
            name: "alpha".to_owned(),
            operators: vec![operator.public_key()],
            ..Config::default()
        };
        let key = XKey::new();
        let asked = |signer: &KeyPair, host: &str| {
            let public = key.public_key();
            let signature = Signature::new(signer, &signed_bytes(host, &public, "?")).unwrap();
            let text = "?".to_owned();
            let key = public;
            serde_json::to_vec(&Asked {
                signature,
                key,
                text,
            })
            .unwrap()
        };
        let answer = |question: &[u8]| [question, b"!"].concat();
        let reply = |message: &[u8]| reply(message, &config, &answer);
        let answered = reply(&asked(&operator, "alpha")).unwrap();
        let (from, sealed) = answered.split_at(KEY);
        let from = XKey::from_public_key(std::str::from_utf8(from).unwrap()).unwrap();
        assert_eq!(key.open(sealed, &from).unwrap(), b"?!");
        assert!(XKey::new().open(sealed, &from).is_err());
        assert!(reply(&asked(&operator, "beta")).is_err());
        assert!(reply(&asked(&KeyPair::new_user(), "alpha")).is_err());
        assert!(reply(b"{}").is_err());
    }
}
