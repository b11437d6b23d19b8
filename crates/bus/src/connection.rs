//! The connection to NATS: who this is, whom it trusts, and the names of what is kept there.

use std::io::{self, BufReader};
use std::time::Duration;

use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{ClientConfig, RootCertStore, crypto};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use nkeys::KeyPair;
use serde::{Deserialize, Serialize};

use crate::lines;
use crate::signed::key_in;

/// What is desired, which operators alone write, and the states that hosts report, in streams of their own. Their subjects
/// end with the host; what is desired is republished as `trawl.cmd.HOST`.
pub const DESIRED_STREAM: &str = "KV_trawl";
pub const DESIRED: &str = "$KV.trawl.cmd.";
pub const STATE_STREAM: &str = "KV_trawl_state";
pub const STATE: &str = "$KV.trawl.state.";
pub const COMMAND: &str = "trawl.cmd.";

/// The contents of files, not their names: this program may read none of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub url: String,
    /// Who this is: a host, or the operator.
    pub name: String,
    /// The public keys of those who may desire something of hosts.
    #[serde(default)]
    pub operators: Vec<String>,
    nkey: Option<String>,
    credentials: Option<String>,
    tls_certificate: Option<String>,
    tls_key: Option<String>,
    tls_ca: Option<String>,
}

/// News of the connection.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    Connected,
    Disconnected,
    /// The server refused something, a permission for example.
    Refused {
        why: String,
    },
}

impl Config {
    /// With patience, the first connection is tried until there is one.
    pub async fn connect(&self, patient: bool) -> Result<Client, String> {
        let mut options = ConnectOptions::new()
            .name(format!("trawl {}", self.name))
            // Answers to others are none of this one's business.
            .custom_inbox_prefix(format!("_INBOX_{}", self.name))
            .connection_timeout(Duration::from_secs(5))
            .ping_interval(Duration::from_secs(10))
            .request_timeout(Some(Duration::from_secs(5)))
            .reconnect_delay_callback(|attempts| {
                Duration::from_millis((100 << attempts.min(6)).min(5000))
            })
            .event_callback(|event| async move {
                let news = match event {
                    Event::Connected => News::Connected,
                    Event::Disconnected | Event::Closed => News::Disconnected,
                    Event::ServerError(error) => News::Refused {
                        why: error.to_string(),
                    },
                    Event::ClientError(error) => News::Refused {
                        why: error.to_string(),
                    },
                    _ => return,
                };
                let _ = lines::write(&news);
            });
        if let Some(seed) = &self.nkey {
            options = options.nkey(seed.trim().to_owned());
        }
        if let Some(text) = &self.credentials {
            let read = options.credentials(text);
            options = read.map_err(|e| format!("cannot read the credentials: {e}"))?;
        }
        if self.tls_ca.is_some() || self.tls_certificate.is_some() {
            options = options.require_tls(true).tls_client_config(self.tls()?);
        }
        if patient {
            options = options.retry_on_initial_connect();
        }
        let address = self.url.parse::<ServerAddr>();
        let address = address.map_err(|e| format!("cannot read the server's address: {e}"))?;
        if let (Some(user), Some(password)) = (address.username(), address.password()) {
            options = options.user_and_password(user.to_owned(), password.to_owned());
        }
        let connected = options.connect(address).await;
        connected.map_err(|e| format!("cannot connect: {e}"))
    }

    /// The key that this one is known by, and signs with.
    pub fn key(&self) -> Result<KeyPair, String> {
        let text = self.nkey.as_ref().or(self.credentials.as_ref());
        key_in(text.ok_or("a private key is missing: name its file by --nkey or --creds")?)
    }

    fn tls(&self) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore::empty();
        let ca = self
            .tls_ca
            .as_ref()
            .ok_or("TLS requires the certificate of the authority")?;
        for one in certificates(ca)? {
            let added = roots.add(one);
            added.map_err(|e| format!("cannot use the certificate authority: {e}"))?;
        }
        let builder = ClientConfig::builder_with_provider(crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots);
        let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) else {
            return Ok(builder.with_no_client_auth());
        };
        let key = PrivateKeyDer::from_pem_reader(BufReader::new(key.as_bytes()))
            .map_err(|e| format!("cannot read the TLS key: {e}"))?;
        builder
            .with_client_auth_cert(certificates(certificate)?, key)
            .map_err(|e| format!("cannot use the TLS certificate: {e}"))
    }
}

fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_reader_iter(io::Cursor::new(text.as_bytes()));
    let all: Result<Vec<_>, _> = read.collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err("cannot read a certificate: the file holds none".to_owned()),
        Err(error) => Err(format!("cannot read a certificate: {error}")),
    }
}
