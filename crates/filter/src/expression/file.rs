//! A capture file without packets, for libpcap to compile for: a handle that stands for no file has it compile as for an
//! interface.

use std::io::{PipeReader, Write, pipe};
use std::os::fd::AsRawFd;

use super::{ByteOrder, LinkType};

const MAGIC: u32 = 0xa1b2_c3d4;
const SNAPLEN: u32 = 262_144;

/// A handle that has read the file's header.
pub fn open(link: LinkType, order: ByteOrder) -> Result<pcap::Capture<pcap::Offline>, String> {
    let header = header(link, order);
    let reader = pipe_with(&header)
        .map_err(|e| format!("libpcap cannot be given an empty capture file: {e}"))?;
    // libpcap opens the pipe anew by this name.
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    pcap::Capture::from_file(path).map_err(|e| match e {
        pcap::Error::PcapError(message) => message,
        other => other.to_string(),
    })
}

/// A file's header is shorter than what a pipe holds, so nobody need read yet.
fn pipe_with(bytes: &[u8]) -> std::io::Result<PipeReader> {
    let (reader, mut writer) = pipe()?;
    writer.write_all(bytes)?;
    Ok(reader)
}

/// Numbers of link types in files are libpcap's own, or ones that it takes for them as well.
fn header(link: LinkType, order: ByteOrder) -> Vec<u8> {
    const VERSION: [u16; 2] = [2, 4];
    let words = [0, 0, SNAPLEN, link.0 as u32];
    let long = |word: u32| match order {
        ByteOrder::Little => word.to_le_bytes(),
        ByteOrder::Big => word.to_be_bytes(),
    };
    let short = |word: u16| match order {
        ByteOrder::Little => word.to_le_bytes(),
        ByteOrder::Big => word.to_be_bytes(),
    };
    let mut header = long(MAGIC).to_vec();
    header.extend(VERSION.map(short).concat());
    header.extend(words.map(long).concat());
    header
}

#[cfg(test)]
mod tests {
    use crate::classic::Classic;
    use crate::expression::{ByteOrder, LinkType, Options, compile};

    const BSD_LOOPBACK: LinkType = LinkType(0);

    fn compiled(expression: &str, link: LinkType, file: Option<ByteOrder>) -> Classic {
        let options = Options {
            link,
            file,
            ..Options::default()
        };
        compile(expression, &options).unwrap_or_else(|e| panic!("{expression}: {e}"))
    }

    #[test]
    fn loopback_headers_are_of_the_system_that_wrote_the_file() {
        for (order, family) in [
            (ByteOrder::Little, u32::to_le_bytes as fn(u32) -> [u8; 4]),
            (ByteOrder::Big, u32::to_be_bytes),
        ] {
            let ip6 = compiled("ip6", BSD_LOOPBACK, Some(order));
            for (number, expected) in [(24, true), (28, true), (30, true), (10, false), (2, false)]
            {
                let mut packet = family(number).to_vec();
                packet.resize(60, 0);
                assert_eq!(ip6.run(&packet, 60) != 0, expected, "{order:?}, {number}");
            }
        }
    }

    #[test]
    fn what_no_file_tells_is_refused_in_libpcaps_words() {
        for (expression, words) in [
            (
                "tcp and inbound",
                "inbound/outbound not supported on Ethernet",
            ),
            ("ifindex 1", "ifindex not supported on Ethernet"),
        ] {
            let options = Options {
                file: Some(ByteOrder::Little),
                ..Options::default()
            };
            let error = compile(expression, &options).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(compile(expression, &Options::default()).is_ok());
        }
    }

    #[test]
    fn ethernet_is_the_same_either_way() {
        for expression in ["tcp port 80", "vlan 5 and ip6", "pppoes and host 10.0.0.1"] {
            let live = compiled(expression, LinkType::ETHERNET, None);
            let file = compiled(expression, LinkType::ETHERNET, Some(ByteOrder::Little));
            assert_eq!(live, file, "{expression}");
        }
    }
}
