//! The dpdk tap on testpmd: every packet once, by port and direction, compared with dpdk-dumpcap, and with either side
//! killed.

mod application;
mod refusals;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command};
use std::time::{SystemTime, UNIX_EPOCH};

use application::Application;
use rustix::process::{Pid, Signal, kill_process};
use trawl_lab::sender::Engine;
use trawl_tests::lab::{Files, send_from};
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{capinfos, run, tshark};
use trawl_tests::{Capture, args, frames, trawl, wait_until};

const FRAMES: u64 = 300;
const IN: u32 = 1;
const OUT: u32 = 2;

impl Application {
    fn capture(&self, arguments: &[&str]) -> Capture {
        let all = [&["--tap", "dpdk", "--file-prefix", &self.prefix], arguments].concat();
        Capture::start(&self.lab, &all)
    }

    /// Captures some packets, and checks that the capture ends successfully.
    fn capture_some(&self, file: &str) -> String {
        let capture = self.capture(&["-i", "dpdk:0", "-Q", "in", "-c", "50", "-w", file]);
        let finished = capture.wait();
        assert_eq!(finished.summary_of_success().recorded, 50);
        finished.stderr
    }

    /// Starts dpdk-dumpcap on port 0.
    fn dumpcap(&self, file: &str, log: &str) -> Child {
        let said = fs::File::create(log).expect("a file");
        let dumpcap = Command::new("dpdk-dumpcap")
            .args(["--file-prefix", &self.prefix, "-i", "0", "-w", file])
            // Without this library, dpdk-dumpcap drops every packet of testpmd, which has loaded more kinds of pools,
            // so that the numbers of the kinds differ.
            .env("LD_PRELOAD", "librte_mempool_dpaa.so.23")
            .stdout(said.try_clone().expect("the file again"))
            .stderr(said)
            .spawn()
            .expect("dpdk-dumpcap starts");
        wait_until("dpdk-dumpcap captures", || {
            fs::read_to_string(log).is_ok_and(|said| said.contains("Packets captured"))
        });
        dumpcap
    }

    fn owners(&self) -> usize {
        let entries = fs::read_dir(format!("/run/dpdk/{}", self.prefix)).expect("a directory");
        let is_owner = |name: &str| name.starts_with("trawl_owner_");
        entries.flatten().filter(|one| is_owner(&one.file_name().to_string_lossy())).count()
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    since.as_nanos() as u64
}

/// Returns the helper of a capture.
fn helper_of(capture: &Capture) -> Pid {
    let children = run("pgrep", &["-P", &capture.id().to_string(), "-x", "trawl-dpdk"]);
    let number = children.trim().parse().expect("one helper");
    Pid::from_raw(number).expect("a process")
}

fn numbered() -> Vec<Vec<u8>> {
    (0..FRAMES).map(|number| frames::numbered(number as u32, 60 + number as usize)).collect()
}

/// Counts are exact per port and direction, all in time order, by the kernel's clock.
#[test]
fn dpdk_ports_are_recorded_by_direction() {
    let Some(application) = Application::on_veths() else {
        return;
    };
    let sent = numbered();
    let file = application.lab.file("all.pcapng");
    let began = now();
    let capture = application.capture(&["-i", "dpdk:all", "-w", &file]);
    application.lab.send(&sent, FRAMES);
    capture.wait_recorded(2 * FRAMES);
    let summary = capture.stop_well();
    let ended = now();
    summary.assert_all_recorded(2 * FRAMES);
    let contents = Contents::read(&file);
    contents.assert_in_time_order();
    let mut counts: BTreeMap<(String, u32), u64> = BTreeMap::new();
    for packet in &contents.packets {
        let name = contents.interfaces[packet.interface as usize].name();
        *counts.entry((name, packet.flags().expect("flags") & 3)).or_default() += 1;
        assert_eq!(packet.queue(), Some(0));
        assert!(packet.time >= began && packet.time <= ended, "{} is not from {began} to {ended}", packet.time);
    }
    let expected = [("dpdk:0", IN), ("dpdk:1", OUT)].map(|(name, way)| ((name.to_owned(), way), FRAMES));
    assert_eq!(counts, BTreeMap::from(expected));
    for (port, way) in [("dpdk:0", IN), ("dpdk:1", OUT)] {
        let of = |packet: &&trawl_tests::pcapng::Packet| {
            contents.interfaces[packet.interface as usize].name() == port && packet.flags() == Some(way)
        };
        let got: Vec<&[u8]> = contents.packets.iter().filter(of).map(|one| &one.bytes[..]).collect();
        frames::assert_same(&got, &sent);
    }
    assert_eq!(tshark(&file, &["frame.len"]).len() as u64, 2 * FRAMES);
}

/// Every packet is recorded at a sustainable rate.
#[test]
#[ignore = "make test-long runs it"]
fn dpdk_records_400000_packets_at_100_kpps() {
    const PACKETS: u64 = 400_000;
    let Some(application) = Application::on_veths() else {
        return;
    };
    let file = application.lab.file("all.pcapng");
    let capture = application.capture(&["-i", "dpdk:0", "-Q", "in", "-w", &file]);
    let rate = Some(100_000);
    send_from(&application.lab.line.a, &numbered(), PACKETS, Engine::Packet, None, rate);
    capture.wait_recorded(PACKETS);
    capture.stop_well().assert_all_recorded(PACKETS);
    assert_eq!(Contents::read(&file).packets.len() as u64, PACKETS);
}

/// A filter runs in the application, snaplen cuts there, and rejected packets are counted.
#[test]
fn dpdk_filters_and_cuts_in_the_application() {
    let Some(application) = Application::on_veths() else {
        return;
    };
    let file = application.lab.file("some.pcapng");
    let arguments = args!(
        "-i dpdk:0 -Q in --queue 0 -s 40 -w {file} 'ether proto 0x88b5 and less \
         159'"
    );
    let capture = application.capture(&arguments);
    application.lab.send(&numbered(), FRAMES);
    capture.wait_recorded(100);
    // The last packet is rejected. Once a later packet that matches has arrived, it has been filtered.
    application.lab.send(&[frames::numbered(7, 60)], 1);
    capture.wait_recorded(101);
    let summary = capture.stop_well();
    assert_eq!((summary.seen, summary.filtered_out, summary.recorded), (FRAMES + 1, FRAMES - 100, 101));
    assert_eq!((summary.lost_total(), summary.interfaces[0].truncated), (0, 101));
    let contents = Contents::read(&file);
    assert!(contents.packets.iter().all(|one| one.bytes.len() == 40 && one.original < 160));
}

/// dpdk-dumpcap runs on the port that trawl does not use; both count the same packets.
#[test]
fn dpdk_dumpcap_counts_the_same() {
    let Some(application) = Application::on_veths() else {
        return;
    };
    let theirs = application.lab.file("theirs.pcapng");
    let ours = application.lab.file("ours.pcapng");
    let log = application.lab.file("dumpcap.log");
    let mut dumpcap = application.dumpcap(&theirs, &log);
    let capture = application.capture(&["-i", "dpdk:1", "-Q", "out", "-w", &ours]);
    // DPDK allows one capture per port.
    let all = args!("capture --tap dpdk --file-prefix {} -i dpdk:0 -w -", application.prefix);
    let refused = trawl(&all);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{words}");
    assert!(words.contains("another capture is on port 0"), "{words}");
    application.lab.send(&numbered(), FRAMES);
    capture.wait_recorded(FRAMES);
    capture.stop_well().assert_all_recorded(FRAMES);
    wait_until("dpdk-dumpcap has them", || {
        fs::read_to_string(&log).is_ok_and(|said| said.contains(&FRAMES.to_string()))
    });
    kill_process(Pid::from_child(&dumpcap), Signal::INT).expect("it runs");
    dumpcap.wait().expect("it ended");
    let counted = capinfos(&theirs, "Number of packets");
    assert!(counted.contains(&FRAMES.to_string()), "{counted}");
    assert_eq!(Contents::read(&ours).packets.len() as u64, FRAMES);
}

/// After either side is killed, the other still ends cleanly.
#[test]
fn dpdk_either_side_may_be_killed() {
    let Some(mut application) = Application::on_null() else {
        return;
    };
    let file = application.lab.file("killed.pcapng");
    let flood = ["-i", "dpdk:0", "-Q", "in", "-w", &file];

    // The helper ends cleanly after trawl is killed.
    let capture = application.capture(&flood);
    let helper = helper_of(&capture);
    capture.kill();
    wait_until("the helper ends", || !fs::exists(format!("/proc/{}", helper.as_raw_nonzero())).unwrap_or(true));
    assert_eq!(application.owners(), 0);
    let said = application.capture_some(&file);
    assert!(!said.contains("killed capture"), "{said}");

    // trawl removes a killed helper's leftovers, and reports that the capture has ended.
    let capture = application.capture(&flood);
    kill_process(helper_of(&capture), Signal::KILL).expect("it runs");
    let finished = capture.wait();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("trawl-dpdk was killed"), "{}", finished.stderr);
    assert!(finished.stderr.contains("removed from port 0"), "{}", finished.stderr);
    assert_eq!(application.owners(), 0);

    // After both are killed at once, the next capture finds the leftovers.
    let capture = application.capture(&flood);
    let helper = helper_of(&capture);
    capture.freeze();
    kill_process(helper, Signal::KILL).expect("it runs");
    capture.kill();
    assert_eq!(application.owners(), 1);
    let said = application.capture_some(&file);
    assert!(said.contains("removed from port 0"), "{said}");
    assert_eq!(application.owners(), 0);
    assert!(application.is_alive());

    // After the application is killed, copied packets are recorded, and the reason for the end is reported.
    let capture = application.capture(&flood);
    capture.wait_recorded(1);
    application.kill();
    let finished = capture.wait();
    assert!(finished.stderr.contains("its DPDK application has ended"), "{}", finished.stderr);
    let recorded = finished.summary().recorded;
    assert_eq!(Contents::read(&file).packets.len() as u64, recorded);
}

/// A killed dpdk-dumpcap leaves its callbacks of both directions; all of them are removed before its memory is freed.
#[test]
fn dpdk_clears_leftovers_of_a_killed_dumpcap() {
    // No traffic is sent, because a dpdk-dumpcap that is killed while it handles a packet may leave the application's
    // rings locked forever.
    let Some(mut application) = Application::on_veths() else {
        return;
    };
    let theirs = application.lab.file("theirs.pcapng");
    let mut dumpcap = application.dumpcap(&theirs, &application.lab.file("dumpcap.log"));
    dumpcap.kill().expect("it runs");
    dumpcap.wait().expect("it ended");
    let file = application.lab.file("file.pcapng");
    let records = |interface: &str| {
        let capture = application.capture(&["-i", interface, "-Q", "in", "-c", "50", "-w", &file]);
        application.lab.send(&[frames::numbered(0, 60)], 50);
        let finished = capture.wait();
        assert_eq!(finished.summary_of_success().recorded, 50);
        finished.stderr
    };
    let said = records("dpdk:0");
    assert!(said.contains("removed from port 0"), "{said}");
    let said = records("dpdk:all");
    assert!(!said.contains("removed from"), "{said}");
    assert!(application.is_alive());
}

/// Stamps stay within 1 ms of the kernel's clock. The stamps of DPDK before 23.11 drift from it by 1.5 ms per second.
#[test]
#[ignore = "make test-long runs it"]
fn dpdk_times_follow_the_kernels_clock() {
    const ROUNDS: u32 = 12;
    const IN_A_ROUND: u64 = 20;
    const SECOND: u64 = 1_000_000_000;
    const TOLERANCE: u64 = 1_000_000;
    let Some(application) = Application::on_veths() else {
        return;
    };
    let file = application.lab.file("file.pcapng");
    let capture = application.capture(&["-i", "dpdk:0", "-Q", "in", "-w", &file]);
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let began = now();
        application.lab.send(&[frames::numbered(round, 60)], IN_A_ROUND);
        rounds.push((began, now()));
        capture.wait_recorded(IN_A_ROUND * u64::from(round + 1));
        wait_until("the next second", || now() >= began + SECOND);
    }
    capture.stop_well().assert_all_recorded(IN_A_ROUND * u64::from(ROUNDS));
    let contents = Contents::read(&file);
    let firsts = contents.packets.chunks(IN_A_ROUND as usize);
    let mut late = Vec::new();
    for (packets, (began, ended)) in firsts.zip(rounds) {
        let first = packets[0].time;
        assert!(first + TOLERANCE >= began, "{first} is before {began}");
        late.push(first.saturating_sub(ended));
    }
    // testpmd may wait for a CPU in some of the last rounds, but not in all of them.
    let least = late.iter().skip(late.len() / 2).min();
    assert!(least.is_some_and(|least| *least <= TOLERANCE), "{late:?}");
}
