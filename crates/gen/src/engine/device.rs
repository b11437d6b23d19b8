//! The sending device: programs that make its driver accept frames, and the counters that show what it sent.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trawl_attach::Site;
use trawl_attach::card::CardEffects;
use trawl_attach::passing::hold_passing;
use trawl_sys::netlink::ethtool::Ethtool;
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netlink::{Netlink, Peer, XdpMode, veth_peer};
use trawl_sys::words::word;
use trawl_sys::{Error, Result};

use super::Notes;

/// Time that a counter may need to show the first frame.
const COUNTER_PATIENCE: Duration = Duration::from_millis(200);
/// Time without a change after which a counter is final: some drivers update theirs once a second.
const COUNTER_SETTLES: Duration = Duration::from_millis(1500);
const CHECK_EVERY: Duration = Duration::from_millis(2);

/// The device of a run, shared by its threads. Programs attached for the run end with it, also if trawl is killed.
#[derive(Clone, Debug, Default)]
pub struct Device(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Links of programs on the device itself and on the other end of a veth.
    own: Option<OwnedFd>,
    peer: Option<OwnedFd>,
    /// Set once a thread has sent with these programs.
    used: bool,
    /// Counter that has shown the first frame of each thread.
    counter: Option<Counter>,
    /// Set if no counter has shown a thread's first frame.
    uncounted: bool,
}

/// A counter of sent frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counter {
    /// The interface's.
    Packets,
    /// The driver's, for XDP frames that were handed to it.
    Xdp,
}

impl Counter {
    fn name(self) -> &'static str {
        match self {
            Self::Packets => "tx_packets",
            Self::Xdp => "xdp_tx",
        }
    }
}

/// The counters at one time.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    packets: u64,
    dropped: u64,
    xdp: Option<u64>,
}

impl Reading {
    /// Reads the counters of an interface of the calling thread's namespace.
    pub fn now(interface: &str) -> Result<Self> {
        let statistics = Netlink::current()?.link(interface)?.statistics;
        Ok(Self { packets: statistics.tx_packets, dropped: statistics.tx_dropped, xdp: xdp_frames(interface) })
    }

    fn of(&self, counter: Counter) -> u64 {
        match counter {
            Counter::Packets => self.packets,
            Counter::Xdp => self.xdp.unwrap_or(0),
        }
    }
}

/// Returns virtio_net's own count of XDP frames. Its `tx_packets` shows a frame only when a later one needs the room.
fn xdp_frames(interface: &str) -> Option<u64> {
    let ethtool = Ethtool::open(None, interface).ok()?;
    let sum = |ending: &str| {
        let all = ethtool.statistics().ok()?;
        let by_queue = all.iter().filter_map(|(name, count)| {
            let queue = name.strip_prefix("tx")?.strip_suffix(ending)?;
            let queue = queue.strip_prefix("_queue_").unwrap_or(queue);
            queue.parse::<u32>().is_ok().then_some(*count)
        });
        Some(by_queue.sum::<u64>())
    };
    if ethtool.driver().ok()?.driver != "virtio_net" {
        return None;
    }
    Some(sum("_xdp_tx")?.saturating_sub(sum("_xdp_tx_drops")?))
}

/// Comparison of a run with the device's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The device counted at least the frames of the run; other traffic adds.
    Yes,
    /// No counter shows these frames.
    Unknown(&'static str),
}

impl Device {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a counter shows the first frame of a thread. Returns true if one does.
    pub(super) fn calibrate(&self, interface: &str, before: &Reading) -> Result<bool> {
        let start = Instant::now();
        let found = loop {
            let now = Reading::now(interface)?;
            let moved = |counter: &Counter| now.of(*counter) > before.of(*counter);
            let found = [Counter::Xdp, Counter::Packets].into_iter().find(moved);
            if found.is_some() || start.elapsed() > COUNTER_PATIENCE {
                break found;
            }
            std::thread::sleep(CHECK_EVERY);
        };
        let mut state = self.state();
        state.counter = state.counter.or(found);
        state.uncounted |= found.is_none();
        Ok(found.is_some())
    }

    /// Keeps the attached programs for the run.
    pub(super) fn keep_programs(&self) {
        self.state().used = true;
    }

    /// Removes the programs that were attached in vain.
    pub(super) fn remove_unused_programs(&self) {
        let mut state = self.state();
        if !state.used {
            (state.own, state.peer) = (None, None);
        }
    }

    /// Compares the number of frames reported since `before` with the device's counters.
    pub(crate) fn verify(&self, interface: &str, before: &Reading, frames: u64) -> Result<Verified> {
        let (counter, is_known) = {
            let state = self.state();
            (state.counter.unwrap_or(Counter::Packets), state.counter.is_some() && !state.uncounted)
        };
        let begun = before.of(counter);
        let mut last = (Instant::now(), begun);
        loop {
            let now = Reading::now(interface)?;
            let count = now.of(counter);
            if count < begun {
                return Ok(Verified::Unknown("the driver reset its counters during the run"));
            }
            let counted = count - begun;
            if counted >= frames {
                return Ok(Verified::Yes);
            }
            if count != last.1 {
                last = (Instant::now(), count);
            }
            if last.0.elapsed() < COUNTER_SETTLES {
                std::thread::sleep(CHECK_EVERY);
                continue;
            }
            if !is_known {
                return Ok(Verified::Unknown("the driver's counters do not include the frames of this engine"));
            }
            let dropped = match now.dropped.saturating_sub(before.dropped) {
                0 => String::new(),
                dropped => format!(", and its driver dropped {dropped} (tx_dropped)"),
            };
            return Err(Error::failed(
                format!("{frames} frames were handed to {interface}"),
                format!("the device sent {counted} of them by its counter {}{dropped}", counter.name()),
            ));
        }
    }

    /// Attaches a program that passes every packet to the device itself, for the duration of the run: some drivers
    /// accept frames only while they have a program. Threads of the run share it.
    pub(super) fn make_driver_accept(&self, interface: &str, notes: &Notes) -> Result<()> {
        let mut state = self.state();
        if state.own.is_some() {
            return Ok(());
        }
        let site = Site::named(None, interface)?;
        let driver = Interface::find(None, interface)?.driver_name().to_owned();
        if let Some(present) = site.link()?.xdp.first() {
            return Err(Error::failed(
                format!("cannot send such frames out of {interface}"),
                format!(
                    "its driver ({driver}) sends them only while it runs a native XDP program; the program {} is attached in {} mode",
                    present.program_id,
                    present.mode.name()
                ),
            ));
        }
        let effects = CardEffects::of_attaching(&site, None).map_or_else(String::new, |effects| format!("; {effects}"));
        notes.add(format!(
            "{interface}: attaching an XDP program that passes every packet for this run, because the driver ({driver}) sends \
             such frames only while it has one{effects}"
        ));
        let held = hold_passing(&site);
        state.own = Some(held.map_err(|error| error.fix("use --engine packet"))?);
        Ok(())
    }

    /// Makes the other end of a veth accept XDP frames, if it does not; an error is the reason why it cannot.
    ///
    /// A veth accepts XDP frames only if its other end has an XDP program or GRO. If it has neither, a program that
    /// passes every packet is attached there for the duration of the run.
    pub(super) fn make_peer_accept(&self, interface: &str, notes: &Notes) -> Result<()> {
        let mut state = self.state();
        if state.peer.is_some() {
            return Ok(());
        }
        let link = Netlink::current()?.link(interface)?;
        if link.kind.as_deref() != Some("veth") {
            return Ok(());
        }
        // An end that cannot be inspected may work: the trial decides.
        let Some(peer) = veth_peer(None, &link)? else {
            return Ok(());
        };
        let label = peer.label();
        if !peer.link.is_up() {
            return Err(Error::failed("cannot send such frames", format!("the other end, {label}, is down"))
                .fix(format!("{}ip link set {} up", peer.exec_prefix(), word(&peer.link.name))));
        }
        let native = peer.link.xdp.iter().any(|one| one.mode == XdpMode::Native);
        if native || has_gro(&peer) {
            return Ok(());
        }
        let cannot = |why: &str| {
            Error::failed(
                format!("its other end, {label}, has neither native XDP nor GRO"),
                format!("a program that passes every packet could not be attached: {why}"),
            )
            .fix(format!("{}ethtool -K {} gro on", peer.exec_prefix(), word(&peer.link.name)))
        };
        let site = Site::named(peer.namespace.clone(), &peer.link.name)?;
        let held = hold_passing(&site).map_err(|error| cannot(error.why()))?;
        state.peer = Some(held);
        notes.add(format!(
            "{label} accepts XDP frames during this run: an XDP program that passes every packet is attached"
        ));
        Ok(())
    }
}

const GRO: &str = "rx-gro";

fn has_gro(peer: &Peer) -> bool {
    let ethtool = Ethtool::open(peer.namespace.as_ref(), &peer.link.name);
    ethtool.and_then(|ethtool| ethtool.feature(GRO)).ok().flatten() == Some(true)
}

#[cfg(test)]
mod tests {
    use trawl_sys::netlink::{VethEnd, create_veth};
    use trawl_sys::netns::run_in;
    use trawl_sys::testing::{ScratchNamespace, root_or_skip};

    use super::*;
    use crate::engine::{Engine, Packet};
    use crate::source::InTurn;

    /// Sends ten frames, and compares this number of frames with the counters.
    fn compare(frames: u64) -> Result<Verified> {
        let scratch = ScratchNamespace::create();
        let end = |name| VethEnd {
            name,
            index: 0,
            namespace: Some(&scratch.namespace),
            mac: None,
            mtu: None,
            queues: 1,
            no_link_local: true,
        };
        create_veth(&end("veth0"), &end("veth1")).unwrap();
        run_in(&scratch.namespace, || {
            let mut netlink = Netlink::current()?;
            for name in ["veth0", "veth1"] {
                let index = netlink.link(name)?.index;
                netlink.set_up(index)?;
            }
            let device = Device::default();
            let (mut engine, mut source) = (Packet::open("veth0", 60)?, InTurn::new(vec![vec![0xff; 60]]));
            let before = Reading::now("veth0")?;
            let mut sent = 0;
            while sent < 10 {
                sent += engine.send(&mut source, 0, 10 - sent)?.frames;
                device.calibrate("veth0", &before)?;
            }
            device.verify("veth0", &before, frames)
        })?
    }

    #[test]
    fn frames_that_the_device_has_not_counted_are_an_error() {
        if !root_or_skip() {
            return;
        }
        assert_eq!(compare(10).unwrap(), Verified::Yes);
        let error = compare(1000).unwrap_err().to_string();
        assert!(error.contains("1000 frames were handed"), "{error}");
        assert!(error.contains("sent 10 of them"), "{error}");
    }
}
