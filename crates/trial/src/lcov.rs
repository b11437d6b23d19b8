//! Coverage as a tracefile of lcov, which many tools for coverage read. geninfo(1) describes the format.

use std::fmt::Write as _;

use crate::report::{Coverage, FunctionCoverage, SourceCoverage};

/// Returns the tracefile, with a record for each source file. Counts are numbers of packets.
pub fn lcov(coverage: &Coverage) -> String {
    let mut out = String::new();
    for file in &coverage.files {
        let _ = writeln!(out, "TN:\nSF:{}", file.name);
        functions(&mut out, coverage, file);
        branches(&mut out, file);
        lines(&mut out, file);
        out.push_str("end_of_record\n");
    }
    out
}

fn functions(out: &mut String, coverage: &Coverage, file: &SourceCoverage) {
    let in_file = coverage.functions.iter().filter(|function| function.file.as_ref() == Some(&file.name));
    let found: Vec<(u32, &FunctionCoverage)> =
        in_file.filter_map(|function| function.line.map(|line| (line, function))).collect();
    for (line, function) in &found {
        let _ = writeln!(out, "FN:{line},{}", function.name);
    }
    for (_, function) in &found {
        let _ = writeln!(out, "FNDA:{},{}", function.packets, function.name);
    }
    let hit = found.iter().filter(|(_, function)| function.packets > 0).count();
    let _ = writeln!(out, "FNF:{}\nFNH:{hit}", found.len());
}

/// Writes the ways of conditional jumps: the jump is 0, the other way is 1. A dash stands for a jump that no packet reached.
fn branches(out: &mut String, file: &SourceCoverage) {
    let (mut found, mut hit) = (0, 0);
    for line in &file.lines {
        for (number, branch) in line.branches.iter().enumerate() {
            for (way, packets) in branch.ways() {
                let taken = if branch.packets == 0 { "-".to_owned() } else { packets.to_string() };
                let _ = writeln!(out, "BRDA:{},{number},{way},{taken}", line.line);
                found += 1;
                hit += u64::from(packets > 0);
            }
        }
    }
    let _ = writeln!(out, "BRF:{found}\nBRH:{hit}");
}

fn lines(out: &mut String, file: &SourceCoverage) {
    for line in &file.lines {
        let _ = writeln!(out, "DA:{},{}", line.line, line.packets);
    }
    let hit = file.lines.iter().filter(|line| line.packets > 0).count();
    let _ = writeln!(out, "LF:{}\nLH:{hit}", file.lines.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn file_has_its_functions_branches_and_lines() {
        let first = "TN:\nSF:/src/filter.c\nFN:80,xdp_filter\nFN:20,log_packet\nFNDA:12345,xdp_filter\n\
             FNDA:0,log_packet\nFNF:2\nFNH:1\nBRDA:21,0,0,-\nBRDA:21,0,1,-\nBRDA:81,0,1,12345\nBRDA:88,0,0,9\n\
             BRDA:88,0,1,0\nBRDA:88,1,0,4\nBRDA:88,1,1,5\nBRF:7\nBRH:4\nDA:21,0\nDA:81,12345\nDA:88,9\nLF:3\nLH:2\nend_of_record\n";
        let second = "TN:\nSF:/src/parse.h\nFNF:0\nFNH:0\nBRF:0\nBRH:0\nDA:7,3\nLF:1\nLH:1\nend_of_record\n";
        assert_eq!(lcov(&sample::coverage()), format!("{first}{second}"));
    }

    #[test]
    fn program_without_lines_has_no_record() {
        assert_eq!(lcov(&Coverage::default()), "");
    }
}
