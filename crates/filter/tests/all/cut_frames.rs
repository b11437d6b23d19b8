//! Frames truncated by a snapshot: expressions of all lengths agree with libpcap on them.

use trawl_io::libpcap::{FilterRequest, compile_filter};

use crate::agreement::Readers;
use crate::random_expressions::primitive;
use crate::support::classic;
use crate::support::oracle::oracle;
use crate::support::packets::{Random, frames};

/// Number of operators from which expressions are split.
const LONG: usize = 150;

/// Returns an expression of this many operators, in typical groups.
fn expression(r: &mut Random, operators: usize) -> String {
    let mut text = primitive(r);
    let mut left = operators;
    while left > 0 {
        let members = 1 + r.below(left.min(9));
        let word = r.pick(&[" or ", " or ", " and "]);
        let list: Vec<String> = (0..members).map(|_| primitive(r)).collect();
        let not = r.pick(&["", "", "", "not "]);
        text = format!("{text}{}{not}({})", r.pick(&[" or ", " or ", " or ", " and "]), list.join(word));
        left -= members;
    }
    text
}

fn libpcap_accepts(text: &str) -> bool {
    let request = FilterRequest { link_type: 1, snaplen: 262_144, netmask: None, optimise: true, file: None };
    compile_filter(text, &request).is_ok()
}

/// For long expressions libpcap's optimiser needs minutes: such expressions are compiled in pieces, and only whole
/// frames are compared.
#[test]
fn truncated_frames_agree_with_libpcap() {
    // Number of operators, of expressions and of frames, and true for libpcap's optimiser.
    for (operators, count, of_each, optimise) in [
        (1, 40, 25, true),
        (48, 6, 25, true),
        (LONG - 1, 4, 12, true),
        (LONG, 3, 12, true),
        (400, 2, 8, true),
        (2_000, 2, 40, false),
    ] {
        let (mut matched, mut compared) = (0, 0);
        for seed in 0..count {
            let mut r = Random::new(seed * 1000 + operators as u64);
            let text = expression(&mut r, operators);
            // libpcap refuses expressions that it finds never to match.
            if optimise && !libpcap_accepts(&text) {
                continue;
            }
            let oracle = oracle(&text, optimise);
            let program = classic(&text);
            for frame in frames(seed, of_each) {
                let shortest = if optimise { 0 } else { frame.len() };
                for length in shortest..=frame.len().min(shortest.max(100)) {
                    let frame = &frame[..length];
                    let expected = oracle.matches(frame);
                    let ours = program.run(frame, length as u32) != 0;
                    assert_eq!(ours, expected, "{text} on {frame:02x?}");
                    matched += usize::from(expected);
                    compared += 1;
                }
            }
        }
        let ends = matched > 0 && matched < compared;
        assert!(ends, "{operators} operators: {matched} of {compared}");
    }
}

/// The lowered block agrees with the program it is made from.
#[test]
fn lowered_long_expressions_agree_on_truncated_frames() {
    for operators in [LONG, 400] {
        let mut r = Random::new(32);
        let text = expression(&mut r, operators);
        let readers = Readers::new(classic(&text));
        for frame in frames(32, 5) {
            for length in (0..frame.len().min(80)).step_by(3) {
                readers.compare(&text, &frame[..length], None, &mut r);
            }
        }
    }
}
