//! Real TCP through the router, while routes and neighbours change.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use trawl_lab::{LineOptions, Station};
use trawl_sys::netns::run_in;
use trawl_tests::bundled::{Counts, done};
use trawl_tests::lab::place;
use trawl_tests::wait::patience;
use trawl_tests::witness::{nothing_attached, run};
use trawl_tests::{LineLab, wait_until};

fn ip(station: &Station, arguments: &str) {
    let words: Vec<&str> = arguments.split(' ').collect();
    run("ip", &[&["-n", &station.name][..], &words].concat());
}

/// A connection from a to an address of b that sends endlessly, and counts the received bytes.
struct Stream {
    received: AtomicU64,
    over: AtomicBool,
}

/// Ends the sender with the test, successful or not.
struct Ending<'a>(&'a Stream);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Sets timeouts, so that a stalled connection is an error and does not make the test endless.
fn give_up_in_time(stream: &TcpStream) {
    let limit = Some(2 * patience());
    let set = stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit));
    set.expect("a time above zero");
}

/// Returns a byte of the stream, which never repeats for long, so that lost or duplicated bytes are noticed.
fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Stream {
    fn send(&self, mut stream: TcpStream) -> u64 {
        let mut sent = 0u64;
        while !self.over.load(Ordering::Relaxed) {
            let block: Vec<u8> = (sent..sent + 8192).map(byte_at).collect();
            stream.write_all(&block).expect("the connection holds");
            sent += block.len() as u64;
        }
        stream.shutdown(Shutdown::Write).expect("the connection holds");
        // The other side confirms the end.
        stream.read_to_end(&mut Vec::new()).expect("the connection holds");
        sent
    }

    fn receive(&self, mut stream: TcpStream) -> u64 {
        let (mut buffer, mut received) = (vec![0; 64 << 10], 0u64);
        loop {
            let count = stream.read(&mut buffer).expect("the connection holds");
            if count == 0 {
                return received;
            }
            let right = buffer[..count].iter().zip(received..).all(|(byte, at)| *byte == byte_at(at));
            assert!(right, "wrong bytes after {received}");
            received += count as u64;
            self.received.store(received, Ordering::Relaxed);
        }
    }

    /// Waits until many more bytes have arrived, which shows that the path works.
    fn wait_flowing(&self, after: &str) {
        let start = self.received.load(Ordering::Relaxed);
        wait_until(&format!("bytes flow after {after}"), || self.received.load(Ordering::Relaxed) > start + 500_000);
    }
}

fn tcp_through(address: IpAddr, prefix: u8, drop_route: &str) {
    // As in production, neighbours must be resolved.
    let options = LineOptions { quiet: false, gro: false, ..LineOptions::default() };
    let Some(lab) = LineLab::with(&options) else {
        return;
    };
    let line = &lab.line;
    let (gateway, family) = match address {
        IpAddr::V4(_) => (IpAddr::from(line.b.ipv4), "ipv4"),
        IpAddr::V6(_) => (IpAddr::from(line.b.ipv6), "ipv6"),
    };
    ip(&line.b, &format!("address add {address}/{prefix} dev lo"));
    ip(&line.left, &format!("route add {address} via {gateway}"));
    // With these settings, the kernel notices a silent neighbour within a second.
    let namespace = format!("--net=/run/netns/{}", line.right.name);
    for setting in ["delay_first_probe_time=1", "base_reachable_time_ms=1000", "retrans_time_ms=100"] {
        let setting = format!("net.{family}.neigh.right.{setting}");
        run("nsenter", &[&namespace, "sysctl", "-qw", &setting]);
    }
    // A router resolves IPv6 neighbours from its link-local address, which must not be tentative.
    wait_until("addresses are no longer tentative", || {
        [&line.a, &line.left, &line.b]
            .iter()
            .all(|station| run("ip", &["-n", &station.name, "-6", "address", "show", "tentative"]).is_empty())
    });
    let (left, right) = (place(&line.left), place(&line.right));
    done(&["route", "load", &left, &right]);
    let bind = || TcpListener::bind((address, 0)).expect("the address is there");
    let listener = run_in(&line.b.namespace, bind).expect("the namespace can be entered");
    let connect = || TcpStream::connect(listener.local_addr()?);
    let here = run_in(&line.a.namespace, connect).expect("the namespace can be entered");
    let here = here.expect("the way is open");
    let (there, _) = listener.accept().expect("a connection");
    give_up_in_time(&here);
    give_up_in_time(&there);
    let stream = Stream { received: AtomicU64::new(0), over: AtomicBool::new(false) };
    let forwarded = format!("forwarded, {}", if family == "ipv4" { "IPv4" } else { "IPv6" });
    let blackholed = || Counts::of_port(&left).outcome("dropped by a blackhole route");
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| stream.receive(there));
        let sender = scope.spawn(|| stream.send(here));
        let ending = Ending(&stream);
        stream.wait_flowing("the beginning");
        let begun = Counts::of_port(&left).outcome(&forwarded);
        assert!(begun > 100, "{:?}", Counts::of_port(&left));

        ip(&line.left, &format!("route replace {drop_route} {address}"));
        wait_until("the blackhole is seen", || blackholed() > 0);
        ip(&line.left, &format!("route del {drop_route} {address}"));
        ip(&line.left, &format!("route replace {address} via {gateway}"));
        stream.wait_flowing("the route came back");

        // Nothing notifies the router of the new address. The kernel notices it because some packets go through the
        // stack.
        ip(&line.b, "link set veth0 address 02:00:00:00:0b:0b");
        wait_until("the neighbour has another address", || {
            let right = ["neighbour", "show", "dev", "right"];
            let known = run("ip", &[&["-n", &line.right.name][..], &right].concat());
            known.contains("02:00:00:00:0b:0b")
        });
        stream.wait_flowing("the neighbour got another address");
        let later = Counts::of_port(&left).outcome(&forwarded);
        assert!(later > begun + 100, "XDP forwards again: {later}");

        // The next path leaves by no port, so packets go through the stack until the route returns.
        ip(&line.left, &format!("neighbour flush dev right to {gateway}"));
        stream.wait_flowing("the neighbour was forgotten");
        drop(ending);
        let received = receiver.join().expect("the receiver ends well");
        assert_eq!(received, sender.join().expect("the sender ends well"));
    });
    done(&["route", "unload", &left, &right]);
    nothing_attached(&line.left);
    nothing_attached(&line.right);
}

#[test]
fn tcp_goes_on_while_routes_and_neighbours_change_ipv4() {
    tcp_through("198.51.100.9".parse().expect("an address"), 32, "blackhole");
}

#[test]
fn tcp_goes_on_while_routes_and_neighbours_change_ipv6() {
    // IPv6 keeps several routes to one destination, and replaces a route of one kind by another only if this is
    // removed.
    tcp_through("2001:db8:9::9".parse().expect("an address"), 128, "blackhole");
}
