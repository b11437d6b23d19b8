//! Several outputs at once: each has its own format, and loses only its own packets.

use trawl_lab::sender::Engine;
use trawl_tests::lab::send_from;
use trawl_tests::pcapng::Contents;
use trawl_tests::turn::heavy;
use trawl_tests::witness::{capinfos, output, packets_in, tshark};
use trawl_tests::{Capture, Lab, Running, args, frames, trawl};

/// Options after a name apply to that output alone, including the first one.
#[test]
fn outputs_have_their_own_length_format_and_compression() {
    let Some(lab) = Lab::open() else { return };
    let [first, second, third] = ["first", "second", "third"].map(|name| lab.file(name));
    let receiver = lab.receiver();
    let arguments = args!(
        "-i {receiver} --tap xdp -w \
         {first},snaplen=70,format=pcap,compress=gzip -w \
         {second},compress=zstd,snaplen=80 -w {third},format=pcap"
    );
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::patterned(200)], 1000);
    capture.wait_recorded(1000);
    let summary = capture.stop_well();
    summary.assert_all_recorded(1000);
    assert_eq!(summary.outputs.len(), 2);
    for (file, unpack, captured, kind) in
        [(&first, Some("gzip"), "70", "pcap"), (&second, Some("zstd"), "80", "pcapng"), (&third, None, "200", "pcap")]
    {
        let plain = match unpack {
            Some(program) => {
                let plain = format!("{file}.plain");
                output("sh", &["-c", &format!("{program} -dc < {file} > {plain}")]);
                plain
            }
            None => file.clone(),
        };
        let rows = tshark(&plain, &["frame.cap_len", "frame.len"]);
        assert_eq!(rows.len(), 1000, "{file}");
        assert!(rows.iter().all(|row| *row == [captured, "200"]), "{file}");
        let file_type = capinfos(&plain, "File type");
        assert_eq!(file_type.contains("pcapng"), kind == "pcapng", "{file_type}");
    }
}

/// An output whose reader does not read loses its own packets and reports them; the other outputs lose none.
#[test]
fn unread_pipe_takes_nothing_from_the_file() {
    for is_first in [false, true] {
        record_with_unread_pipe(is_first);
    }
}

fn record_with_unread_pipe(is_first: bool) {
    const PACKETS: u64 = 200_000;
    let Some(lab) = Lab::open() else { return };
    let (file, pipe) = (lab.file("whole.pcapng"), lab.file("pipe"));
    output("mkfifo", &[&pipe]);
    // The pipe is opened for reading and writing, so that neither end blocks, and is never read.
    let held = std::fs::File::options().read(true).write(true).open(&pipe);
    let held = held.expect("the pipe");
    let receiver = lab.receiver();
    let (one, other) = if is_first { (&pipe, &file) } else { (&file, &pipe) };
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", one, "-w", other];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::patterned(300)], PACKETS);
    capture.wait_recorded(PACKETS);
    let finished = capture.stop();
    let summary = finished.summary_of_success();
    summary.assert_all_recorded(PACKETS);
    assert_eq!(Contents::read(&file).packets.len() as u64, PACKETS);
    let slow = &summary.outputs[0];
    assert_eq!(slow["name"], pipe);
    let lost = slow["lost"].as_u64().expect("a number");
    // A pipe holds some packets.
    assert!(lost > PACKETS - 1000 && lost <= PACKETS, "{lost}");
    assert_eq!(slow["recorded"], PACKETS - lost);
    assert!(finished.stderr.contains("is a named pipe"), "{}", finished.stderr);
    assert!(finished.stderr.contains("recorded packets lost"), "{}", finished.stderr);
    drop(held);
}

#[test]
fn several_outputs_have_their_own_format_and_length() {
    let Some(lab) = Lab::open() else { return };
    let [first, second, third] = ["a.pcapng", "b.pcap", "c.pcapng.gz"].map(|name| lab.file(name));
    let receiver = lab.receiver();
    let short = format!("{second},snaplen=60");
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &first, "-w", &short, "-w", &third, "--print"];
    let capture = Capture::start(&lab, &arguments);
    send_from(&lab.pair.a, &[frames::patterned(200)], 20_000, Engine::Live, Some(0), None);
    capture.wait_recorded(20_000);
    let finished = capture.stop();
    finished.summary_of_success().assert_all_recorded(20_000);
    let printed = finished.printed();
    let lines = printed.lines().filter(|line| line.contains("xdp exit"));
    assert_eq!(lines.count(), 20_000);
    let lengths = |file: &str| {
        let rows = tshark(file, &["frame.cap_len", "frame.len"]);
        assert_eq!(rows.len(), 20_000, "{file}");
        rows[19_999].clone()
    };
    assert_eq!(lengths(&first), ["200", "200"]);
    assert_eq!(lengths(&second), ["60", "200"]);
    assert!(capinfos(&second, "File type").contains("pcap"));
    assert_eq!(lengths(&third), ["200", "200"]);
}

/// If the first output's disk is full, the other output continues, and the counts of the first are exact.
#[test]
fn full_disk_of_the_first_output_takes_nothing_from_the_other() {
    const PACKETS: u64 = 20_000;
    let Some(lab) = Lab::open() else { return };
    let (disk, file, receiver) = (lab.file("disk"), lab.file("whole.pcapng"), lab.receiver());
    std::fs::create_dir(&disk).expect("a directory");
    let mounted = output("mount", &["-t", "tmpfs", "-o", "size=400k", "none", &disk]);
    assert!(mounted.status.success());
    let full = format!("{disk}/full.pcapng");
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &full, "-w", &file];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::patterned(300)], PACKETS);
    capture.wait_recorded(PACKETS);
    let finished = capture.stop();
    let recorded = Contents::read(&full).packets.len() as u64;
    assert!(output("umount", &[&disk]).status.success());
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let summary = finished.summary();
    assert_eq!(summary.recorded, PACKETS);
    assert_eq!(Contents::read(&file).packets.len() as u64, PACKETS);
    assert_eq!(summary.outputs[0]["name"], full);
    assert_eq!(summary.outputs[0]["lost"], PACKETS - recorded);
    assert_eq!(summary.outputs[1]["lost"], 0);
}

/// An output's length overrides -s, even for whole packets.
#[test]
fn output_may_record_more_bytes_than_the_others() {
    let Some(lab) = Lab::open() else { return };
    let [first, second, third] = ["a.pcapng", "b.pcapng", "c.pcapng"].map(|name| lab.file(name));
    let receiver = lab.receiver();
    let (longer, all) = (format!("{second},snaplen=40"), format!("{third},snaplen=0"));
    let arguments = ["-i", &receiver, "--tap", "xdp", "-s", "30", "-w", &first, "-w", &longer, "-w", &all];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::patterned(200)], 10);
    capture.wait_recorded(10);
    capture.stop_well().assert_all_recorded(10);
    for (file, length) in [(first, 30), (second, 40), (third, 200)] {
        let contents = Contents::read(&file);
        assert_eq!(contents.packets.len(), 10, "{file}");
        assert!(contents.packets.iter().all(|one| one.bytes.len() == length), "{file}");
    }
}

#[test]
fn outputs_that_would_destroy_each_other_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let (file, other, receiver) = (lab.file("a.pcapng"), lab.file("b.pcapng"), lab.receiver());
    let again = lab.file("./a.pcapng");
    let (unknown, missing) = (format!("{other},format=xx"), lab.file("missing/c.pcapng"));
    for (outputs, code) in [
        (&["-w", &file, "-w", &again][..], 2),
        (&["-w", "-", "-w", "-"], 2),
        (&["-w", "-", "--print"], 2),
        (&["-w", "-", "--compress", "zstd"], 2),
        (&["-w", &file, "-w", &unknown], 2),
        (&["-w", &file, "-w", &missing], 1),
        (&["-w", ",snaplen=64"], 2),
        (&["-w", "a.pcapng,snap=64"], 2),
        (&["-w", "a.pcapng,compress=zstd,foo=1"], 2),
    ] {
        let refused = trawl(&[&["capture", "-i", &receiver][..], outputs].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(code), "{outputs:?}: {said}");
        assert!(refused.stdout.is_empty() && !said.contains("capturing on"), "{outputs:?}: {said}");
        assert!(!lab.path("a.pcapng").exists(), "{outputs:?}");
    }
}

/// Compression that cannot keep up loses nothing from the ring, and the notice names the limit.
#[test]
fn compression_that_cannot_keep_up_is_named() {
    const PACKETS: u64 = 400_000;
    let _heavy = heavy();
    let Some(lab) = Lab::open() else { return };
    let [alone, plain] = ["a.pcapng.gz", "b.pcapng"].map(|name| lab.file(name));
    let receiver = lab.receiver();
    for more in [&[][..], &["-w", &plain]] {
        let arguments = ["-i", &receiver, "--tap", "xdp", "-w"];
        let first = more.last().map_or(&alone, |_| &plain);
        let second = more.first().map_or(vec![], |option| vec![*option, &alone]);
        let capture = Capture::start(&lab, &[&arguments[..], &[first], &second].concat());
        let frame = [frames::patterned(1400)];
        send_from(&lab.pair.a, &frame, PACKETS, Engine::Live, None, None);
        capture.wait_seen(PACKETS);
        let finished = capture.stop();
        let said = "compression could not keep up on";
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
        let summary = finished.summary_of_success();
        let recorded = match summary.outputs.first() {
            Some(output) => output["recorded"].as_u64().expect("a number"),
            None => summary.recorded,
        };
        assert!(recorded < PACKETS, "{summary:#?}");
        assert_eq!(packets_in(&alone), recorded);
    }
}

/// --plan carries out the plan that --dry-run prints, and refuses other options with it.
#[test]
fn plan_is_printed_and_carried_out() {
    let Some(lab) = Lab::open() else { return };
    let (receiver, file) = (lab.receiver(), lab.file("planned.pcap"));
    let asked = ["-i", &receiver, "--tap", "xdp", "-c", "5", "-w", &file];
    let printed = trawl(&[&["capture", "--dry-run"][..], &asked].concat());
    assert!(printed.status.success(), "{printed:?}");
    assert!(!std::path::Path::new(&file).exists(), "it captures nothing");
    let plan = lab.file("plan.json");
    std::fs::write(&plan, &printed.stdout).expect("a file");
    let capture = Running::start(&["capture", "--plan", &plan], "capturing on");
    lab.send(&[frames::silent(64)], 5);
    assert_eq!(capture.wait().status.code(), Some(0));
    assert_eq!(tshark(&file, &["frame.number"]).len(), 5);
    let both = trawl(&["capture", "--plan", &plan, "-c", "3"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    std::fs::write(&plan, "{\"sources\": {}}").expect("a file");
    let wrong = trawl(&["capture", "--plan", &plan]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}
