//! Small receivers by AF_XDP and by plain calls on a packet socket, for comparing these mechanisms: each runs as a
//! process of its own, like the others, and writes its packets to a pcap file. AF_XDP takes the packets away: no other
//! program sees them.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use trawl_front::terminal::say;
use trawl_io::packet_socket;
use trawl_io::xsk::XskReceiver;
use trawl_lab::program::{Does, Loaded};
use trawl_packet::pcap::{file_header, record};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_sys::events::{Signals, wait};
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{Namespace, run_in};
use trawl_sys::{Error, Result};

/// Size of a write.
const CHUNK: usize = 1 << 20;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Length of the longest frame.
const LONGEST: usize = 262_144;

/// Receives until interrupted; prints a line when ready, and the counts of recorded and lost packets.
pub fn receive(namespace: &str, interface: &str, queues: u32, path: &Path) -> Result<()> {
    let signals = Signals::watch()?;
    let inside = Namespace::by_name(namespace)?;
    let index = Netlink::inside(&inside)?.link(interface)?.index;
    let mut sockets =
        run_in(&inside, || (0..queues).map(|queue| XskReceiver::open(interface, queue)).collect::<Result<Vec<_>>>())??;
    let program = Loaded::native_on(Does::ToSockets, &inside, index)?;
    for (queue, socket) in sockets.iter().enumerate() {
        program.give_queue(queue as u32, socket.as_fd())?;
    }
    let mut file = Recording::create(path)?;
    say(&format!("capturing on {namespace}:{interface} by AF_XDP"));
    while signals.next().is_none() {
        let mut got = 0;
        for socket in &mut sockets {
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            got += socket.drain(|frame| file.add(now, frame))?;
        }
        if got == 0 {
            let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            wait(&descriptors, POLL_INTERVAL)?;
        }
    }
    // From here on, packets go to the stack again.
    drop(program);
    for socket in &mut sockets {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        socket.drain(|frame| file.add(now, frame))?;
    }
    file.flush()?;
    let mut lost = 0;
    for socket in &sockets {
        let missed = socket.missed()?;
        lost += missed.full + missed.other;
    }
    say(&format!("{} recorded, {lost} lost", file.packets));
    Ok(())
}

/// Receives until interrupted, with one call for each packet; prints a line when ready, and the count of recorded
/// packets.
pub fn receive_by_calls(namespace: &str, interface: &str, path: &Path) -> Result<()> {
    let signals = Signals::watch()?;
    let inside = Namespace::by_name(namespace)?;
    let index = Netlink::inside(&inside)?.link(interface)?.index;
    let mut socket = run_in(&inside, || packet_socket::without_ring(index))??;
    let mut file = Recording::create(path)?;
    say(&format!("capturing on {namespace}:{interface} by recv"));
    let mut frame = vec![0; LONGEST];
    loop {
        match socket.read(&mut frame) {
            Ok(length) => {
                let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                file.add(now, &frame[..length])?;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                // Packets from before the signal have been read.
                if signals.next().is_some() {
                    break;
                }
                wait(&[socket.as_fd(), signals.as_fd()], POLL_INTERVAL)?;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::os("cannot read from a packet socket", e)),
        }
    }
    file.flush()?;
    say(&format!("{} recorded", file.packets));
    Ok(())
}

/// A pcap file, written in large pieces.
struct Recording {
    file: File,
    waiting: Vec<u8>,
    packets: u64,
}

impl Recording {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::os(format!("cannot write to {}", path.display()), e))?;
        let mut waiting = Vec::with_capacity(CHUNK + LONGEST);
        file_header(&mut waiting, LINKTYPE_ETHERNET, 0);
        Ok(Self { file, waiting, packets: 0 })
    }

    fn add(&mut self, time: Duration, frame: &[u8]) -> Result<()> {
        let nanoseconds = time.as_nanos() as u64;
        record(&mut self.waiting, nanoseconds, frame, frame.len() as u32);
        self.packets += 1;
        if self.waiting.len() > CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.waiting).map_err(|e| Error::os("cannot write the received packets", e))?;
        self.waiting.clear();
        Ok(())
    }
}
