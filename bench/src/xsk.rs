//! Small receivers by AF_XDP and by plain calls on a packet socket, for comparing these mechanisms: each runs as a process
//! of its own, like the others, and writes its packets to a pcap file. AF_XDP takes the packets away: no other program sees
//! them.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use trawl_io::packet_socket;
use trawl_io::xsk::XskReceiver;
use trawl_lab::program::{Does, Loaded};
use trawl_sys::events::{Signals, wait};
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{Namespace, run_in};
use trawl_sys::{Error, Result};

/// Size of a write.
const CHUNK: usize = 1 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Ethernet, with microseconds, in this machine's byte order.
const MAGIC: u32 = 0xa1b2_c3d4;
const SNAPLEN: u32 = 262_144;
const ETHERNET: u32 = 1;

/// Receives until interrupted; prints a line when ready, and the counts of recorded and lost packets.
pub fn receive(
    namespace: &str,
    interface: &str,
    queues: u32,
    path: &Path,
    mut say: impl FnMut(&str),
) -> Result<()> {
    let signals = Signals::watch()?;
    let inside = Namespace::by_name(namespace)?;
    let index = Netlink::inside(&inside)?.link(interface)?.index;
    let mut sockets = run_in(&inside, || {
        (0..queues)
            .map(|queue| XskReceiver::open(interface, queue))
            .collect::<Result<Vec<_>>>()
    })??;
    let program = Loaded::native_on(Does::ToSockets, &inside, index)?;
    for (queue, socket) in sockets.iter().enumerate() {
        program.give_queue(queue as u32, socket.as_fd())?;
    }
    let mut file = Recording::create(path)?;
    say(&format!("capturing on {namespace}:{interface} by AF_XDP"));
    let mut recorded = 0;
    while signals.next().is_none() {
        let mut got = 0;
        for socket in &mut sockets {
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            got += socket.drain(|frame| file.add(now, frame))?;
        }
        recorded += got;
        if got == 0 {
            let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            wait(&descriptors, LOOK_EVERY)?;
        }
    }
    // From here on packets go on to the stack again.
    drop(program);
    for socket in &mut sockets {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        recorded += socket.drain(|frame| file.add(now, frame))?;
    }
    file.flush()?;
    let mut lost = 0;
    for socket in &sockets {
        let missed = socket.missed()?;
        lost += missed.full + missed.other;
    }
    say(&format!("{recorded} recorded, {lost} lost"));
    Ok(())
}

/// Receives until interrupted, with one call for each packet; prints a line when ready, and the count of recorded packets.
pub fn receive_by_calls(
    namespace: &str,
    interface: &str,
    path: &Path,
    mut say: impl FnMut(&str),
) -> Result<()> {
    let signals = Signals::watch()?;
    let inside = Namespace::by_name(namespace)?;
    let index = Netlink::inside(&inside)?.link(interface)?.index;
    let mut socket = run_in(&inside, || packet_socket::without_ring(index))??;
    let mut file = Recording::create(path)?;
    say(&format!("capturing on {namespace}:{interface} by recv"));
    let mut frame = vec![0; SNAPLEN as usize];
    let mut recorded = 0;
    loop {
        match socket.read(&mut frame) {
            Ok(length) => {
                let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                file.add(now, &frame[..length])?;
                recorded += 1;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                // Packets from before the signal have been read.
                if signals.next().is_some() {
                    break;
                }
                wait(&[socket.as_fd(), signals.as_fd()], LOOK_EVERY)?;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::os("cannot read from a packet socket", e)),
        }
    }
    file.flush()?;
    say(&format!("{recorded} recorded"));
    Ok(())
}

struct Recording {
    file: File,
    waiting: Vec<u8>,
}

impl Recording {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path)
            .map_err(|e| Error::os(format!("cannot write to {}", path.display()), e))?;
        let mut waiting = Vec::with_capacity(CHUNK + SNAPLEN as usize);
        let version = [2u16, 4].map(u16::to_ne_bytes).concat();
        waiting.extend(MAGIC.to_ne_bytes());
        waiting.extend(version);
        waiting.extend([0; 8]);
        waiting.extend([SNAPLEN, ETHERNET].map(u32::to_ne_bytes).concat());
        Ok(Self { file, waiting })
    }

    fn add(&mut self, time: Duration, frame: &[u8]) -> Result<()> {
        let length = frame.len() as u32;
        let header = [time.as_secs() as u32, time.subsec_micros(), length, length];
        for word in header {
            self.waiting.extend(word.to_ne_bytes());
        }
        self.waiting.extend(frame);
        match self.waiting.len() > CHUNK {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.file
            .write_all(&self.waiting)
            .map_err(|e| Error::os("cannot write what was received", e))?;
        self.waiting.clear();
        Ok(())
    }
}
