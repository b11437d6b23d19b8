//! An emulated path between the ends of a line: frames that wait, are lost, overtake each other, or pass at a rate. A
//! kernel may lack netem.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustix::thread::gettid;
use trawl_io::packet_socket::without_ring;
use trawl_lab::{Line, Station};
use trawl_sys::events;
use trawl_sys::netns::run_in;

use crate::args;
use crate::witness::{output, run};

/// Frames from this length on carry data: others are neither lost nor late.
const DATA: usize = 150;
/// Memory for frames that were not read yet.
const BUFFER: usize = 64 << 20;
/// Longest time between two looks at the end.
const LOOK: Duration = Duration::from_millis(50);
/// Longest life of a path.
const LIFE: Duration = Duration::from_secs(120);
/// Delay of a frame that others overtake.
const LATE: Duration = Duration::from_millis(4);

/// The properties of a path, in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    pub delay: Duration,
    /// Number of frames with data of which the last is lost.
    pub lose: Option<u64>,
    /// Number of frames with data of which the last is late.
    pub late: Option<u64>,
    /// Longest frame that passes.
    pub longest: Option<usize>,
    /// True if the middle drops a copy of each frame, as hosts do with other hosts' frames.
    pub drops_copies: bool,
    /// Bytes in a second, and bytes that may wait.
    pub rate: Option<(u64, u64)>,
}

/// A path that ends when it is dropped.
#[derive(Debug)]
pub struct Wire {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

/// The state of a path, known to its thread and to the test.
#[derive(Debug, Default)]
struct State {
    ends: AtomicBool,
    lost: AtomicU64,
    late: AtomicU64,
}

impl Wire {
    /// Joins both ends of a line in its middle, which no longer forwards.
    pub fn between(line: &Line, path: Path) -> Self {
        for middle in [&line.left, &line.right] {
            // A forwarded copy would arrive at the other end, and a dropped one look like a loss.
            let [stolen, dropped] = ["1,6 0 0 4", "1,6 0 0 2"];
            let program = if path.drops_copies { dropped } else { stolen };
            let (name, interface) = (&middle.name, &middle.interface);
            run("tc", &args!("-n {name} qdisc add dev {interface} clsact"));
            run("tc", &args!("-n {name} filter add dev {interface} ingress bpf da bytecode '{program}'"));
        }
        // Packet sockets would see joined segments, and packets whose checksums the card computes.
        for end in [&line.a, &line.left, &line.right, &line.b] {
            let features = ["tso", "off", "gso", "off", "gro", "off", "tx", "off"];
            run("ip", &[&["netns", "exec", &end.name, "ethtool", "-K", &end.interface][..], &features].concat());
        }
        let open = |station: &Station| {
            let socket = run_in(&station.namespace, || without_ring(station.index));
            let socket = socket.expect("a namespace").expect("a packet socket");
            sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).expect("root may do so");
            socket
        };
        let side = |near: &Station, far: &Station| Side {
            socket: open(near),
            addresses: [far.mac, near.mac].concat(),
            frames: 0,
            free: Instant::now(),
        };
        let sides = [side(&line.left, &line.a), side(&line.right, &line.b)];
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = thread::spawn(move || carry(sides, path, &shared));
        Self { state, thread: Some(thread) }
    }

    /// Returns the number of frames that the path has lost.
    pub fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of frames that others have overtaken.
    pub fn late(&self) -> u64 {
        self.state.late.load(Ordering::Relaxed)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An interface in the middle.
struct Side {
    socket: File,
    /// The link-layer addresses of frames that leave here: the end of the line, and this interface.
    addresses: Vec<u8>,
    /// Number of frames with data that came here.
    frames: u64,
    /// Time at which the path towards the other side has sent all frames.
    free: Instant,
}

impl Side {
    /// Returns the time at which a frame that came here leaves; `None` if it is lost.
    fn departure(&mut self, length: usize, path: &Path, state: &State, now: Instant) -> Option<Instant> {
        let is_data = length >= DATA;
        self.frames += u64::from(is_data);
        let is_one_of = |count: Option<u64>| is_data && count.is_some_and(|count| self.frames.is_multiple_of(count));
        if is_one_of(path.lose) || path.longest.is_some_and(|most| length > most) {
            return None;
        }
        let is_late = is_one_of(path.late);
        state.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
        let late = if is_late { LATE } else { Duration::ZERO };
        let mut sent = now;
        if let Some((rate, most)) = path.rate {
            let time = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / rate);
            if self.free.saturating_duration_since(now) > time(most) {
                return None;
            }
            self.free = self.free.max(now) + time(length as u64);
            sent = self.free;
        }
        Some(sent + path.delay + late)
    }
}

/// A frame on the path: the time at which it arrives, its number, and the side that it leaves.
type OnPath = Reverse<(Instant, u64, usize, Vec<u8>)>;

fn carry(mut sides: [Side; 2], path: Path, state: &State) {
    // Frames would wait for a busy CPU, as in a queue.
    let thread = gettid().as_raw_nonzero().to_string();
    let _ = output("chrt", &["--fifo", "--pid", "1", &thread]);
    let (begun, mut number) = (Instant::now(), 0);
    let mut waiting: BinaryHeap<OnPath> = BinaryHeap::new();
    let mut frame = vec![0; 65_536];
    while !state.ends.load(Ordering::Relaxed) && begun.elapsed() < LIFE {
        while waiting.peek().is_some_and(|Reverse((due, ..))| *due <= Instant::now()) {
            let Some(Reverse((_, _, to, bytes))) = waiting.pop() else { break };
            // A full queue of the interface loses the frame, as a card's would.
            let _ = sides[to].socket.write(&bytes);
        }
        let rest = waiting.peek().map_or(LOOK, |Reverse((due, ..))| due.saturating_duration_since(Instant::now()));
        let [left, right] = &sides;
        if events::wait(&[left.socket.as_fd(), right.socket.as_fd()], rest.min(LOOK)).is_err() {
            return;
        }
        for from in 0..2 {
            while let Ok(length) = sides[from].socket.read(&mut frame) {
                let to = 1 - from;
                let Some(due) = sides[from].departure(length, &path, state, Instant::now()) else {
                    state.lost.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let bytes = [&sides[to].addresses, &frame[sides[to].addresses.len()..length]].concat();
                number += 1;
                waiting.push(Reverse((due, number, to, bytes)));
            }
        }
    }
}
