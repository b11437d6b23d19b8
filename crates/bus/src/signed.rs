//! What is desired of a host, with an operator's signature over the host, the revision and the text: whoever can write to
//! the bus, or have the server write there, desires nothing.

use nkeys::KeyPair;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signed {
    /// Counted up by the operators, not by the server, which may begin anew.
    pub revision: u64,
    /// The operator's public key.
    operator: String,
    /// In hexadecimal digits.
    signature: String,
    pub desired: String,
}

/// The private key in a file of an NKey or of credentials.
pub fn key_in(text: &str) -> Result<KeyPair, String> {
    let seed = text
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("SU"));
    let seed = seed.ok_or("the file holds no private key of a user (SU…)")?;
    KeyPair::from_seed(seed).map_err(|e| format!("cannot use the private key: {e}"))
}

impl Signed {
    pub fn new(key: &KeyPair, host: &str, revision: u64, desired: String) -> Result<Self, String> {
        let signature = key.sign(&signed_bytes(host, revision, &desired));
        let signature = signature.map_err(|e| format!("cannot sign: {e}"))?;
        Ok(Self {
            revision,
            operator: key.public_key(),
            signature: signature.iter().map(|byte| format!("{byte:02x}")).collect(),
            desired,
        })
    }

    /// Reads what one of these operators desires of a host; any operator, where none is named.
    pub fn open(bytes: &[u8], host: &str, operators: Option<&[String]>) -> Result<Self, String> {
        let signed: Self = serde_json::from_slice(bytes).map_err(|_| "it is not signed")?;
        if operators.is_some_and(|all| !all.contains(&signed.operator)) {
            return Err("it is signed by a key that is no operator's here".to_owned());
        }
        let key = KeyPair::from_public_key(&signed.operator).map_err(|e| e.to_string())?;
        let bytes = signed_bytes(host, signed.revision, &signed.desired);
        let signature = digits(&signed.signature).ok_or("its signature is damaged")?;
        key.verify(&bytes, &signature)
            .map_err(|_| "its signature is of another host or text")?;
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
    fn only_what_an_operator_signed_for_the_host_is_opened() {
        let (key, other) = (KeyPair::new_user(), KeyPair::new_user());
        let signed = Signed::new(&key, "alpha", 7, "{}".to_owned()).expect("signed");
        let text = serde_json::to_string(&signed).expect("JSON");
        let operators = [key.public_key()];
        let open = |text: &str, host: &str, operators: &[String]| {
            Signed::open(text.as_bytes(), host, Some(operators))
                .map(|one| (one.revision, one.desired))
        };
        assert_eq!(open(&text, "alpha", &operators), Ok((7, "{}".to_owned())));
        for (text, host, operators) in [
            (text.clone(), "beta", &operators[..]),
            (text.replace(":7,", ":8,"), "alpha", &operators),
            (text.replace("\"{}\"", "\"{ }\""), "alpha", &operators),
            (text.clone(), "alpha", &[other.public_key()]),
            (text.clone(), "alpha", &[]),
            (text.replace(&signed.signature, "0"), "alpha", &operators),
            ("{\"captures\": []}".to_owned(), "alpha", &operators),
            (
                "{\"stream\":\"KV_trawl\",\"seq\":9}".to_owned(),
                "alpha",
                &operators,
            ),
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
