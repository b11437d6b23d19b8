//! Several CPUs, interfaces and namespaces in one file, complete and in order of time.

use trawl_lab::sender::Engine;
use trawl_tests::lab::send_from;
use trawl_tests::pcapng::Contents;
use trawl_tests::turn::heavy;
use trawl_tests::witness::{capinfos, nothing_attached, tshark};
use trawl_tests::{Capture, Lab, args, frames};

const EACH: u32 = 2_000;

/// Returns frames with the numbers `from..from + EACH`.
fn numbered(from: u32) -> Vec<Vec<u8>> {
    (from..from + EACH).map(|number| frames::numbered(number, 64)).collect()
}

/// Returns the numbers of an interface's packets, sorted.
fn numbers_at(contents: &Contents, interface: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = contents.of(interface).iter().map(|packet| frames::number_of(&packet.bytes)).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn two_cpus_make_one_time_order() {
    let Some(lab) = Lab::open() else { return };
    let _heavy = heavy();
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "xdp", "-w", &file]);
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let from = &lab.pair.a;
            scope.spawn(move || {
                let frames = numbered(cpu as u32 * EACH);
                send_from(from, &frames, u64::from(EACH), Engine::Live, Some(cpu), None);
            });
        }
    });
    capture.wait_recorded(u64::from(2 * EACH));
    capture.stop_well().assert_all_recorded(u64::from(2 * EACH));
    assert_eq!(capinfos(&file, "Strict time order"), "True");
    let contents = Contents::read(&file);
    assert_eq!(numbers_at(&contents, 0), (0..2 * EACH).collect::<Vec<_>>());
    // The packets of one CPU stay in order.
    for queue in 0..2 {
        let of_queue: Vec<u32> = contents
            .packets
            .iter()
            .filter(|packet| packet.queue() == Some(queue))
            .map(|packet| frames::number_of(&packet.bytes))
            .collect();
        assert_eq!(of_queue.len() as u32, EACH);
        assert!(of_queue.is_sorted());
    }
}

#[test]
fn two_namespaces_at_once() {
    let (Some(one), Some(other)) = (Lab::open(), Lab::open()) else {
        return;
    };
    let _heavy = heavy();
    let file = one.file("file.pcapng");
    let places = ["-i", &one.receiver(), "-i", &other.receiver()];
    let capture = Capture::start(&one, &[&places[..], &["--tap", "xdp", "-w", &file]].concat());
    std::thread::scope(|scope| {
        for (cpu, lab) in [&one, &other].into_iter().enumerate() {
            let from = &lab.pair.a;
            scope.spawn(move || {
                let frames = numbered(cpu as u32 * EACH);
                send_from(from, &frames, u64::from(EACH), Engine::Live, Some(cpu), None);
            });
        }
    });
    capture.wait_recorded(u64::from(2 * EACH));
    let summary = capture.stop_well();
    summary.assert_all_recorded(u64::from(2 * EACH));
    let each: Vec<(String, u64)> = summary.interfaces.iter().map(|one| (one.interface.clone(), one.seen)).collect();
    assert_eq!(each, [(one.receiver(), u64::from(EACH)), (other.receiver(), u64::from(EACH))]);

    assert_eq!(capinfos(&file, "Strict time order"), "True");
    assert_eq!(capinfos(&file, "Number of interfaces in file"), "2");
    let contents = Contents::read(&file);
    assert_eq!(numbers_at(&contents, 0), (0..EACH).collect::<Vec<_>>());
    assert_eq!(numbers_at(&contents, 1), (EACH..2 * EACH).collect::<Vec<_>>());
    let names: Vec<String> = contents.interfaces.iter().map(trawl_tests::pcapng::Interface::name).collect();
    assert_eq!(names, [one.receiver(), other.receiver()]);
    nothing_attached(&one.pair.b);
    nothing_attached(&other.pair.b);
}

#[test]
fn both_directions_of_one_interface() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let arguments = args!("-i {} --tap xdp -Q inout -c 4 -w {file}", lab.receiver());
    let capture = Capture::start(&lab, &arguments);
    // The request arrives at XDP, and the stack's reply leaves at tc. Each request waits for the previous reply.
    for sequence in 1..=2 {
        lab.send(&[frames::echo_request(sequence)], 1);
        if sequence == 1 {
            capture.wait_recorded(2);
        }
    }
    let summary = capture.wait().summary_of_success();
    summary.assert_all_recorded(4);
    let hooks: Vec<(&str, u64)> = summary.interfaces.iter().map(|one| (one.hook.as_str(), one.recorded)).collect();
    assert_eq!(hooks, [("xdp exit", 2), ("tc egress", 2)]);
    let rows = tshark(&file, &["frame.packet_flags_direction", "icmp.type"]);
    assert_eq!(rows, [["0x00000001", "8"], ["0x00000002", "0"], ["0x00000001", "8"], ["0x00000002", "0"]]);
    nothing_attached(&lab.pair.b);
}
