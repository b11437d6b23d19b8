//! Expressions for files, which libpcap compiles differently than for an interface.

use crate::classic::Classic;
use crate::expression::{ByteOrder, CompilerOptions, LinkType, compile};

const BSD_LOOPBACK: LinkType = LinkType(0);

fn compiled(expression: &str, link: LinkType, file: Option<ByteOrder>) -> Classic {
    let options = CompilerOptions { link, file, ..CompilerOptions::default() };
    compile(expression, &options).unwrap_or_else(|e| panic!("{expression}: {e}"))
}

#[test]
fn loopback_headers_are_of_the_system_that_wrote_the_file() {
    for (order, family) in
        [(ByteOrder::Little, u32::to_le_bytes as fn(u32) -> [u8; 4]), (ByteOrder::Big, u32::to_be_bytes)]
    {
        let ip6 = compiled("ip6", BSD_LOOPBACK, Some(order));
        for (number, expected) in [(24, true), (28, true), (30, true), (10, false), (2, false)] {
            let mut packet = family(number).to_vec();
            packet.resize(60, 0);
            assert_eq!(ip6.run(&packet, 60) != 0, expected, "{order:?}, {number}");
        }
    }
}

#[test]
fn facts_missing_in_files_are_refused_with_libpcaps_message() {
    for (expression, words) in [
        ("tcp and inbound", "inbound/outbound not supported on Ethernet"),
        ("ifindex 1", "ifindex not supported on Ethernet"),
    ] {
        let options = CompilerOptions { file: Some(ByteOrder::Little), ..CompilerOptions::default() };
        let error = compile(expression, &options).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(compile(expression, &CompilerOptions::default()).is_ok());
    }
}

#[test]
fn ethernet_programs_are_the_same_for_files() {
    for expression in ["tcp port 80", "vlan 5 and ip6", "pppoes and host 10.0.0.1"] {
        let live = compiled(expression, LinkType::ETHERNET, None);
        let file = compiled(expression, LinkType::ETHERNET, Some(ByteOrder::Little));
        assert_eq!(live, file, "{expression}");
    }
}
