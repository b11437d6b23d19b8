//! The report as Markdown: the summary, and a table for each experiment.

use std::fmt::Write as _;

use super::Source;
use super::table::{figure, interval, rows};

pub fn markdown(sources: &[Source]) -> String {
    let mut text = String::from("# trawl bench\n");
    for source in sources {
        let conditions = &source.report.conditions;
        let _ = writeln!(
            text,
            "\n{}: {}, {} CPUs, {}, {} ({})\n",
            source.name,
            conditions.cpu,
            conditions.cpus,
            conditions.kernel,
            conditions.driver,
            source.report.request.profile.name()
        );
        text.push_str("| experiment | the study found | this machine shows | shape agrees | |\n|---|---|---|---|---|\n");
        for one in &source.report.experiments {
            let cells = [
                &one.definition.name,
                &one.definition.found,
                &one.finding.shows,
                &one.finding.agrees.text().to_owned(),
                &one.finding.sentence,
            ];
            let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        for one in &source.report.experiments {
            let definition = &one.definition;
            let _ = writeln!(
                text,
                "\n## {}\n\n{}\n",
                definition.name, definition.question
            );
            let mut head = vec![
                "series".to_owned(),
                format!("{} {}", definition.x.label, definition.x.unit),
            ];
            head.extend(
                definition
                    .metrics
                    .iter()
                    .map(|metric| format!("{} {}", metric.label, metric.unit)),
            );
            head.extend(["sent", "recorded", "lost"].map(str::to_owned));
            let _ = writeln!(
                text,
                "| {} |\n|{}",
                head.join(" | "),
                "---|".repeat(head.len())
            );
            for row in rows(one) {
                let number = |value: Option<f64>| value.map_or(String::new(), figure);
                let mut cells = vec![escaped(&row.series), figure(row.x)];
                cells.extend(
                    row.values
                        .iter()
                        .map(|value| value.as_ref().map_or(String::new(), interval)),
                );
                cells.extend([number(row.sent), number(row.recorded), number(row.lost)]);
                let _ = writeln!(text, "| {} |", cells.join(" | "));
            }
            for failure in &one.failures {
                let _ = writeln!(
                    text,
                    "\n- {}: {}",
                    failure.series,
                    escaped(&failure.message)
                );
            }
            let _ = writeln!(text, "\n`{}`", one.command);
        }
        text.push_str("\n## Where trawl is behind a peer\n\n");
        let found = super::behind(&source.report.experiments);
        if found.is_empty() {
            text.push_str("Nowhere by more than the spread.\n");
        }
        for (name, places) in found {
            let _ = writeln!(text, "- {name}: {}", escaped(&places));
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
