//! TLS for readers: trawl shows a certificate, and demands one that a given authority signed.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use trawl_plan::outputs::TlsPlan;
use trawl_sys::{Error, Result};

/// Reads the files of a plan.
pub(super) fn config(plan: &TlsPlan) -> Result<Arc<ServerConfig>> {
    let TlsPlan { cert, key, client_ca } = plan;
    let chain = certificates(cert)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, e))?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(client_ca)? {
        roots.add(authority).map_err(|e| unusable(client_ca, e))?;
    }
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
        .build()
        .map_err(|e| unusable(client_ca, e))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|config| {
            let config = config.with_client_cert_verifier(verifier);
            config.with_single_cert(chain, secret)
        });
    config.map(Arc::new).map_err(|e| unusable(cert, e).fix(format!("check that {} is its key", key.display())))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(all) if all.is_empty() => Err(unreadable(path, pem::Error::NoItemsFound)),
        read => read.map_err(|e| unreadable(path, e)),
    }
}

fn unreadable(path: &Path, error: pem::Error) -> Error {
    let what = format!("cannot read {}", path.display());
    match error {
        pem::Error::Io(error) => Error::os(what, error),
        pem::Error::NoItemsFound => Error::failed(what, "it contains no PEM item of the required type")
            .fix("cert= and client-ca= name certificates, key= a private key, in PEM"),
        error => Error::failed(what, error),
    }
}

fn unusable(path: &Path, error: impl fmt::Display) -> Error {
    Error::failed(format!("cannot use {} for TLS", path.display()), error)
}
