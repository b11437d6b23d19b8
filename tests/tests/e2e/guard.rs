//! `trawl guard`: floods dropped and counted next to real traffic, rules that come and go, and no leftovers.

mod confirm;
mod killed;
mod life;
mod packets;
mod rules;
mod session;
mod trust;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use trawl_lab::sender::Engine;
use trawl_packet::build::{Arp, Icmp, Ipv4, Ipv6, Layer, Tcp, Template, flags};
use trawl_sys::netns::{self, run_in};
use trawl_tests::frames::{self, FROM, TO};
use trawl_tests::lab::send_from;
use trawl_tests::tmux::Tmux;
use trawl_tests::witness::{is_loaded, output, run, xdp_on};
use trawl_tests::{Lab, binary, trawl, wait_until};

const A4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const B4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);

/// `trawl guard` in the receiving namespace of a lab.
struct Guarded<'a> {
    lab: &'a Lab,
}

impl<'a> Guarded<'a> {
    #[track_caller]
    fn load(lab: &'a Lab, options: &[&str]) -> Self {
        let guarded = Self { lab };
        guarded.well(&[&["load", &lab.pair.b.interface], options].concat());
        guarded
    }

    /// Sends frames, and returns once all have been counted.
    fn send(&self, frames: &[Vec<u8>], count: u64) {
        let seen = || self.figures(&["seen"])[0];
        let before = seen();
        self.lab.send(frames, count);
        wait_until("all packets are counted", || seen() >= before + count);
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let place = ["--netns", &self.lab.pair.b.name];
        trawl(&[&["guard"], arguments, &place].concat())
    }

    #[track_caller]
    fn well(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the message of a refused command.
    #[track_caller]
    fn refused(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        said
    }

    #[track_caller]
    fn list(&self) -> Value {
        serde_json::from_str(&self.well(&["list", "--json"])).expect("JSON")
    }

    fn rule(&self, id: u64) -> Option<Value> {
        let list = self.list();
        let rules = list["rules"].as_array().expect("rules");
        rules.iter().find(|rule| rule["id"] == id).cloned()
    }

    #[track_caller]
    fn hits(&self, id: u64) -> u64 {
        self.rule(id).expect("the rule is there")["hits"].as_u64().expect("a number")
    }

    #[track_caller]
    fn stats(&self) -> Value {
        let all: Value = serde_json::from_str(&self.well(&["stats", "--json"])).expect("JSON");
        let interfaces = all["interfaces"].as_array().expect("a list");
        let is_it = |one: &&Value| one["interface"].as_str().is_some_and(|name| name.ends_with("veth0"));
        interfaces.iter().find(is_it).expect("it is guarded").clone()
    }

    #[track_caller]
    fn figures(&self, names: &[&str]) -> Vec<u64> {
        let stats = self.stats();
        names.iter().map(|name| stats[name].as_u64().unwrap_or_else(|| panic!("{name}: {stats}"))).collect()
    }

    fn apply(&self, rules: &str) -> Output {
        let file = self.lab.file("rules.toml");
        std::fs::write(&file, rules).expect("a file");
        self.run(&["apply", &file])
    }

    fn interface(&self) -> &str {
        &self.lab.pair.b.interface
    }

    /// Returns the directory of the guard's pinned maps.
    fn directory(&self) -> PathBuf {
        let mark = netns::Mark::of(Some(&self.lab.pair.b.namespace)).expect("a mark");
        PathBuf::from(format!("/sys/fs/bpf/trawl/guard-{mark}"))
    }
}

fn frame(source: Ipv4Addr) -> Template {
    Template::new().ethernet(FROM, TO).ipv4(source, B4)
}

fn udp_from(source: Ipv4Addr, port: u16) -> Vec<u8> {
    frame(source).udp(4000, port).payload([0; 22]).build()
}

fn syn_from(source: Ipv4Addr) -> Vec<u8> {
    let tcp = Tcp { src: 4000, dst: 80, flags: flags::SYN, ..Tcp::default() };
    frame(source).tcp(tcp).frame_len(64).build()
}

fn ping_from(source: Ipv4Addr) -> Vec<u8> {
    frame(source).icmp(Icmp::echo_request(1, 1)).frame_len(64).build()
}
