//! The lab of a load balancer: a client, the balancer, and three servers with direct return.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};

use trawl_sys::netns::{Namespace, run_in};
use trawl_tests::bundled::done;
use trawl_tests::lab::Directory;
use trawl_tests::root_or_skip;
use trawl_tests::wait::patience;

use super::json;

const CONNECTIONS: usize = 60;

/// A lab that is removed after the test.
struct Raised(String);

impl Drop for Raised {
    fn drop(&mut self) {
        let _ = trawl_tests::trawl(&["lab", "down", &self.0]);
    }
}

#[test]
fn connections_are_spread_over_the_servers() {
    if !root_or_skip() {
        return;
    }
    let lab = Raised(format!("bal{}", std::process::id()));
    done(&["lab", "up", "--preset", "balance", &lab.0]);
    let inside = |node: &str| Namespace::by_name(&format!("trawl-{}-{node}", lab.0)).expect("a node of the lab");
    let directory = Directory::new();
    let table = directory.path().join("balance.toml");
    let mut text =
        "[[vip]]\naddress = \"192.0.2.80\"\nprotocol = \"tcp\"\nport = 80\nforward = \"direct\"\n".to_owned();
    for link in 2..=4 {
        text += &format!("[[vip.backend]]\naddress = \"10.77.{link}.2\"\n");
    }
    std::fs::write(&table, text).expect("a file");
    let lb = format!("trawl-{}-lb:veth0", lab.0);
    done(&["balance", "load", &lb, table.to_str().expect("a plain path")]);
    let vip: SocketAddr = "192.0.2.80:80".parse().expect("an address");
    // The servers listen until the test ends, and the kernel accepts their connections.
    let servers = ["s1", "s2", "s3"].map(|node| {
        run_in(&inside(node), || TcpListener::bind(vip)).expect("the namespace").expect("the virtual address")
    });
    run_in(&inside("client"), || {
        for _ in 0..CONNECTIONS {
            TcpStream::connect_timeout(&vip, patience()).expect("a server answers");
        }
    })
    .expect("the namespace");
    let mut served = BTreeMap::new();
    for (at, server) in servers.iter().enumerate() {
        server.set_nonblocking(true).expect("a socket");
        served.insert(at, server.incoming().map_while(Result::ok).count());
    }
    assert_eq!(served.values().sum::<usize>(), CONNECTIONS, "{served:?}");
    assert!(served.values().all(|count| *count > 0), "{served:?}");
    let checked = json(&["balance", "check", "--on", &lb]);
    let backends = checked["backends"].as_array().expect("a list");
    assert!(backends.iter().all(|one| one["healthy"] == true), "{checked}");
    let counts = json(&["balance", "stats", "--on", &lb]);
    let backends = counts["vips"][0]["backends"].as_array().expect("a list");
    let packets = |one: &serde_json::Value| one["packets"].as_u64().expect("a number");
    let sum: u64 = backends.iter().map(packets).sum();
    assert_eq!(counts["vips"][0]["packets"].as_u64(), Some(sum), "{counts}");
    assert!(backends.iter().all(|one| packets(one) > 0), "{counts}");
    done(&["balance", "unload", &lb]);
}
