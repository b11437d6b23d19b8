//! Expressions and programs made from arbitrary bytes.

use trawl_filter::expression::{self, CompilerOptions};
use trawl_filter::{Classic, Target, lower};

/// Tokens of expressions. Names are left out, since libpcap would resolve them over the network.
const WORDS: [&str; 64] = [
    "and",
    "or",
    "not",
    "(",
    ")",
    "[",
    "]",
    "&&",
    "||",
    "!",
    "&",
    "|",
    "=",
    "!=",
    "<",
    ">",
    "<=",
    ">=",
    "<<",
    ">>",
    "+",
    "-",
    "*",
    "/",
    "%",
    "^",
    ":",
    ",",
    "\\",
    ".",
    "host",
    "net",
    "mask",
    "port",
    "portrange",
    "proto",
    "protochain",
    "gateway",
    "broadcast",
    "multicast",
    "src",
    "dst",
    "ether",
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp",
    "icmp",
    "vlan",
    "mpls",
    "geneve",
    "pppoes",
    "atalk",
    "less",
    "len",
    "10.0.0.1",
    "10.0.0.0/8",
    "2001:db8::1",
    "1:2:3:4:5:6",
    "80",
    "0x806",
    "1-9",
    "\u{e9}\0",
];

/// Returns the text that bytes encode: the lower six bits select a token, the highest one adds a space.
pub fn expression_of(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        text.push_str(WORDS[usize::from(byte & 0x3f)]);
        if byte & 0x80 == 0 {
            text.push(' ');
        }
    }
    text
}

/// Compiles and lowers the expression of the bytes, alone and inside one long enough to be split.
pub fn expression(bytes: &[u8]) {
    let text = expression_of(&bytes[..bytes.len().min(64)]);
    let alone = is_accepted(&text);
    let long = format!("{}{text}", "ether src 2:0:0:0:0:7 or ".repeat(expression::MIN_SPLIT_LIST));
    let in_long = is_accepted(&long);
    // libpcap may also refuse the long text: a number after an operator inherits the qualifier of the preceding term,
    // and may be invalid with it.
    assert!(
        !alone || in_long || !expression::compiles_whole(&long),
        "`{text}` is accepted alone but not after many others"
    );
}

/// Compiles and lowers a text, or shows where its error is. Returns true if it compiles.
fn is_accepted(text: &str) -> bool {
    let options = CompilerOptions::default();
    match expression::compile(text, &options) {
        Ok(program) => {
            let _ = lower(&program, &Target::xdp());
            true
        }
        Err(error) => {
            let _ = error.caret(text);
            false
        }
    }
}

/// Runs a program in the form of `tcpdump -ddd`, up to an empty line, on the packet after it.
pub fn program(bytes: &[u8]) {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n");
    let (text, packet) = bytes.split_at(end.unwrap_or(bytes.len()));
    let parsed = std::str::from_utf8(text).map(Classic::parse);
    let Ok(Ok(program)) = parsed else {
        return;
    };
    let length = packet.len() as u32;
    assert!(program.run(packet, length) == 0 || !program.instructions().is_empty());
    assert_eq!(Classic::parse(&program.to_ddd()).expect("as it was printed"), program);
    let _ = lower(&program, &Target::xdp());
}
