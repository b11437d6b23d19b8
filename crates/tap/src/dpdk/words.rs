//! What the helper said, in words for people.

use std::collections::BTreeSet;

use crate::event::Event;
use trawl_io::dpdk::{Helper, Line, PROGRAM, VARIABLE};
use trawl_sys::Error;

const BUILD: &str = "make build-dpdk";

pub fn no_helper() -> Error {
    Error::failed(
        "cannot use the dpdk tap",
        format!("its helper {PROGRAM} was not found next to trawl, and {VARIABLE} names none"),
    )
    .fix("make build-dpdk (apt-get install libdpdk-dev), with the same version of DPDK as the application's")
}

pub fn other_build(theirs: &str) -> Error {
    Error::failed(
        "cannot use the dpdk tap",
        format!("{PROGRAM} is of another build of trawl (exchange {theirs})"),
    )
    .fix(BUILD)
}

pub fn fell_silent(label: &str, helper: &Helper) -> Error {
    let said = helper
        .last_words()
        .unwrap_or_else(|| "it said nothing".to_owned());
    Error::failed(
        format!("cannot capture on {label}"),
        format!("{PROGRAM} has ended without saying why: {said}"),
    )
}

/// Why the helper does not capture.
pub fn refused(label: &str, prefix: &str, line: &Line, helper: &Helper) -> Error {
    let what = format!("cannot capture on {label}");
    let log = || {
        helper
            .last_words()
            .map_or(String::new(), |said| format!(" ({said})"))
    };
    let [first, second, third, fourth] = [1, 2, 3, 4].map(|number| line.field(number));
    match line.field(0) {
        "no_primary" => Error::failed(
            what,
            format!("no DPDK application with the file prefix {prefix} is running: {first}: {second}"),
        )
        .fix("--file-prefix names another one; ls /run/dpdk shows those that were started"),
        "not_ready" => Error::failed(
            what,
            format!("the DPDK application with the file prefix {prefix} has not finished its start"),
        )
        .fix("try again"),
        "version" => Error::failed(
            what,
            format!("the application has DPDK {first}, {PROGRAM} was built for {second}; both must have the same version"),
        )
        .fix(format!("PKG_CONFIG_PATH=DIRECTORY-OF-THAT-libdpdk.pc {BUILD}")),
        "init" => Error::failed(
            what,
            format!("DPDK cannot join the application as a secondary process: {first}{}", log()),
        )
        .fix("start it without --no-huge and without --in-memory"),
        "no_pool" => Error::failed(
            what,
            "the application has no packet pool of the kind ring_mp_mc, from which its table of pool operations is learnt",
        )
        .fix("start it with --mbuf-pool-ops-name=ring_mp_mc"),
        "no_pdump" => Error::failed(
            what,
            "the application has not started DPDK's capture framework",
        )
        .fix("it has to call rte_pdump_init(), as dpdk-testpmd does"),
        "no_port" => Error::usage(
            what,
            match second {
                "" => "the application has no ports that a secondary process sees".to_owned(),
                ports => format!("the application has no port {first}; its ports are {ports}"),
            },
        ),
        "no_queue" => Error::usage(
            what,
            format!("port {first} has no queue {second}: it receives by {third} and sends by {fourth}"),
        ),
        "filter" => Error::failed(
            "cannot use this filter with the dpdk tap",
            format!("DPDK cannot convert it: {first}{}", log()),
        )
        .fix("record without it, and use: trawl read -r FILE -w FILTERED EXPRESSION"),
        "exists" => Error::failed(
            what,
            match second {
                "0" => format!("another capture is on port {first}, and DPDK allows one"),
                pid => format!("another capture is on port {first} (process {pid}), and DPDK allows one"),
            },
        )
        .fix("end that one first"),
        "memory" => Error::failed(
            what,
            format!("the application's huge pages have no room for the copies of packets: {first}"),
        )
        .fix("sysctl -w vm.nr_hugepages=NUMBER allows more, and the application must be allowed to take them"),
        "pdump" => Error::failed(what, format!("the application refuses the capture of port {first}: {second}{}", log())),
        "owner" => Error::failed(what, format!("cannot write in {first}: {second}")),
        "places" => Error::usage(what, format!("{first} queues are the limit"))
            .fix("choose one queue with --queue, or one port"),
        _ => Error::failed(what, line.rest.join(" ")),
    }
}

/// What was removed of captures that had been killed.
pub fn cleared(label: &str, lines: &[Line]) -> Vec<Event> {
    let of = |line: &Line| {
        (line.word == "cleared").then(|| (line.field(1).to_owned(), line.field(0).to_owned()))
    };
    let found: BTreeSet<(String, String)> = lines.iter().filter_map(of).collect();
    found
        .into_iter()
        .map(|(pid, port)| Event::DpdkPortCleared {
            interface: label.to_owned(),
            port,
            pid,
        })
        .collect()
}
