//! `-w tcp-listen:…`: an address at which readers connect to the packets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use trawl_plan::outputs::{LISTEN, ListenPlan, TlsPlan};
use trawl_sys::Result;

use super::named_output::{NamedOutput, not_among, refused};

/// Parses an output; `rest` follows the start of its name.
pub(super) fn parse(text: &str, rest: &str) -> Result<NamedOutput> {
    let mut wanted = NamedOutput::default();
    let (mut cert, mut key, mut client_ca, mut is_plain) = (None, None, None, false);
    let mut parts = rest.split(',');
    let address = address(text, parts.next().unwrap_or_default())?;
    for part in parts {
        match part.split_once('=').unwrap_or((part, "")) {
            ("plain", "") => is_plain = true,
            ("cert", file) => cert = Some(PathBuf::from(file)),
            ("key", file) => key = Some(PathBuf::from(file)),
            ("client-ca", file) => client_ca = Some(PathBuf::from(file)),
            (name, value) if wanted.set(text, name, value)? => {}
            (name, _) => {
                let all = "snaplen, format, compress, cert, key, client-ca, plain";
                return Err(not_among(text, name, all));
            }
        }
    }
    let tls = match (cert, key, client_ca) {
        (Some(cert), Some(key), Some(client_ca)) => Some(TlsPlan { cert, key, client_ca }),
        (None, None, None) => None,
        _ => {
            let why = "TLS needs trawl's certificate, its key, and the authority of the readers";
            return Err(refused(text, why.to_owned()).fix("give all of cert=FILE,key=FILE,client-ca=FILE"));
        }
    };
    if is_plain && tls.is_some() {
        return Err(refused(text, "plain and TLS exclude each other".to_owned()));
    }
    let name = format!("{LISTEN}{address}");
    if tls.is_none() && !is_plain && !address.ip().to_canonical().is_loopback() {
        let why = "the packets would leave this machine unencrypted, for everyone who connects";
        return Err(refused(text, why.to_owned())
            .fix(format!("-w {name},cert=FILE,key=FILE,client-ca=FILE for TLS, or -w {name},plain")));
    }
    wanted.path = PathBuf::from(name);
    wanted.listen = Some(ListenPlan { address, tls });
    Ok(wanted)
}

/// Parses PORT, ADDRESS:PORT or [IPv6]:PORT.
fn address(text: &str, address: &str) -> Result<SocketAddr> {
    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let port = address.strip_prefix("localhost:").unwrap_or(address);
    let parsed = port.parse().map(|port| SocketAddr::new(LOOPBACK, port));
    parsed.or_else(|_| address.parse()).map_err(|_| {
        let why = format!("'{address}' is not PORT, ADDRESS:PORT or [IPV6]:PORT");
        refused(text, why).fix(format!("for example -w {LISTEN}127.0.0.1:57012"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rest: &str) -> Result<ListenPlan> {
        let wanted = parse(&format!("{LISTEN}{rest}"), rest)?;
        Ok(wanted.listen.expect("an address"))
    }

    #[test]
    fn addresses_are_loopback_unless_said_otherwise() {
        for (text, address) in [
            ("57012", "127.0.0.1:57012"),
            ("localhost:0", "127.0.0.1:0"),
            ("127.0.0.2:1,format=pcap", "127.0.0.2:1"),
            ("[::1]:57012", "[::1]:57012"),
            ("0.0.0.0:57012,plain", "0.0.0.0:57012"),
            ("[::]:1,snaplen=64,cert=a,key=b,client-ca=c", "[::]:1"),
        ] {
            let plan = plan(text).expect(text);
            assert_eq!(plan.address.to_string(), address);
            assert_eq!(plan.tls.is_some(), text.contains("cert="));
        }
    }

    #[test]
    fn errors_say_what_to_type() {
        for (text, fix) in [
            ("", "tcp-listen:127.0.0.1:57012"),
            ("web:57012", "tcp-listen:127.0.0.1:57012"),
            ("127.0.0.1", "tcp-listen:127.0.0.1:57012"),
            ("::1:57012x", "tcp-listen:127.0.0.1:57012"),
            ("99999", "tcp-listen:127.0.0.1:57012"),
            ("0.0.0.0:57012", "-w tcp-listen:0.0.0.0:57012,plain"),
            ("[::ffff:10.0.0.1]:1", ",client-ca=FILE"),
            ("0.0.0.0:57012,cert=a,key=b", "client-ca=FILE"),
            ("1,plain,cert=a,key=b,client-ca=c", "exclude each other"),
            ("1,secure", "cert, key, client-ca, plain"),
        ] {
            let error = plan(text).expect_err(text).to_string();
            assert!(error.contains(fix), "{error}");
        }
    }
}
