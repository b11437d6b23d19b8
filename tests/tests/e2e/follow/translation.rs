//! Following packets over address translation, a tunnel, clones and an XDP program.

use super::*;
use trawl_tests::args;

/// Number of packets of different lengths sent from each port.
const LENGTHS: u64 = 100;

/// Returns source port and length of a packet, tunnelled or not.
fn own_marks(text: &str) -> Option<(String, String)> {
    let (_, inner) = text.rsplit_once("10.99.0.1.")?;
    let (port, rest) = inner.split_once(" > ")?;
    let (_, length) = rest.rsplit_once("length ")?;
    Some((port.to_owned(), length.to_owned()))
}

/// Across translation, a tunnel, clones, an XDP program and reused buffers, a packet never gets a step of another one,
/// and a gap marks the step where its identity was lost.
#[test]
#[ignore = "make test-long runs it"]
fn translation_tunnels_clones_and_xdp_make_no_false_link() {
    let Some(lab) = Lab::alone() else { return };
    if !kernel_is_at_least(6, 6) {
        skip("netfilter and tcx have no links before Linux 6.6");
        return;
    }
    let (a, b) = (&lab.pair.a, &lab.pair.b);
    let inside = |station: &str, command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        run("ip", &[&["netns", "exec", station], &words[..]].concat());
    };
    // Packets leave a through a tunnel and are translated on arrival, and a packet socket gets a clone of each.
    for (station, own, other, address) in [(a, a.ipv4, b.ipv4, "10.99.0.1/24"), (b, b.ipv4, a.ipv4, "10.99.0.2/24")] {
        let tunnel = format!("ip link add vx type vxlan id 7 local {own} remote {other} dev veth0 dstport 4789");
        inside(&station.name, &tunnel);
        inside(&station.name, &format!("ip addr add {address} dev vx"));
        inside(&station.name, "ip link set vx up");
    }
    inside(&b.name, "nft add table ip t");
    inside(&b.name, "nft add chain ip t p { type nat hook prerouting priority dstnat ; }");
    inside(&b.name, "nft add rule ip t p udp dport 5300 redirect to :5301");
    let socket = run_in(&b.namespace, || UdpSocket::bind("0.0.0.0:5301").expect("a port")).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let receiver = lab.receiver();
    assert!(trawl(&["xdp", "load", &receiver, "pass", "--tappable"]).status.success());
    let clones = Capture::start(&lab, &args!("--tap packet -i {receiver} -w {}", lab.file("c.pcapng")));
    let count = amount(100_000);
    let arguments = args!(
        "follow --json --memory 512MiB --netns {} --within {} 'udp dst port \
         5300'",
        a.name,
        within(&lab)
    );
    let follow = Running::start(&arguments, "following packets on");
    // Port and length identify each packet.
    let senders: Vec<UdpSocket> = run_in(&a.namespace, || {
        let sender = |_| UdpSocket::bind("10.99.0.1:0").expect("a port");
        (0..count.div_ceil(LENGTHS)).map(sender).collect()
    })
    .unwrap();
    let send = |number: u64| {
        let text = vec![b'x'; (number % LENGTHS) as usize + 1];
        let sender = &senders[(number / LENGTHS) as usize];
        sender.send_to(&text, "10.99.0.2:5300").unwrap();
    };
    // Each of the first packets is received before the next is sent, so that the socket's buffer cannot overflow.
    for number in 0..LENGTHS {
        send(number);
        let length = socket.recv(&mut [0; 256]).expect("the packet");
        assert_eq!(length as u64, number + 1);
    }
    let received = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut received = LENGTHS;
            while socket.recv(&mut [0; 256]).is_ok() {
                received += 1;
            }
            received
        });
        (LENGTHS..count).for_each(send);
        reader.join().unwrap()
    });
    follow.signal(Signal::INT);
    let done = follow.wait();
    clones.stop_well();
    trawl(&["xdp", "unload", &receiver]);
    let ways = ways(&done.stdout);
    assert!(received > 0 && !ways.is_empty());
    let (mut delivered, mut whole) = (0, 0);
    // The end of a buffer may be reported anywhere after its last step.
    let way_there = |way: &Value| -> Vec<String> {
        let there = steps(way).into_iter();
        let there = there.filter(|step| !["consumed", "dropped"].contains(step));
        there.map(str::to_owned).collect()
    };
    let longest = ways
        .iter()
        .filter(|way| way["end"] == "delivered")
        .map(way_there)
        .max_by_key(Vec::len)
        .expect("a way from one end to the other");
    for way in &ways {
        let all = way["steps"].as_array().expect("steps");
        let names = steps(way);
        // Without a reported gap, no step is missing, except that a packet may lack its first steps if the table was
        // full.
        let there = way_there(way);
        let is_late = done.stderr.contains("not followed") && longest.windows(there.len()).any(|part| part == there);
        assert!(names.contains(&"gap") || is_late || longest.starts_with(&there), "{way}");
        // Fields that are the same at all steps identify a packet: it has at most these steps, in this order.
        let times: Vec<u64> = all.iter().filter_map(|step| step["time_ns"].as_u64()).collect();
        assert!(times.is_sorted(), "{way}");
        let texts = all.iter().filter_map(|step| step["packet"].as_str());
        let own = way["packet"].as_str().map(own_marks);
        assert!(own.as_ref().is_some_and(Option::is_some), "{way}");
        for text in texts {
            assert_eq!(Some(own_marks(text)), own, "{text} is another packet: {way}");
        }
        assert!(names.iter().filter(|name| **name == "output").count() <= 2, "{way}");
        assert!(
            all.iter().filter(|step| step["interface"] == "vx" && step["step"] == "prerouting").count() <= 1,
            "{way}"
        );
        delivered += usize::from(way["end"] == "delivered");
        let translated = all.iter().any(|step| {
            step["step"] == "prerouting" && step["packet"].as_str().is_some_and(|packet| packet.contains(".5301:"))
        });
        whole += u64::from(translated && names[0] == "output" && way["end"] == "delivered");
    }
    assert!(delivered as u64 <= received, "{delivered} of {received}");
    // If trawl lost nothing, it reports every packet, and the delivery of each received one.
    if done.stderr.contains(" 0 lost") {
        assert_eq!((ways.len() as u64, delivered as u64), (count, received));
    }
    assert!(whole >= LENGTHS / 2, "{whole} of {} are seen from one end to the other", ways.len());
}
