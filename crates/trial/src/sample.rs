//! A made-up report for the tests of the outputs, and a check of markup.

use crate::report::{
    BranchCoverage, Coverage, Difference, Example, Field, FileReport, FunctionCoverage, Fuzzing, Group, LeftOut,
    LineCoverage, MapDifference, Method, PathTiming, Recorded, Report, Share, SourceCoverage, SourceLine, Tested,
    Timing, VerdictCount,
};

/// Returns a report with a value of every kind, and with characters that need an escape.
pub fn report() -> Report {
    let tested = |source: &str, instructions| Tested {
        name: "xdp_filter".into(),
        source: source.into(),
        instructions,
        tag: None,
    };
    let file = |name: &str, packets, differing| FileReport { name: name.into(), packets, left_out: vec![], differing };
    let verdict = |verdict: &str, packets, against| VerdictCount { verdict: verdict.into(), packets, against };
    Report {
        outcomes: "00112233445566aa".to_owned(),
        program: tested("new.o", 473),
        against: Some(tested("old.o", 470)),
        files: vec![
            FileReport {
                left_out: vec![LeftOut { why: "cut when they were recorded", packets: 12 }],
                ..file("yesterday.pcapng", 12_000, 9)
            },
            file("a&b <1>.pcap", 345, 0),
        ],
        packets: 12_345,
        verdicts: vec![verdict("PASS", 11_000, Some(10_991)), verdict("DROP", 1345, Some(1354))],
        recorded: Some(Recorded { packets: 6982, reproduced: 6980 }),
        groups: vec![group(), allowed()],
        maps: vec![MapDifference {
            name: "ports".into(),
            is_fuzzed: false,
            entries: 2,
            key: "0035".into(),
            before: Some("01".into()),
            after: Some("00".into()),
        }],
        coverage: Some(coverage()),
        timing: Some(timing()),
        fuzzing: Some(fuzzing()),
        notes: vec!["timers ran by the real clock".into()],
        missed: vec!["line coverage is 75 %, below 80 %".into()],
    }
}

/// Returns a group whose packets pass instead of being dropped.
pub fn group() -> Group {
    Group {
        before: "DROP".into(),
        after: "PASS".into(),
        differences: vec![Difference::Verdict],
        fields: vec![],
        packets: 9,
        allowed: None,
        line_before: Some(line(86, "\t\treturn XDP_DROP;")),
        line_after: Some(line(
            88,
            "\tif (rule && rule->action == ALLOW && rule->ports[0] <= port && port <= rule->ports[1])",
        )),
        example: Example {
            file: "yesterday.pcapng".into(),
            number: 123,
            packets: vec![(0..45).collect()],
            times: vec![1_700_000_000_000_000_000],
            is_confirmed: true,
        },
    }
}

fn allowed() -> Group {
    Group {
        before: "TX".into(),
        after: "TX".into(),
        differences: vec![Difference::Bytes],
        fields: vec![Field { offset: 30, length: 2 }],
        packets: 4,
        allowed: Some("tx>tx where udp".into()),
        line_before: None,
        line_after: None,
        example: Example { is_confirmed: false, ..group().example },
    }
}

fn line(line: u32, text: &str) -> SourceLine {
    SourceLine { file: "/src/filter.c".into(), line, text: text.into() }
}

fn fuzzing() -> Fuzzing {
    let example = group().example;
    Fuzzing {
        seconds: 60.0,
        runs: 11_220_000,
        new_blocks: 12,
        paths: 5021,
        corpus: 5000,
        differing: 40,
        unconfirmed: 3,
        errors: 2,
        error_example: Some(Example { packets: vec![vec![0; 14]], ..example }),
    }
}

fn timing() -> Timing {
    let path = |packets, verdict: &str, ns, against_ns| PathTiming {
        packets,
        verdict: verdict.into(),
        line: None,
        ns,
        against_ns: Some(against_ns),
        method: Method::Single,
    };
    let first = path(12_000, "PASS", 106.0, 94.5);
    let line = Some(line(86, "\t\treturn XDP_DROP;"));
    Timing {
        ns: 105.2,
        against_ns: Some(94.1),
        noise_ns: 1.2,
        packets: 12_300,
        not_timed: 45,
        paths: vec![PathTiming { line, method: Method::Repeated, ..first }, path(300, "DROP", 73.2, 78.1)],
    }
}

pub fn coverage() -> Coverage {
    let share = |reached, total| Share { reached, total };
    let function = |name: &str, line: Option<u32>, packets, blocks, edges| FunctionCoverage {
        name: name.into(),
        file: line.map(|_| "/src/filter.c".into()),
        line,
        packets,
        blocks,
        edges,
    };
    let line = |line, text: &str, packets, blocks, branches| LineCoverage {
        line,
        text: text.into(),
        packets,
        blocks,
        branches,
    };
    let branch = |packets, taken, not_taken| BranchCoverage { packets, taken, not_taken };
    Coverage {
        blocks: share(3, 5),
        edges: share(4, 7),
        lines: share(3, 4),
        functions: vec![
            function("xdp_filter", Some(80), 12_345, share(3, 4), share(4, 6)),
            function("log_packet", Some(20), 0, share(0, 1), share(0, 1)),
            function("no_source", None, 0, share(0, 0), share(0, 0)),
        ],
        files: vec![
            SourceCoverage {
                name: "/src/filter.c".into(),
                lines: vec![
                    line(21, "\tbpf_printk(\"<dropped>\");", 0, share(0, 1), vec![branch(0, Some(0), Some(0))]),
                    line(81, "\tif (!parse(ctx))", 12_345, share(2, 2), vec![branch(12_345, None, Some(12_345))]),
                    line(
                        88,
                        "\tif (rule && rule->action == ALLOW)",
                        9,
                        share(1, 2),
                        vec![branch(9, Some(9), Some(0)), branch(9, Some(4), Some(5))],
                    ),
                ],
            },
            SourceCoverage { name: "/src/parse.h".into(), lines: vec![line(7, "return 0;", 3, share(1, 1), vec![])] },
        ],
    }
}

/// Panics if an element of XML or HTML is not closed, or if one is closed that is not open.
pub fn assert_is_balanced(markup: &str) {
    let mut open = Vec::new();
    for tag in markup.split('<').skip(1) {
        let tag = tag.split_once('>').expect("a tag without end").0;
        let name = tag.split([' ', '/']).next().unwrap();
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "in {markup}"),
            None if tag.starts_with(['?', '!']) || tag.ends_with('/') || ["meta", "link"].contains(&name) => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
}
