//! The result as JUnit XML, which CI systems read: a case for each file, group, difference of a map, and missed limit.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::report::{FileReport, Group, Report};
use crate::wording::{self, count, escape};

struct Case {
    name: String,
    failure: Option<Failure>,
    /// Text for people that is no failure.
    output: String,
}

struct Failure {
    message: String,
    text: String,
}

/// Returns the document, with one suite.
pub fn junit(report: &Report) -> String {
    let cases = cases(report);
    let failures = cases.iter().filter(|case| case.failure.is_some()).count();
    let counts = format!("tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"0\"", cases.len());
    let program = escape(&report.program.name);
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n\
         <testsuite name=\"trawl xdp test {program}\" {counts}>\n"
    );
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for case in &cases {
        let used = uses.entry(&case.name).or_default();
        *used += 1;
        write_case(&mut out, &program, case, *used);
    }
    output(&mut out, &summary(report));
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

/// Writes a case. Those with the same name are numbered, because GitLab keeps one case of each name.
fn write_case(out: &mut String, program: &str, case: &Case, used: usize) {
    let number = if used > 1 { format!(" ({used})") } else { String::new() };
    let name = escape(&case.name);
    let _ = writeln!(out, "<testcase classname=\"{program}\" name=\"{name}{number}\">");
    if let Some(Failure { message, text }) = &case.failure {
        let _ = writeln!(out, "<failure message=\"{}\">{}</failure>", escape(message), escape(text));
    }
    output(out, &case.output);
    out.push_str("</testcase>\n");
}

fn output(out: &mut String, text: &str) {
    if !text.is_empty() {
        let _ = writeln!(out, "<system-out>{}</system-out>", escape(text));
    }
}

fn summary(report: &Report) -> String {
    let recorded = report.recorded.map(wording::recorded);
    let notes = report.notes.iter().map(|note| format!("note: {note}"));
    let lines = std::iter::once(wording::heading(report)).chain(recorded).chain(notes);
    lines.collect::<Vec<_>>().join("\n")
}

fn cases(report: &Report) -> Vec<Case> {
    let files = report.files.iter().map(|file| file_case(report, file));
    let groups = report.groups.iter().map(group_case);
    let maps = report.maps.iter().map(|map| failed(format!("map {}", map.name), wording::map(map)));
    let missed = report.missed.iter().map(|missed| failed(missed.clone(), missed.clone()));
    files.chain(groups).chain(maps).chain(missed).collect()
}

fn failed(name: String, message: String) -> Case {
    Case { name, failure: Some(Failure { text: message.clone(), message }), output: String::new() }
}

fn file_case(report: &Report, file: &FileReport) -> Case {
    let failure = (file.differing > 0).then(|| {
        let groups = report.groups.iter().filter(|group| group.allowed.is_none());
        let groups: String = groups
            .map(|group| format!("\n{}: {}", wording::difference(group), count(group.packets, "packet")))
            .collect();
        let verb = if file.differing == 1 { "differs" } else { "differ" };
        let message = format!("{} of {} {verb}", file.differing, count(file.packets, "packet"));
        Failure { text: format!("{message}. Differences in all files:{groups}"), message }
    });
    let left_out: Vec<String> = file.left_out.iter().map(|one| wording::left_out(&file.name, one)).collect();
    Case { name: file.name.clone(), failure, output: left_out.join("\n") }
}

fn group_case(group: &Group) -> Case {
    let name = wording::difference(group);
    let description = description(group);
    match &group.allowed {
        None => {
            let message = format!("{name}: {}", count(group.packets, "packet"));
            Case { name, failure: Some(Failure { message, text: description }), output: String::new() }
        }
        Some(rule) => Case { name, failure: None, output: format!("allowed: {rule}\n{description}") },
    }
}

fn description(group: &Group) -> String {
    let mut text = String::new();
    for (side, line) in wording::lines(group) {
        let _ = writeln!(text, "{side} {}:{}: {}", line.file, line.line, line.text.trim());
    }
    let example = &group.example;
    let _ = write!(text, "packet {} of {}\n{}", example.number, example.file, wording::example(example));
    if let Some(doubt) = wording::doubt(example) {
        let _ = write!(text, "\n{doubt}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Tested;
    use crate::sample;

    #[test]
    fn each_file_group_map_and_limit_is_a_case() {
        let document = junit(&sample::report());
        sample::assert_is_balanced(&document);
        assert!(document.contains("<testsuite name=\"trawl xdp test xdp_filter\" tests=\"6\" failures=\"4\""));
        assert_eq!(document.matches("<testcase classname=\"xdp_filter\"").count(), 6);
        assert_eq!(document.matches("<failure ").count(), 4);
        assert!(document.contains("name=\"a&amp;b &lt;1&gt;.pcap\""));
        assert!(document.contains("message=\"9 of 12000 packets differ\""));
        assert!(document.contains("\nDROP becomes PASS: 9 packets</failure>"));
        assert!(document.contains("<system-out>12 packets of yesterday.pcapng not run: cut when they were recorded<"));
    }

    #[test]
    fn failure_of_a_group_has_lines_and_bytes() {
        let document = junit(&sample::report());
        let (_, failure) = document.split_once("name=\"DROP becomes PASS\">").unwrap();
        assert!(failure.contains("new /src/filter.c:88: if (rule &amp;&amp; rule-&gt;action == ALLOW"));
        assert!(failure.contains("\nold /src/filter.c:86: return XDP_DROP;\npacket 123 of yesterday.pcapng\n"));
        assert!(failure.contains("\nsmallest packet, 45 bytes: 000102"));
    }

    #[test]
    fn allowed_group_passes() {
        let document = junit(&sample::report());
        let (_, case) = document.split_once("name=\"TX, bytes 30 to 31 differ\">\n").unwrap();
        assert!(case.starts_with("<system-out>allowed: tx&gt;tx where udp\n"), "{case}");
    }

    #[test]
    fn names_are_unique() {
        let groups = vec![sample::group(), sample::group()];
        let document = junit(&Report { groups, ..Report::default() });
        assert!(document.contains("name=\"DROP becomes PASS\""));
        assert!(document.contains("name=\"DROP becomes PASS (2)\""));
    }

    #[test]
    fn forbidden_characters_do_not_get_into_the_document() {
        let program = Tested { name: "a\"<\0\u{1b}>".into(), ..Tested::default() };
        let document = junit(&Report { program, ..Report::default() });
        sample::assert_is_balanced(&document);
        assert!(document.contains(r#"name="trawl xdp test a&quot;&lt;\u0000\u001b&gt;" tests="0" failures="0""#));
        assert!(!document.contains(|letter: char| letter.is_control() && letter != '\n'));
    }
}
