//! Operators and agents of a newer version on the bus.

use std::fs;

use serde_json::{Value, json};
use trawl_tests::{Lab, wait_until};

use super::{Attacker, Nats, OPERATOR, PASSWORD, desired, openssl, phase_of, revision_of, start_capture};

/// Returns the private key of a seed: 32 bytes between a prefix of two bytes and a checksum of two bytes.
fn private_key(seed: &str) -> Vec<u8> {
    const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let (mut bits, mut held, mut bytes) = (0_u32, 0, Vec::new());
    for letter in seed.chars() {
        bits = (bits << 5) | LETTERS.find(letter).expect("base32") as u32;
        held += 5;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes[2..34].to_vec()
}

/// Signs a desired state as an operator, with OpenSSL.
fn signed(nats: &Nats, host: &str, revision: u64, desired: &str) -> String {
    let file = |name: &str| format!("{}/{name}", nats.directory);
    // PKCS 8 prefixes an Ed25519 key with these bytes.
    let head = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    let key = [&head[..], &private_key(OPERATOR[0])].concat();
    fs::write(file("operator.der"), key).expect("a file");
    let text = format!("trawl desired state\n{host}\n{revision}\n{desired}");
    fs::write(file("text"), text).expect("a file");
    openssl(&nats.directory, "pkeyutl -sign -rawin -inkey operator.der -keyform DER -in text -out signature");
    let signature = fs::read(file("signature")).expect("a signature");
    let digits: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({ "revision": revision, "operator": OPERATOR[1], "signature": digits, "desired": desired }).to_string()
}

/// The desired state of a newer operator is named, neither followed nor replaced; the report of a newer agent is shown.
#[test]
fn newer_operators_and_agents_are_named() {
    let Some(lab) = Lab::open() else { return };
    let accounts = format!(
        "authorization {{ users = [ {{ nkey: {} }}, {{ user: alpha, password: \"{PASSWORD}\" }} ] }}",
        OPERATOR[1]
    );
    let Some(nats) = Nats::with_passwords(&lab, &accounts) else {
        return;
    };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    start_capture(&nats, &lab, "alpha");
    let mut bus = Attacker::as_host(&nats, "alpha");
    let revision = revision_of(&nats, "alpha") + 100;
    let state = r#"{"captures": [], "colour": "red"}"#;
    let newer = signed(&nats, "alpha", revision, state);
    assert_eq!(bus.publish(&desired("alpha"), "", &newer), "+OK");
    wait_until("the error is reported", || {
        let status = nats.status("alpha");
        let error = status["hosts"][0]["state"]["error"].as_str();
        error.is_some_and(|why| why.contains("colour") && why.contains("newer trawl"))
    });
    let table = nats.fleet(&["status", "alpha"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("colour"), "{table}");
    assert_eq!(phase_of(&nats.status("alpha"), "alpha"), "running");
    let stopped = nats.fleet(&["stop", "alpha"]);
    let said = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert_eq!(stopped.status.code(), Some(1), "{said}");
    assert!(said.contains("newer trawl") && said.contains("not changed") && said.contains("colour"), "{said}");
    assert_eq!(revision_of(&nats, "alpha"), revision);
    // One report has an unknown phase, and the other an unknown form.
    let account = json!({ "seen": 9, "filtered_out": 0, "recorded": 7 });
    let report = json!({
        "host": "beta", "revision": 1, "time_ns": 1, "trawl": "99", "captures": [{
            "name": "c", "interfaces": ["eth0"], "store": "file:///s", "phase": "hibernating", "starts": 1,
            "failures": 0, "account": account,
        }],
    });
    for (host, report) in [("beta", report), ("gamma", json!({ "form": 2 }))] {
        let subject = format!("$KV.trawl.state.{host}");
        assert_eq!(bus.publish(&subject, "", &report.to_string()), "+OK");
    }
    wait_until("both are known", || {
        let hosts = nats.status("*")["hosts"].as_array().map(Vec::len);
        hosts == Some(3)
    });
    let status = nats.status("beta");
    assert_eq!(phase_of(&status, "beta"), "unknown");
    let capture = &status["hosts"][0]["state"]["captures"][0];
    assert_eq!(capture["account"]["recorded"], 7, "{status}");
    let error: &Value = &nats.status("gamma")["hosts"][0]["error"];
    assert!(error.as_str().is_some_and(|why| why.contains("update")), "{error}");
    assert_eq!(alpha.stop().status.code(), Some(0));
}
