//! Verdicts on packets, each counted once.

use super::*;
use trawl_tests::args;

const SIZE: usize = 8 << 20;

fn pattern() -> Vec<u8> {
    (0..SIZE).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Transfers data from a to b and back while `meanwhile` runs, ending only after it.
fn transfer_during(lab: &Lab, meanwhile: impl FnOnce()) {
    let listener = run_in(&lab.pair.b.namespace, || TcpListener::bind((B4, 7000))).expect("the namespace");
    let listener = listener.expect("a listener");
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut got = vec![0; SIZE];
            stream.read_exact(&mut got).expect("all of it");
            stream.write_all(&got).expect("all of it back");
        });
        let stream = run_in(&lab.pair.a.namespace, || TcpStream::connect((B4, 7000))).expect("the namespace");
        let mut stream = stream.expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        let sent = pattern();
        // The first half is sent before the flood, and the rest during and after it.
        stream.write_all(&sent[..SIZE / 2]).expect("the first half");
        let mut writer = stream.try_clone().expect("a second handle");
        let rest = sent[SIZE / 2..].to_vec();
        let writing = scope.spawn(move || writer.write_all(&rest).expect("the rest"));
        meanwhile();
        let mut back = vec![0; SIZE];
        stream.read_exact(&mut back).expect("all of it comes back");
        assert!(back == sent, "bytes were changed");
        writing.join().expect("no panic");
        echo.join().expect("no panic");
    });
}

#[test]
fn floods_are_dropped_while_a_connection_holds() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--proto", "udp", "--port", "9"]);
    guarded.well(&["preset", "syn-flood", "--rate", "50"]);
    let added = guarded.well(&["preset", "ping-flood", "--json"]);
    let added: Value = serde_json::from_str(&added).expect("JSON");
    assert_eq!(added["id"], 3);
    const FLOOD: u64 = 150_000;
    let start = Instant::now();
    transfer_during(&lab, || {
        for flood in [udp_from(A4, 9), syn_from(A4), ping_from(A4)] {
            guarded.send(&[flood], FLOOD);
        }
    });
    let seconds = start.elapsed().as_secs() + 1;
    assert_eq!(guarded.hits(1), FLOOD);
    // The rule allows this many packets per second, and at once as many as in a tenth of a second. One of the packets
    // is the client's own.
    for (rule, rate) in [(2, 50), (3, 10)] {
        let hits = guarded.hits(rule);
        let allowed = rate * seconds + rate / 10 + 2;
        assert!(hits <= FLOOD + 1 && hits + allowed >= FLOOD, "rule {rule}: {hits} of {FLOOD}");
    }
    let figures = guarded.figures(&["seen", "passed", "dropped", "rule_denied", "over_rate"]);
    assert_eq!(figures[0], figures[1] + figures[2]);
    assert_eq!(figures[3], FLOOD);
    assert_eq!(figures[4], guarded.hits(2) + guarded.hits(3));
}

#[test]
fn default_deny_passes_allowed_packets_and_counts_the_rest() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&args!("allow --src 10.77.0.0/24 --proto tcp --port 7000-7001"));
    transfer_during(&lab, || guarded.send(&[udp_from(A4, 7000)], 1000));
    let arp = Template::new().ethernet(FROM, TO).arp(Arp::request(FROM, A4, B4)).frame_len(60).build();
    let solicitation = Template::new()
        .ethernet(FROM, TO)
        .layer(Layer::Ipv6(Ipv6 {
            src: "fd00:77::1".parse().expect("an address"),
            dst: "fd00:77::2".parse().expect("an address"),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 255,
            next_header: None,
        }))
        .icmpv6(Icmp { kind: 135, ..Icmp::default() })
        .payload([0; 20])
        .build();
    for frame in [frames::ipv6_udp(0), frames::ipv4_udp(1), frames::ipv6_udp(2), arp, solicitation, frames::silent(64)]
    {
        guarded.send(&[frame], 100);
    }
    let cut_short = udp_from(A4, 9)[..36].to_vec();
    guarded.send(&[cut_short], 10);
    let names = ["default_denied", "not_ip", "discovery", "malformed", "rule_denied", "over_rate", "default_allowed"];
    assert_eq!(guarded.figures(&names), [1300, 200, 100, 10, 0, 0, 0]);
    let default = &guarded.list()["defaults"][0];
    assert_eq!((default["action"].as_str(), default["hits"].as_u64()), (Some("deny"), Some(1300)));
}

#[test]
fn generic_mode_and_both_cpus_count_the_same() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--mode", "skb"]);
    assert_eq!(xdp_on(&lab.pair.b).map(|(_, mode)| mode).as_deref(), Some("skb"));
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    for cpu in 0..2 {
        send_from(&lab.pair.a, &[udp_from(STRANGER, 9)], 5_000, Engine::Packet, Some(cpu), None);
    }
    wait_until("all are counted", || guarded.hits(1) == 10_000);
    assert_eq!(guarded.figures(&["seen", "dropped"]), [10_000, 10_000]);
    guarded.well(&["load", "veth0", "--mode", "native"]);
    assert_eq!(xdp_on(&lab.pair.b).map(|(_, mode)| mode).as_deref(), Some("native"));
    lab.send_from_two_cpus(&[udp_from(STRANGER, 9)], 50_000);
    // The rule's hits and the interface's totals continue in the program of the other mode.
    assert_eq!(guarded.hits(1), 110_000);
    assert_eq!(guarded.figures(&["seen", "dropped"]), [110_000, 110_000]);
}

#[test]
fn later_fragments_follow_the_verdict_on_the_first() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&["allow", "--proto", "udp", "--port", "53"]);
    let fragment = |offset: u16, protocol: u8| {
        let ip = Ipv4 { fragment_offset: offset, dont_fragment: false, protocol: Some(protocol), ..Ipv4::new(A4, B4) };
        Template::new().ethernet(FROM, TO).layer(Layer::Ipv4(ip)).payload([7; 40]).build()
    };
    guarded.send(&[fragment(1480, 17)], 100);
    guarded.send(&[fragment(1480, 6)], 10);
    // This fragment would overwrite the flags in the first one.
    guarded.send(&[fragment(8, 6)], 1);
    assert_eq!(guarded.figures(&["rule_allowed", "default_denied", "malformed"]), [100, 10, 1]);
}

#[test]
fn rate_applies_to_each_source() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &["--default", "deny"]);
    guarded.well(&["allow", "--proto", "udp", "--rate", "100"]);
    let start = Instant::now();
    for last in 1..=3 {
        guarded.send(&[udp_from(Ipv4Addr::new(192, 0, 2, last), 9)], 20_000);
    }
    let limit = 3 * (start.elapsed().as_secs() + 1) * 100 + 3 * 11;
    let rule = guarded.rule(1).expect("it is there");
    let (passed, limited) = (rule["hits"].as_u64().expect("a number"), rule["limited"].as_u64().expect("a number"));
    assert_eq!(passed + limited, 60_000);
    assert!((3 * 10..=limit).contains(&passed), "{passed} passed");
    assert_eq!(guarded.figures(&["rule_allowed", "over_rate"]), [passed, limited]);
}

#[test]
fn each_option_matches_exactly_its_packets() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let tagged = Template::new().ethernet(FROM, TO).vlan(5).ipv4(A4, B4);
    let [a6, b6] = [1, 2].map(|host| std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host));
    let six = || Template::new().ethernet(FROM, TO).ipv6(a6, b6);
    let frames = [
        udp_from(A4, 52),
        udp_from(A4, 53),
        udp_from(A4, 60),
        udp_from(STRANGER, 60),
        syn_from(A4),
        ping_from(A4),
        tagged.udp(4000, 55).payload([0; 22]).build(),
        six().udp(4000, 55).payload([0; 22]).build(),
        six().icmpv6(Icmp::echo_request_v6(1, 1)).build(),
        six().icmpv6(Icmp::echo_reply_v6(1, 1)).build(),
    ];
    let on = guarded.interface();
    for (options, dropped) in [
        (&args!("--src 10.0.0.0/8 --proto udp --port 53-60 --on {on}")[..], 3),
        (&args!("--src 10.0.0.0/8 --proto udp --port 53-60 --on lo"), 0),
        (&["--port", "55"], 2),
        (&["--icmp", "echo-request"], 2),
        (&["--proto", "icmpv6", "--icmp", "129"], 1),
        (&["--dst", "fd77::/64"], 3),
        (&["--src", "0.0.0.0/0", "--for", "1h"], 7),
        (&["--syn"], 1),
        (&["--dst", "10.77.0.2", "--src", "192.0.2.64/30"], 1),
    ] {
        guarded.well(&[&["deny"], options].concat());
        let before = guarded.figures(&["dropped"])[0];
        guarded.send(&frames, frames.len() as u64);
        assert_eq!(guarded.figures(&["dropped"])[0] - before, dropped, "{options:?}");
        let rules = guarded.list()["rules"].clone();
        assert_eq!(rules[0]["hits"], dropped, "{rules}");
        guarded.well(&["remove", "--all"]);
    }
}
