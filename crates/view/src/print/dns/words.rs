//! Names of what a DNS message holds in numbers.

use super::super::line::{Line, put};

pub(super) const OPERATIONS: [&str; 16] = [
    "",
    " inv_q",
    " stat",
    " op3",
    " notify",
    " update",
    " op6",
    " op7",
    " op8",
    " updateA",
    " updateD",
    " updateDA",
    " updateM",
    " updateMA",
    " zoneInit",
    " zoneRef",
];
pub(super) const RESPONSES: [&str; 24] = [
    "",
    " FormErr",
    " ServFail",
    " NXDomain",
    " NotImp",
    " Refused",
    " YXDomain",
    " YXRRSet",
    " NXRRSet",
    " NotAuth",
    " NotZone",
    " Resp11",
    " Resp12",
    " Resp13",
    " Resp14",
    " NoChange",
    " BadVers",
    "Resp17",
    " Resp18",
    " Resp19",
    " Resp20",
    "Resp21",
    " Resp22",
    " BadCookie",
];

/// A span in weeks, days, hours, minutes and seconds.
pub(super) fn put_span(line: &mut Line<'_>, mut seconds: u32) {
    if seconds == 0 {
        put!(line, "0s");
    }
    for (unit, letter) in [
        (604_800, 'w'),
        (86_400, 'd'),
        (3600, 'h'),
        (60, 'm'),
        (1, 's'),
    ] {
        if seconds >= unit {
            put!(line, "{}{letter}", seconds / unit);
            seconds %= unit;
        }
    }
}

pub(super) fn put_class(line: &mut Line<'_>, class: u16) {
    match class {
        3 => put!(line, "CHAOS"),
        4 => put!(line, "HS"),
        255 => put!(line, "ANY"),
        _ => put!(line, "(Class {class})"),
    }
}

pub(super) fn put_type(line: &mut Line<'_>, kind: u16) {
    const FIRST: [&str; 51] = [
        "", "A", "NS", "MD", "MF", "CNAME", "SOA", "MB", "MG", "MR", "NULL", "WKS", "PTR", "HINFO",
        "MINFO", "MX", "TXT", "RP", "AFSDB", "X25", "ISDN", "RT", "NSAP", "NSAP_PTR", "SIG", "KEY",
        "PX", "GPOS", "AAAA", "LOC", "NXT", "EID", "NIMLOC", "SRV", "ATMA", "NAPTR", "KX", "CERT",
        "A6", "DNAME", "SINK", "OPT", "APL", "DS", "SSHFP", "IPSECKEY", "RRSIG", "NSEC", "DNSKEY",
        "", "",
    ];
    let name = match kind {
        99 => "SPF",
        100 => "UINFO",
        101 => "UID",
        102 => "GID",
        103 => "UNSPEC",
        249 => "TKEY",
        250 => "TSIG",
        251 => "IXFR",
        252 => "AXFR",
        253 => "MAILB",
        254 => "MAILA",
        255 => "ANY",
        256 => "URI",
        kind => FIRST.get(usize::from(kind)).copied().unwrap_or(""),
    };
    match name {
        "" => put!(line, "Type{kind}"),
        name => put!(line, "{name}"),
    }
}
