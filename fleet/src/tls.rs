//! Certificates and keys for TLS, of clients and of the embedded bus.

use std::io::Cursor;
use std::sync::Arc;

use async_nats::rustls::crypto::{CryptoProvider, ring};
use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use async_nats::rustls::server::WebPkiClientVerifier;
use async_nats::rustls::server::danger::ClientCertVerifier;
use async_nats::rustls::{ClientConfig, RootCertStore, ServerConfig};

type Done<T> = Result<T, String>;

fn provider() -> Arc<CryptoProvider> {
    ring::default_provider().into()
}

/// Returns the authorities that this system trusts.
fn system_roots() -> Done<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or("this system has none".to_owned(), ToString::to_string);
        return Err(format!("cannot find the certificates of public authorities: {why}; name one by --tls-ca"));
    }
    Ok(roots)
}

fn roots(ca: &str) -> Done<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for one in certificates(ca)? {
        let added = roots.add(one);
        added.map_err(|e| format!("cannot use the certificate authority: {e}"))?;
    }
    Ok(roots)
}

/// Returns the options of a client with its certificate and key, if it has them. Without an authority, it trusts the
/// system's.
pub fn client(ca: Option<&str>, identity: Option<(&str, &str)>) -> Done<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(ca.map_or_else(system_roots, roots)?);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let config = builder.with_client_auth_cert(certificates(certificate)?, private_key(key)?);
            config.map_err(|e| format!("cannot use the TLS certificate: {e}"))
        }
    }
}

/// Returns the options of a server. With an authority, clients must have certificates of it.
pub fn server(certificate: &str, key: &str, ca: Option<&str>) -> Done<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = match ca {
        None => builder.with_no_client_auth(),
        Some(ca) => builder.with_client_cert_verifier(verifier(ca)?),
    };
    let config = builder.with_single_cert(certificates(certificate)?, private_key(key)?);
    config.map_err(|e| format!("cannot use the TLS certificate: {e}"))
}

fn verifier(ca: &str) -> Done<Arc<dyn ClientCertVerifier>> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(ca)?.into(), provider()).build();
    verifier.map_err(|e| format!("cannot verify clients: {e}"))
}

/// Checks that a server with this authority accepts a client's certificate.
pub fn verify(ca: &str, certificate: &str) -> Done<()> {
    let [own] = &certificates(certificate)?[..] else {
        return Err("there are several certificates".to_owned());
    };
    let verified = verifier(ca)?.verify_client_cert(own, &[], UnixTime::now());
    verified.map(drop).map_err(|e| e.to_string())
}

fn private_key(text: &str) -> Done<PrivateKeyDer<'static>> {
    let read = PrivateKeyDer::from_pem_reader(Cursor::new(text.as_bytes()));
    read.map_err(|e| format!("cannot read the TLS key: {e}"))
}

fn certificates(text: &str) -> Done<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_reader_iter(Cursor::new(text.as_bytes()));
    let all: Result<Vec<_>, _> = read.collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err("cannot read a certificate: the file contains none".to_owned()),
        Err(error) => Err(format!("cannot read a certificate: {error}")),
    }
}
