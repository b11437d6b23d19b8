//! One `-w`: a path, or an address for readers, and after commas the options of that output alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use trawl_front::saving::Packing;
use trawl_plan::outputs::{Format, LISTEN, ListenPlan, TlsPlan};
use trawl_sys::{Error, Result};

use super::recording::snaplen;

/// An output as given.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedOutput {
    pub(crate) path: PathBuf,
    pub(crate) snaplen: Option<u32>,
    pub(crate) format: Option<Format>,
    pub(crate) compress: Option<Packing>,
    pub(crate) listen: Option<ListenPlan>,
}

impl NamedOutput {
    pub(crate) fn parse(text: &Path) -> Result<Self> {
        match text.to_str() {
            Some(name) => match name.strip_prefix(LISTEN) {
                Some(address) => listening(name, address),
                None => Self::of_file(name),
            },
            None => Ok(Self { path: text.to_owned(), ..Self::default() }),
        }
    }

    /// Parses a file's name. A part after a comma that does not look like an option belongs to the name.
    fn of_file(text: &str) -> Result<Self> {
        let mut wanted = Self::default();
        let mut rest = text;
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        while let Some((front, word)) = rest.rsplit_once(',') {
            match word.split_once('=') {
                Some((name, value)) if wanted.set(text, name, value)? => {}
                Some((name, value)) if is_word(name) && is_word(value) => {
                    return Err(not_among(text, name, "snaplen, format, compress"));
                }
                _ => break,
            }
            rest = front;
        }
        if rest.is_empty() {
            let what = format!("cannot write to '{text}'");
            return Err(Error::usage(what, "no file is named").fix("-w FILE,snaplen=N"));
        }
        wanted.path = PathBuf::from(rest);
        Ok(wanted)
    }

    /// Sets an option that all outputs have; returns false for any other option.
    fn set(&mut self, text: &str, name: &str, value: &str) -> Result<bool> {
        match (name, value) {
            ("snaplen", value) => {
                let length = value.parse().map_err(|_| refused(text, format!("'{value}' is not a number of bytes")))?;
                self.snaplen = Some(snaplen(length)?);
            }
            ("compress", name) => {
                let packing =
                    Packing::from_str(name, false).map_err(|_| not_among(text, name, "none, zstd, lz4, gzip"))?;
                self.compress = Some(packing);
            }
            ("format", "pcap") => self.format = Some(Format::Pcap),
            ("format", "pcapng") => self.format = Some(Format::Pcapng),
            ("format", name) => return Err(not_among(text, name, "pcap, pcapng")),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Parses an output to which readers connect; `rest` follows the start of its name.
fn listening(text: &str, rest: &str) -> Result<NamedOutput> {
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

fn refused(text: &str, why: String) -> Error {
    Error::usage(format!("cannot write to {text}"), why)
}

fn not_among(text: &str, name: &str, all: &str) -> Error {
    refused(text, format!("'{name}' is not one of {all}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_commas_and_options_may_not_be_mistaken() {
        let parse = |text: &str| NamedOutput::parse(Path::new(text));
        for name in ["a,b.pcapng", "a,host=web.pcapng", "a,b=/c", "a=b,c.pcap"] {
            assert_eq!(parse(name).expect("a name").path, Path::new(name));
        }
        let wanted = parse("a,b.pcapng,snaplen=64,format=pcap").expect("options");
        assert_eq!(wanted.path, Path::new("a,b.pcapng"));
        assert_eq!(wanted.snaplen, Some(64));
        for text in ["a,snap=64", "a,compress=zstd,foo=1", "a,foo=1,snaplen=64", "a,format="] {
            parse(text).expect_err(text);
        }
    }

    fn plan(rest: &str) -> Result<ListenPlan> {
        let wanted = listening(&format!("{LISTEN}{rest}"), rest)?;
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
