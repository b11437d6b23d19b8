//! The result for people on a terminal. Tables, lines of source and bytes fit into 80 columns; sentences may be longer,
//! because the terminal's side folds them.

use std::fmt::Write as _;
use std::iter::once;

use trawl_view::text::cut;

use crate::report::{Example, Group, PathTiming, Report, Timing, VerdictCount};
use crate::wording::{self, count};

const COLUMNS: usize = 80;
/// Number of paths whose times are shown.
const SHOWN_PATHS: usize = 8;

/// Returns the result as text.
pub fn text(report: &Report) -> String {
    let mut out = format!("{}\n\n", wording::heading(report));
    verdicts(&mut out, report);
    for (number, one) in report.groups.iter().enumerate() {
        group(&mut out, number + 1, one);
    }
    for line in sentences(report) {
        let _ = writeln!(out, "{line}");
    }
    if let Some(timing) = &report.timing {
        times(&mut out, timing);
    }
    for missed in &report.missed {
        let _ = writeln!(out, "missed: {missed}");
    }
    out
}

/// Writes the times of the most frequent paths.
fn times(out: &mut String, timing: &Timing) {
    let _ = writeln!(out, "{}", wording::timing(timing));
    let is_compared = timing.against_ns.is_some();
    if timing.paths.is_empty() {
        return;
    }
    let old = if is_compared { "   old ns" } else { "" };
    let _ = writeln!(out, "   packets   new ns{old}  method       end of the path");
    for path in timing.paths.iter().take(SHOWN_PATHS) {
        let old = path.against_ns.map_or(String::new(), |ns| format!("{ns:>9.1}"));
        let end = path.line.as_ref().map_or(String::new(), |line| {
            let file = line.file.rsplit('/').next().unwrap_or_default();
            format!(" {file}:{} {}", line.line, one_line(&line.text)).trim_end().to_owned()
        });
        let PathTiming { packets, ns, verdict, .. } = path;
        let method = wording::method(path.method);
        let _ =
            writeln!(out, "{}", cut(&format!("{packets:>10}{ns:>9.1}{old}  {method:<11}  {verdict}{end}"), COLUMNS));
    }
    let more = timing.paths.len().saturating_sub(SHOWN_PATHS);
    if more > 0 {
        let _ = writeln!(out, "   {}: see --json", count(more as u64, "more path"));
    }
}

fn verdicts(out: &mut String, report: &Report) {
    let verdicts = &report.verdicts;
    if verdicts.is_empty() {
        return;
    }
    let name = verdicts.iter().map(|one| one.verdict.chars().count()).max().unwrap_or_default();
    // One column needs no title.
    let is_compared = report.against.is_some();
    let titles = if is_compared { ["", "NEW", "OLD"] } else { [""; 3] };
    let new = column(titles[1], verdicts, |one| one.packets);
    let old = column(titles[2], verdicts, |one| one.against.unwrap_or_default());
    let names = once(titles[0]).chain(verdicts.iter().map(|one| one.verdict.as_str()));
    for (row, verdict) in names.enumerate().skip(usize::from(!is_compared)) {
        let old = if is_compared { &old[row] } else { "" };
        let _ = writeln!(out, "{verdict:<name$}{}{old}", new[row]);
    }
    out.push('\n');
}

/// Returns the cells of a column of numbers below its title, all of the same width.
fn column(title: &str, verdicts: &[VerdictCount], packets: impl Fn(&VerdictCount) -> u64) -> Vec<String> {
    let cells: Vec<String> =
        once(title.to_owned()).chain(verdicts.iter().map(|one| packets(one).to_string())).collect();
    let width = cells.iter().map(String::len).max().unwrap_or_default() + 2;
    cells.iter().map(|cell| format!("{cell:>width$}")).collect()
}

fn group(out: &mut String, number: usize, group: &Group) {
    let difference = wording::difference(group);
    let packets = count(group.packets, "packet");
    let example = &group.example;
    if let Some(rule) = &group.allowed {
        let _ = writeln!(out, "{number}. {difference} (allowed: {rule}): {packets}");
        return;
    }
    let Example { number: packet, file, .. } = example;
    let _ = writeln!(out, "{number}. {difference}: {packets}, for example packet {packet} of {file}");
    let places = wording::lines(group).into_iter().map(|(side, line)| {
        let file = line.file.rsplit('/').next().unwrap_or_default();
        (format!("{side} {file}:{}", line.line), one_line(&line.text))
    });
    let places: Vec<(String, String)> = places.collect();
    let width = places.iter().map(|(place, _)| place.chars().count()).max().unwrap_or_default();
    for (place, source) in &places {
        let _ = writeln!(out, "{}", cut(format!("   {place:<width$}  {source}").trim_end(), COLUMNS));
    }
    let _ = writeln!(out, "{}", cut(&format!("   {}", wording::example(example)), COLUMNS));
    if let Some(doubt) = wording::doubt(example) {
        let _ = writeln!(out, "   {doubt}");
    }
}

fn sentences(report: &Report) -> Vec<String> {
    let maps = report.maps.iter().map(|map| cut(&wording::map(map), COLUMNS));
    let coverage = report.coverage.as_ref().map(|coverage| {
        let blocks = wording::share(coverage.blocks, "blocks");
        let edges = wording::share(coverage.edges, "edges");
        let lines = wording::share(coverage.lines, "lines");
        format!("coverage: {blocks}, {edges}, {lines} ({})", wording::percent(coverage.lines))
    });
    let left_out = report.files.iter().flat_map(|file| {
        file.left_out.iter().map(|left_out| format!("note: {}", wording::left_out(&file.name, left_out)))
    });
    let fuzzing = report.fuzzing.iter().flat_map(wording::fuzzing);
    maps.chain(wording::agreement(report).map(str::to_owned))
        .chain(report.recorded.map(wording::recorded))
        .chain(coverage)
        .chain(fuzzing)
        .chain(left_out)
        .chain(report.notes.iter().map(|note| format!("note: {note}")))
        .collect()
}

/// Returns source text without indentation and with single spaces.
fn one_line(source: &str) -> String {
    source.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Recorded, Tested};
    use crate::sample;

    #[test]
    fn result_fits_on_a_terminal() {
        let expected = "\
xdp_filter of new.o, against old.o: 12345 packets

        NEW    OLD
PASS  11000  10991
DROP   1345   1354

1. DROP becomes PASS: 9 packets, for example packet 123 of yesterday.pcapng
   new filter.c:88  if (rule && rule->action == ALLOW && rule->ports[0] <= port…
   old filter.c:86  return XDP_DROP;
   smallest packet, 45 bytes: 000102030405060708090a0b0c0d0e0f10111213141516171…
2. TX, bytes 30 to 31 differ (allowed: tx>tx where udp): 4 packets
map ports: 2 entries differ, for example key 0035: 01 becomes 00
recorded verdicts: 6980 of 6982 reproduced
coverage: 3 of 5 blocks, 4 of 7 edges, 3 of 4 lines (75 %)
fuzzing: 11220000 runs in 60.0 s (187000 a second), 12 new blocks, 5021 paths, a corpus of 5000 packets
fuzzing: 40 runs with a difference
note: 3 runs of fuzzing with a difference not shown: packets alone did not show it again
fuzzing: 2 runs with ABORTED or an unknown verdict: smallest packet, 14 bytes: 0000000000000000000000000000
note: 12 packets of yesterday.pcapng not run: cut when they were recorded
note: timers ran by the real clock
time: 105.2 ns a packet, the other program 94.1 ns (+11.8 %, noise 1.2 ns), without 45 packets
   packets   new ns   old ns  method       end of the path
     12000    106.0     94.5  repeated     PASS filter.c:86 return XDP_DROP;
       300     73.2     78.1  single runs  DROP
missed: line coverage is 75 %, below 80 %
";
        assert_eq!(text(&sample::report()), expected);
    }

    #[test]
    fn agreement_is_stated() {
        let verdict = |verdict: &str, packets| VerdictCount { verdict: verdict.into(), packets, against: None };
        let report = Report {
            program: Tested { name: "filter".into(), source: "new.o".into(), instructions: 2, tag: None },
            packets: 3,
            verdicts: vec![verdict("PASS", 2), verdict("REDIRECT", 1)],
            recorded: Some(Recorded { packets: 3, reproduced: 3 }),
            ..Report::default()
        };
        let expected = "filter of new.o: 3 packets\n\nPASS      2\nREDIRECT  1\n\nno difference\n\
             recorded verdicts: 3 of 3 reproduced\n";
        assert_eq!(text(&report), expected);
    }
}
