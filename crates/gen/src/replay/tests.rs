use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use trawl_packet::pcap;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// A directory of this test's own.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("trawl-replay-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a frame of this length that begins with this byte.
fn frame(mark: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[0] = mark;
    frame
}

fn recording(link_type: u16, packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pcap::file_header(&mut bytes, link_type, 0);
    for (time, frame) in packets {
        let words = [time / SECOND, time % SECOND, frame.len() as u64, frame.len() as u64];
        bytes.extend(words.map(|word| (word as u32).to_le_bytes()).concat());
        bytes.extend(frame);
    }
    bytes
}

fn numbered(marks: &[(u64, u8)]) -> Vec<u8> {
    let packets: Vec<_> = marks.iter().map(|(time, mark)| (*time, frame(*mark, 60))).collect();
    recording(1, &packets)
}

fn options(files: &[&Path]) -> ReplayOptions {
    ReplayOptions {
        files: files.iter().map(|path| path.to_path_buf()).collect(),
        merge: false,
        rounds: Some(1),
        speed: Speed::Unpaced,
        rewrite: Rewrite::default(),
        mtu: 1500,
    }
}

/// Returns the first bytes and the due times of all frames, and the account.
fn replayed(options: ReplayOptions) -> (Vec<u8>, Vec<u64>, ReplayAccount) {
    let mut replay = Replay::open(options).unwrap_or_else(|e| panic!("{e}"));
    let account = replay.account();
    let mut room = vec![0; replay.longest()];
    let (mut marks, mut times, mut now) = (Vec::new(), Vec::new(), 0);
    while marks.len() < 100 {
        match replay.next(now, &mut room).expect("no failure") {
            Next::Frame(_) => {
                marks.push(room[0]);
                times.push(now);
            }
            Next::Later(time) => {
                assert!(time > now);
                now = time;
            }
            Next::End => {
                drop(replay);
                return (marks, times, account.outcome());
            }
        }
    }
    drop(replay);
    (marks, times, account.outcome())
}

#[test]
fn frames_come_when_they_are_due() {
    let files = Files::new();
    let file = files.file("a", &numbered(&[(5 * SECOND, 1), (5 * SECOND + 7, 2), (6 * SECOND, 3)]));
    let (marks, times, outcome) = replayed(ReplayOptions { speed: Speed::Times(2.0), ..options(&[&file]) });
    assert_eq!((marks, times), (vec![1, 2, 3], vec![0, 3, SECOND / 2]));
    assert_eq!(outcome.gaps.expect("measured").percentiles().max, 0);
    assert!(outcome.problems.is_empty());
    let (marks, times, outcome) = replayed(options(&[&file]));
    assert_eq!((marks, times), (vec![1, 2, 3], vec![0, 0, 0]));
    assert!(outcome.gaps.is_none());
}

#[test]
fn time_begins_when_the_engine_continues() {
    let files = Files::new();
    let file = files.file("a", &numbered(&[(0, 1), (1000, 2), (3000, 3)]));
    let mut replay = Replay::open(ReplayOptions { speed: Speed::Times(1.0), ..options(&[&file]) }).expect("a replay");
    let mut room = vec![0; replay.longest()];
    let mut next = |now| replay.next(now, &mut room).expect("no failure");
    assert_eq!(next(50), Next::Frame(60));
    // Sending the first frame took that long.
    assert_eq!(next(100_000), Next::Later(101_000));
    assert_eq!(next(101_000), Next::Frame(60));
    assert_eq!(next(101_000), Next::Later(103_000));
}

#[test]
fn rounds_repeat_all_frames() {
    let files = Files::new();
    let file = files.file("a", &numbered(&[(0, 1), (10, 2)]));
    let (marks, times, outcome) =
        replayed(ReplayOptions { rounds: Some(3), speed: Speed::Times(1.0), ..options(&[&file]) });
    assert_eq!(marks, [1, 2, 1, 2, 1, 2]);
    assert_eq!(times, [0, 10, 20, 30, 40, 50]);
    assert_eq!(outcome.rounds, 3);
    let (marks, ..) = replayed(ReplayOptions { rounds: None, ..options(&[&file]) });
    assert_eq!(marks.len(), 100);
}

#[test]
fn several_files_one_after_the_other_or_by_time() {
    let files = Files::new();
    let one = files.file("a", &numbered(&[(10, 1), (30, 3), (30, 4)]));
    let other = files.file("b", &numbered(&[(0, 5), (20, 6), (30, 7)]));
    let in_time = ReplayOptions { speed: Speed::Times(1.0), ..options(&[&one, &other]) };
    let (marks, times, _) = replayed(in_time.clone());
    assert_eq!(marks, [1, 3, 4, 5, 6, 7]);
    assert_eq!(times, [0, 20, 20, 20, 40, 50]);
    let (marks, times, _) = replayed(ReplayOptions { merge: true, rounds: Some(2), ..in_time });
    assert_eq!(marks, [5, 1, 6, 3, 4, 7, 5, 1, 6, 3, 4, 7]);
    assert_eq!(times[..6], [0, 10, 20, 30, 30, 30]);
}

#[test]
fn good_part_of_a_damaged_file_is_sent() {
    let files = Files::new();
    let mut bytes = numbered(&[(0, 1), (1, 2), (2, 3)]);
    bytes.truncate(bytes.len() - 1);
    let cut = files.file("cut", &bytes);
    let whole = files.file("whole", &numbered(&[(0, 9)]));
    let empty = files.file("empty", &[]);
    let (marks, _, outcome) = replayed(ReplayOptions { rounds: Some(2), ..options(&[&cut, &empty, &whole]) });
    assert_eq!(marks, [1, 2, 9, 1, 2, 9]);
    assert_eq!(outcome.problems.len(), 2, "{:?}", outcome.problems);
    assert!(outcome.problems[0].contains("cut: after 2 packets: the capture file is cut"));
    assert!(outcome.problems[1].contains("empty: the capture file is empty"));
}

/// Recordings compressed by gzip and zstd.
#[test]
fn compressed_recordings_are_replayed() {
    let files = Files::new();
    let plain = numbered(&[(0, 1), (10, 2), (20, 3)]);
    let path = files.file("plain", &plain);
    let gzip = std::process::Command::new("gzip").arg("-c").arg(&path).output().expect("gzip runs");
    let mut zstd = trawl_packet::seekable::Writer::new(Vec::new(), 1);
    zstd.push(&plain).expect("memory");
    let (zstd, _) = zstd.finish().expect("memory");
    for (name, bytes) in [("a.gz", &gzip.stdout), ("a.zst", &zstd)] {
        let (marks, _, outcome) = replayed(options(&[&files.file(name, bytes)]));
        assert_eq!(marks, [1, 2, 3], "{name}");
        assert!(outcome.problems.is_empty(), "{:?}", outcome.problems);
    }
    let cut = files.file("cut.gz", &gzip.stdout[..gzip.stdout.len() - 12]);
    let (_, _, outcome) = replayed(options(&[&path, &cut]));
    assert!(!outcome.problems.is_empty());
}

#[test]
fn nothing_to_send_is_refused_with_the_reason() {
    let files = Files::new();
    let cooked = recording(113, &[(0, frame(1, 60))]);
    for (name, bytes, words) in [
        ("none", &recording(1, &[])[..], "no packet in it"),
        ("empty", &[], "the capture file is empty"),
        ("text", b"hello, world", "not a capture file"),
        ("cooked", &cooked, "LINUX_SLL (113)"),
    ] {
        let error = Replay::open(options(&[&files.file(name, bytes)])).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let missing = files.0.join("missing");
    for path in [missing.as_path(), files.0.as_path()] {
        let good = files.file("good", &numbered(&[(0, 1)]));
        assert!(Replay::open(options(&[&good, path])).is_err());
    }
}

#[test]
fn round_that_sends_nothing_is_the_last() {
    let files = Files::new();
    let file = files.file("a", &recording(1, &[(0, frame(1, 5000)), (1, frame(2, 6))]));
    let (marks, _, outcome) = replayed(ReplayOptions { rounds: None, ..options(&[&file]) });
    assert!(marks.is_empty());
    assert_eq!((outcome.too_long, outcome.too_short), (1, 1));
}

#[test]
fn only_frames_that_fit_the_interface_are_sent() {
    let files = Files::new();
    let mut tagged = frame(3, 1518);
    tagged[12..14].copy_from_slice(&VLAN);
    let mut longer = tagged.clone();
    longer[0] = 4;
    longer.push(0);
    let packets = [frame(1, 1514), frame(2, 1515), tagged, longer, frame(5, 14), frame(6, 13)];
    let packets: Vec<_> = packets.into_iter().map(|frame| (0, frame)).collect();
    let file = files.file("a", &recording(1, &packets));
    let (marks, _, outcome) = replayed(options(&[&file]));
    assert_eq!(marks, [1, 3, 5]);
    assert_eq!((outcome.too_long, outcome.too_short), (2, 1));
}

#[test]
fn speeds_that_never_end_are_refused() {
    let files = Files::new();
    let file = files.file("a", &numbered(&[(0, 1)]));
    for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let options = ReplayOptions { speed: Speed::Times(speed), ..options(&[&file]) };
        assert!(Replay::open(options).is_err());
    }
}

use std::io::Write;

fn file(name: &str, bytes: &[u8]) -> File {
    let path = std::env::temp_dir().join(format!("trawl-ahead-{name}-{}", std::process::id()));
    let mut file = File::create(&path).expect("a file");
    file.write_all(bytes).expect("written");
    let file = File::open(&path).expect("the file");
    std::fs::remove_file(&path).expect("its name is not needed");
    file
}

#[test]
fn all_bytes_come_in_order() {
    let bytes: Vec<u8> = (0..PIECE as u32 * 3 + 17).map(|n| (n % 251) as u8).collect();
    let mut read = Vec::new();
    let mut ahead = Ahead::new(file("order", &bytes));
    ahead.read_to_end(&mut read).expect("read");
    assert!(read == bytes);
    assert_eq!(ahead.read(&mut [0; 8]).expect("still at the end"), 0);
}

#[test]
fn empty_and_partly_read_files_end_cleanly() {
    let mut none = Vec::new();
    Ahead::new(file("empty", &[])).read_to_end(&mut none).expect("read");
    assert!(none.is_empty());
    let mut ahead = Ahead::new(file("left", &vec![1; PIECE * 20]));
    ahead.read_exact(&mut [0; 10]).expect("read");
}

#[test]
fn errors_come_through() {
    let directory = File::open(std::env::temp_dir()).expect("a directory");
    assert!(Ahead::new(directory).read(&mut [0; 8]).is_err());
}

const START: u64 = 1_700_000_000 * SECOND;

fn dues(speed: f64, times: &[u64]) -> Vec<u64> {
    let mut timing = Timing::new(speed);
    times.iter().map(|time| timing.due(START + time)).collect()
}

#[test]
fn gaps_equal_the_recorded_ones() {
    assert_eq!(dues(1.0, &[0, 1, 1, SECOND]), [0, 1, 1, SECOND]);
    assert_eq!(dues(2.0, &[0, 10, 100]), [0, 5, 50]);
    assert_eq!(dues(0.5, &[0, 10, 100]), [0, 20, 200]);
}

#[test]
fn slight_disorder_does_not_stretch_the_time() {
    assert_eq!(dues(1.0, &[0, 100, 50, 110]), [0, 100, 100, 110]);
}

#[test]
fn clock_set_back_does_not_stop_the_replay() {
    let hour = 3600 * SECOND;
    let mut timing = Timing::new(1.0);
    let dues = [hour, hour + 5, 7, 9].map(|time| timing.due(START + time));
    assert_eq!(dues, [0, 5, 5, 7]);
    assert_eq!(timing.backwards(), 1);
}

#[test]
fn files_follow_each_other_and_rounds_keep_the_rate() {
    let mut timing = Timing::new(1.0);
    assert_eq!([0, 10, 20].map(|time| timing.due(START + time)), [0, 10, 20]);
    timing.next_file();
    assert_eq!([3, 13].map(|time| timing.due(time)), [20, 30]);
    timing.next_round();
    // Thirty over four gaps.
    assert_eq!(timing.due(START), 37);
    let mut single = Timing::new(1.0);
    single.due(START);
    single.next_round();
    assert_eq!(single.due(START), 0);
}
