//! The result as one page of HTML that loads nothing else and needs no script: a summary, then the source with its
//! coverage.

use std::fmt::Write as _;

use crate::report::{Coverage, Group, LineCoverage, Report, Share, SourceCoverage, Timing};
use crate::wording::{self, count, escape};

const STYLE: &str = include_str!("page.css");

/// Returns the whole page.
pub fn page(report: &Report) -> String {
    let title = escape(&wording::heading(report));
    let mut body = String::new();
    head(&mut body, report);
    verdicts(&mut body, report);
    differences(&mut body, report);
    files(&mut body, report);
    if let Some(fuzzing) = &report.fuzzing {
        body.push_str("<h2>Fuzzing</h2>\n");
        wording::fuzzing(fuzzing).iter().for_each(|sentence| paragraph(&mut body, &capitalised(sentence)));
    }
    if let Some(timing) = &report.timing {
        times(&mut body, timing);
    }
    if let Some(coverage) = &report.coverage {
        summary(&mut body, coverage);
        for (number, file) in coverage.files.iter().enumerate() {
            source(&mut body, number, file);
        }
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"icon\" href=\"data:,\">\
         <title>{title}</title>\n<style>{STYLE}</style></head>\n<body>{body}</body></html>\n"
    )
}

fn head(body: &mut String, report: &Report) {
    let _ = write!(body, "<h1>{}</h1>\n<p>", escape(&wording::heading(report)));
    for tested in std::iter::once(&report.program).chain(&report.against) {
        let instructions = count(tested.instructions as u64, "instruction");
        let _ = writeln!(body, "{} of {}: {instructions}.", escape(&tested.name), escape(&tested.source));
    }
    body.push_str("</p>\n");
    list(body, "missed", report.missed.iter().map(|missed| format!("Missed: {missed}")));
}

fn verdicts(body: &mut String, report: &Report) {
    body.push_str("<h2>Verdicts</h2>\n");
    let is_compared = report.against.is_some();
    let columns: &[&str] = if is_compared { &["Verdict", "New", "Old"] } else { &["Verdict", "Packets"] };
    let rows = report.verdicts.iter().map(|one| {
        let old = is_compared.then(|| one.against.unwrap_or_default().to_string());
        (escape(&one.verdict), std::iter::once(one.packets.to_string()).chain(old).collect())
    });
    table(body, columns, rows);
    if let Some(recorded) = report.recorded {
        paragraph(body, &capitalised(&wording::recorded(recorded)));
    }
}

fn differences(body: &mut String, report: &Report) {
    body.push_str("<h2>Differences</h2>\n");
    if let Some(agreement) = wording::agreement(report) {
        paragraph(body, &capitalised(agreement));
    }
    for (number, one) in report.groups.iter().enumerate() {
        group(body, number + 1, one);
    }
    list(body, "maps", report.maps.iter().map(|map| capitalised(&wording::map(map))));
}

fn group(body: &mut String, number: usize, group: &Group) {
    let difference = escape(&wording::difference(group));
    let _ = writeln!(body, "<h3>{number}. {difference}: {}</h3>", count(group.packets, "packet"));
    if let Some(rule) = &group.allowed {
        paragraph(body, &format!("Allowed: {rule}"));
    }
    let mut lines = String::new();
    for (side, line) in wording::lines(group) {
        let _ = writeln!(lines, "{side} {}:{}\n      {}", line.file, line.line, line.text.trim());
    }
    let example = &group.example;
    let text = format!("{lines}packet {} of {}\n{}", example.number, example.file, wording::example(example));
    let _ = writeln!(body, "<pre>{}</pre>", escape(&text));
    if let Some(doubt) = wording::doubt(example) {
        paragraph(body, &capitalised(doubt));
    }
}

fn files(body: &mut String, report: &Report) {
    body.push_str("<h2>Packets</h2>\n");
    let rows = report.files.iter().map(|file| {
        let left_out: u64 = file.left_out.iter().map(|one| one.packets).sum();
        (escape(&file.name), [file.packets, left_out, file.differing].map(|number| number.to_string()).to_vec())
    });
    table(body, &["File", "Packets", "Not run", "Different"], rows);
    let left_out =
        report.files.iter().flat_map(|file| file.left_out.iter().map(|one| wording::left_out(&file.name, one)));
    list(body, "notes", left_out.chain(report.notes.iter().cloned()));
}

fn times(body: &mut String, timing: &Timing) {
    body.push_str("<h2>Time</h2>\n");
    paragraph(body, &capitalised(&wording::timing(timing)));
    let is_compared = timing.against_ns.is_some();
    let columns: &[&str] =
        if is_compared { &["Path", "Packets", "New, ns", "Old, ns"] } else { &["Path", "Packets", "ns"] };
    let rows = timing.paths.iter().map(|path| {
        let line = path.line.as_ref().map_or(String::new(), |line| format!(" at {}:{}", line.file, line.line));
        let name = format!("{}{line}, {}", path.verdict, wording::method(path.method));
        let times = std::iter::once(path.ns).chain(path.against_ns).map(|ns| format!("{ns:.1}"));
        (escape(&name), std::iter::once(path.packets.to_string()).chain(times).collect())
    });
    table(body, columns, rows);
}

fn summary(body: &mut String, coverage: &Coverage) {
    body.push_str("<h2>Coverage</h2>\n");
    table(
        body,
        &["Part", "Reached", "Of", "Share"],
        [("Blocks", coverage.blocks), ("Edges", coverage.edges), ("Lines", coverage.lines)]
            .map(|(name, share)| (name.to_owned(), shares(share)))
            .into_iter(),
    );
    body.push_str("<h3>Functions</h3>\n");
    let rows = coverage.functions.iter().map(|function| {
        let parts = [function.blocks, function.edges].into_iter().flat_map(shares);
        let cells = std::iter::once(function.packets.to_string()).chain(parts);
        (format!("<code>{}</code>", escape(&function.name)), cells.collect())
    });
    let columns = ["Function", "Packets", "Blocks reached", "Of", "Share", "Edges reached", "Of", "Share"];
    table(body, &columns, rows);
    if coverage.files.is_empty() {
        paragraph(body, "The object has no line information: compile it with -g.");
        return;
    }
    body.push_str("<h3>Source files</h3>\n");
    let rows = coverage.files.iter().enumerate().map(|(number, file)| {
        let reached = file.lines.iter().filter(|line| line.packets > 0).count() as u64;
        let share = Share { reached, total: file.lines.len() as u64 };
        (format!("<a href=\"#file-{number}\">{}</a>", escape(&file.name)), shares(share))
    });
    table(body, &["File", "Lines reached", "Of", "Share"], rows);
    let _ = write!(body, "<p class=\"key\">Marks of lines:");
    for reach in [Reach::Full, Reach::Part, Reach::None] {
        let _ = write!(body, " <span class=\"{}\">{} {}</span>", reach.class(), reach.mark(), reach.meaning());
    }
    body.push_str("</p>\n");
}

fn shares(share: Share) -> Vec<String> {
    vec![share.reached.to_string(), share.total.to_string(), wording::percent(share)]
}

fn source(body: &mut String, number: usize, file: &SourceCoverage) {
    let name = escape(&file.name);
    let _ = writeln!(
        body,
        "<h3 id=\"file-{number}\">{name}</h3>\n<table class=\"code\"><thead><tr><th scope=\"col\">Line</th>\
         <th scope=\"col\">Packets</th><th scope=\"col\">Branches</th><th scope=\"col\">Mark</th>\
         <th scope=\"col\">Source</th></tr></thead><tbody>"
    );
    let mut expected = file.lines.first().map_or(0, |line| line.line);
    for line in &file.lines {
        source_line(body, line, line.line != expected);
        expected = line.line + 1;
    }
    body.push_str("</tbody></table>\n");
}

/// Writes a line of source. A dashed line above it stands for lines without instructions.
fn source_line(body: &mut String, line: &LineCoverage, is_after_gap: bool) {
    let reach = Reach::of(line);
    let gap = if is_after_gap { " gap" } else { "" };
    let blocks = match (reach, line.blocks) {
        (Reach::Part, Share { reached, total }) if reached < total => format!(" {reached}/{total}"),
        _ => String::new(),
    };
    let ways = line.ways();
    let ways = if ways.total == 0 { String::new() } else { format!("{}/{}", ways.reached, ways.total) };
    let _ = writeln!(
        body,
        "<tr class=\"{}{gap}\"><th scope=\"row\">{}</th><td>{}</td><td>{ways}</td><td>{}{blocks}</td><td>{}</td></tr>",
        reach.class(),
        line.line,
        line.packets,
        reach.mark(),
        escape(line.text.trim_end())
    );
}

/// The part of a line's instructions that packets reached.
#[derive(Clone, Copy)]
enum Reach {
    Full,
    Part,
    None,
}

impl Reach {
    fn of(line: &LineCoverage) -> Self {
        match line {
            LineCoverage { packets: 0, .. } => Self::None,
            LineCoverage { blocks, .. } if blocks.reached < blocks.total => Self::Part,
            _ if line.ways().reached < line.ways().total => Self::Part,
            _ => Self::Full,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Part => "part",
            Self::None => "none",
        }
    }

    /// Returns a mark that shows the same as the colour.
    fn mark(self) -> &'static str {
        match self {
            Self::Full => "✓",
            Self::Part => "~",
            Self::None => "✗",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Full => "reached",
            Self::Part => "reached in part, with blocks reached/all; branches: ways taken/all",
            Self::None => "not reached",
        }
    }
}

/// Writes a table whose first column has names, as HTML, and whose other columns have numbers.
fn table(body: &mut String, columns: &[&str], rows: impl Iterator<Item = (String, Vec<String>)>) {
    body.push_str("<table><thead><tr>");
    for column in columns {
        let _ = write!(body, "<th scope=\"col\">{column}</th>");
    }
    body.push_str("</tr></thead><tbody>\n");
    for (name, numbers) in rows {
        let _ = write!(body, "<tr><th scope=\"row\">{name}</th>");
        for number in numbers {
            let _ = write!(body, "<td>{number}</td>");
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table>\n");
}

fn list(body: &mut String, class: &str, items: impl Iterator<Item = String>) {
    let items: String = items.map(|item| format!("<li>{}</li>\n", escape(&item))).collect();
    if !items.is_empty() {
        let _ = writeln!(body, "<ul class=\"{class}\">\n{items}</ul>");
    }
}

fn paragraph(body: &mut String, text: &str) {
    let _ = writeln!(body, "<p>{}</p>", escape(text));
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Tested;
    use crate::sample;

    #[test]
    fn page_has_each_part_of_the_result() {
        let page = page(&sample::report());
        sample::assert_is_balanced(&page);
        for part in [
            "<title>xdp_filter of new.o, against old.o: 12345 packets</title>",
            "<th scope=\"row\">PASS</th><td>11000</td><td>10991</td>",
            "<p>Recorded verdicts: 6980 of 6982 reproduced</p>",
            "<h3>1. DROP becomes PASS: 9 packets</h3>",
            "<p>Allowed: tx&gt;tx where udp</p>",
            "<li>Map ports: 2 entries differ, for example key 0035: 01 becomes 00</li>",
            "<th scope=\"row\">yesterday.pcapng</th><td>12000</td><td>12</td><td>9</td>",
            "<li>timers ran by the real clock</li>",
            "<li>Missed: line coverage is 75 %, below 80 %</li>",
            "<p>Fuzzing: 40 runs with a difference</p>",
            "<th scope=\"row\">PASS at /src/filter.c:86, repeated</th><td>12000</td><td>106.0</td><td>94.5</td>",
            "<code>xdp_filter</code></th><td>12345</td><td>3</td><td>4</td><td>75 %</td><td>4</td><td>6</td><td>66 %</td>",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }

    #[test]
    fn lines_have_marks_as_well_as_colours() {
        let page = page(&sample::report());
        assert!(page.contains("<tr class=\"none\"><th scope=\"row\">21</th><td>0</td><td>0/2</td><td>✗</td>"));
        assert!(page.contains("<td>\tbpf_printk(&quot;&lt;dropped&gt;&quot;);</td>"));
        assert!(page.contains("<tr class=\"full gap\"><th scope=\"row\">81</th><td>12345</td><td>1/1</td><td>✓</td>"));
        assert!(page.contains("<tr class=\"part gap\"><th scope=\"row\">88</th><td>9</td><td>3/4</td><td>~ 1/2</td>"));
        assert!(page.contains("<tr class=\"full\"><th scope=\"row\">7</th>"));
    }

    #[test]
    fn page_loads_nothing_from_elsewhere() {
        let page = page(&sample::report());
        for foreign in ["src=", "@import", "url(", "http", "<script"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn foreign_text_is_not_markup() {
        let program = Tested { name: "<b>\"&".into(), source: "</title>".into(), ..Tested::default() };
        let page = page(&Report { program, ..Report::default() });
        sample::assert_is_balanced(&page);
        assert!(page.contains("<h1>&lt;b&gt;&quot;&amp; of &lt;/title&gt;: 0 packets</h1>"));
    }
}
