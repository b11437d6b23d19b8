//! Certificates of a fleet: an authority, and what it signs for servers, hosts and operators.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ED25519, date_time_ymd,
};
use trawl_sys::{Error, Result, clock};

const DAY: Duration = Duration::from_secs(86_400);

/// A certificate and its private key, in PEM.
pub struct Certified {
    pub certificate: String,
    pub key: String,
}

/// The authority that signs a fleet's certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub own: Certified,
    days: u32,
}

fn failed(error: rcgen::Error) -> Error {
    Error::failed("cannot make a certificate", error)
}

/// Returns the parameters of a certificate that is valid from yesterday, because clocks differ.
fn parameters(name: &str, alternatives: Vec<String>, days: u32) -> Result<CertificateParams> {
    let mut parameters = CertificateParams::new(alternatives).map_err(failed)?;
    let now = date_time_ymd(1970, 1, 1) + Duration::from_nanos(clock::wall());
    parameters.not_before = now - DAY;
    parameters.not_after = now + DAY * days;
    parameters.distinguished_name.push(DnType::CommonName, name);
    Ok(parameters)
}

/// Returns the parameters of an authority. Its name and its key are all that its signatures depend on.
fn of_authority(days: u32) -> Result<CertificateParams> {
    let mut parameters = parameters("trawl fleet", Vec::new(), days)?;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(parameters)
}

impl Authority {
    pub fn new(days: u32) -> Result<Self> {
        let parameters = of_authority(days)?;
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed)?;
        let certificate = parameters.self_signed(&key).map_err(failed)?;
        let own = Certified { certificate: certificate.pem(), key: key.serialize_pem() };
        Ok(Self { issuer: Issuer::new(parameters, key), own, days })
    }

    /// Returns the authority that was made earlier, by its certificate and its key.
    pub fn of(certificate: String, key: String, days: u32) -> Result<Self> {
        let parsed = KeyPair::from_pem(&key).map_err(|e| Error::failed("cannot use the authority's key", e))?;
        Ok(Self { issuer: Issuer::new(of_authority(days)?, parsed), own: Certified { certificate, key }, days })
    }

    /// Signs a certificate for a server with these names or addresses, or without them for a client. Servers of a
    /// cluster are each other's clients.
    pub fn sign(&self, name: &str, addresses: &[String]) -> Result<Certified> {
        let mut parameters = parameters(name, addresses.to_vec(), self.days)?;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !addresses.is_empty() {
            parameters.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        parameters.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed)?;
        let certificate = parameters.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Certified { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}
