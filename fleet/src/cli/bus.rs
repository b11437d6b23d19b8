//! Arguments about the connection to NATS.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use trawl_sys::{Error, Result};

use crate::bus::{Config, check_name};

/// The connection to NATS and its credentials.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "NATS")]
pub struct BusArgs {
    /// The private NKey: a file with its seed
    #[arg(long, value_name = "FILE", conflicts_with = "creds")]
    nkey: Option<PathBuf>,
    /// Credentials: a file with a JWT and its seed
    #[arg(long, value_name = "FILE")]
    creds: Option<PathBuf>,
    /// The certificate of this side, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA certificate of the server, in PEM; without it, tls://… trusts the system's authorities
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

fn contents(path: Option<&Path>) -> Result<Option<String>> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|e| Error::os(format!("cannot read {}", path.display()), e))
    };
    path.map(read).transpose()
}

impl BusArgs {
    /// Returns the options as they were typed, for another process of trawl's.
    pub fn typed(&self) -> Vec<OsString> {
        let Self { nkey, creds, tls_cert, tls_key, tls_ca } = self;
        let files = [
            ("--nkey", nkey),
            ("--creds", creds),
            ("--tls-cert", tls_cert),
            ("--tls-key", tls_key),
            ("--tls-ca", tls_ca),
        ];
        let given = files.into_iter().filter_map(|(name, file)| Some([name.into(), file.clone()?.into_os_string()]));
        given.flatten().collect()
    }

    /// Reads the credential files.
    pub fn config(&self, url: &str, name: &str) -> Result<Config> {
        check_name(name)?;
        Ok(Config {
            url: url.to_owned(),
            name: name.to_owned(),
            operators: Vec::new(),
            nkey: contents(self.nkey.as_deref())?,
            credentials: contents(self.creds.as_deref())?,
            tls_certificate: contents(self.tls_cert.as_deref())?,
            tls_key: contents(self.tls_key.as_deref())?,
            tls_ca: contents(self.tls_ca.as_deref())?,
            replicas: 1,
        })
    }
}
