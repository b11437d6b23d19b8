//! The page: summary first, then a section for each experiment. Text and tables are in the HTML itself, so that it can
//! be read without a script; the script draws the plots.

use std::fmt::Write as _;

use super::plot::{Dot, Line, Palette, Plot, plot};
use super::tables::{figure, interval, rows};
use super::{Source, behind, changes};
use crate::model::{Agreement, Experiment, PeerState, Report};

const UPLOT: &str = include_str!("vendor/uPlot.js");
const UPLOT_CSS: &str = include_str!("vendor/uPlot.css");
const UPLOT_LICENSE: &str = include_str!("vendor/LICENSE.uPlot");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// Returns the whole page. With `compare`, the others are compared with the first source. A page of a run in progress
/// reloads itself.
pub fn page(sources: &[Source], compare: bool, is_live: bool) -> String {
    let mut body = String::new();
    let mut plots = Vec::new();
    let palette = Palette::of(sources);
    let _ = write!(body, "<h1>trawl compared with the published studies</h1>");
    for source in sources {
        head(&mut body, source);
    }
    body.push_str("<main><h2 id=\"summary\">Results</h2>");
    for source in sources {
        summary(&mut body, source, sources.len() > 1);
    }
    if compare && let Some((first, rest)) = sources.split_first() {
        for other in rest {
            comparison(&mut body, first, other);
        }
    }
    for (number, source) in sources.iter().enumerate() {
        for experiment in &source.report.experiments {
            section(
                &mut body,
                experiment,
                source,
                number,
                sources.len() > 1,
                &palette,
                &mut plots,
            );
        }
    }
    body.push_str("<h2 id=\"behind\">Where trawl is behind a peer</h2>");
    for source in sources {
        closing_note(&mut body, source);
    }
    body.push_str("<h2 id=\"peers\">Peers</h2>");
    for source in sources {
        peers(&mut body, &source.report);
    }
    let _ = write!(
        body,
        "</main><footer><details><summary>Licence of uPlot, which draws the plots</summary><pre>{}</pre></details></footer>",
        escape(UPLOT_LICENSE)
    );
    // A "<" in a string could end the script's element.
    let data = serde_json::to_string(&plots)
        .unwrap_or_default()
        .replace('<', "\\u003c");
    let refresh = if is_live {
        "<meta http-equiv=\"refresh\" content=\"3\">"
    } else {
        ""
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">{refresh}\
         <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"icon\" href=\"data:,\">\
         <title>trawl compared with the published studies</title>\
         <style>{UPLOT_CSS}{STYLE}</style></head><body>{body}\
         <script type=\"application/json\" id=\"data\">{data}</script><script>{UPLOT}</script><script>{SCRIPT}</script></body></html>\n"
    )
}

fn head(body: &mut String, source: &Source) {
    let report = &source.report;
    let c = &report.conditions;
    let state = if report.complete {
        ""
    } else {
        " <strong class=\"no\">This run is not complete.</strong>"
    };
    let disturbed: usize = report
        .experiments
        .iter()
        .map(Experiment::disturbed_runs)
        .sum();
    if disturbed > 0 {
        let runs: usize = report.experiments.iter().map(|one| one.runs.len()).sum();
        let _ = write!(
            body,
            "<p class=\"banner\">{disturbed} of {runs} runs were disturbed: other work took CPU time from them. Their experiments \
             are marked; run these again on a quiet machine.</p>"
        );
    }
    let mitigations: Vec<String> = c
        .mitigations
        .iter()
        .map(|(name, state)| format!("{name}: {state}"))
        .collect();
    let _ = write!(
        body,
        "<p><strong>{}</strong>: {} ({} CPUs{}, {:.0} GB), {}, clock {}, {}, {} queues, load {} before the first run; \
         trawl {}, profile {}. XDP: {}. trawl's ring: {}.{state}</p><details><summary>Mitigations of the CPU</summary><p>{}</p></details>",
        escape(&source.name),
        escape(&c.cpu),
        c.cpus,
        if c.hypervisor {
            ", a virtual machine"
        } else {
            ""
        },
        c.memory_bytes as f64 / 1e9,
        escape(&c.kernel),
        escape(&c.clock_source),
        escape(&c.driver),
        c.queues,
        escape(&c.load_average),
        escape(&report.trawl),
        report.request.profile.name(),
        escape(&c.xdp_mode),
        escape(&c.trawl_ring),
        escape(&mitigations.join("; "))
    );
}

fn summary(body: &mut String, source: &Source, is_named: bool) {
    if is_named {
        let _ = write!(body, "<h3>{}</h3>", escape(&source.name));
    }
    body.push_str(
        "<div class=\"wide\"><table class=\"summary\"><thead><tr><th scope=\"col\">Experiment</th><th scope=\"col\">The study found</th>\
         <th scope=\"col\">This machine shows</th><th scope=\"col\">Shape agrees</th><th scope=\"col\">Summary</th></tr></thead><tbody>",
    );
    for one in &source.report.experiments {
        let _ = write!(
            body,
            "<tr><th scope=\"row\"><a href=\"#{0}\">{0}</a></th><td data-head=\"The study found\">{1}</td>\
             <td data-head=\"This machine shows\">{2}</td><td data-head=\"Shape agrees\">{3}</td><td>{4}</td></tr>",
            escape(&one.definition.name),
            escape(&one.definition.found),
            escape(&one.finding.shows),
            agreement(one),
            escape(&one.finding.sentence)
        );
    }
    body.push_str("</tbody></table></div>");
}

/// Returns whether the shapes agree, as a word in its colour; a disturbed run proves nothing.
fn agreement(one: &Experiment) -> String {
    let agrees = one.finding.agrees;
    let (class, note) = match one.disturbed_runs() {
        0 => (agrees.class(), ""),
        _ if agrees == Agreement::NotMeasured => (agrees.class(), ""),
        _ => (Agreement::Partly.class(), ", in a disturbed run"),
    };
    format!("<span class=\"{class}\">{}{note}</span>", agrees.text())
}

fn comparison(body: &mut String, first: &Source, other: &Source) {
    let _ = write!(
        body,
        "<h2 id=\"compare\">{} compared with {}</h2><p>Marked: the intervals have nothing in common.</p>\
         <div class=\"wide\"><table class=\"compare\"><thead><tr><th>Experiment</th><th>Series</th><th>At</th><th>Figure</th><th>Before</th>\
         <th>After</th><th>Change</th></tr></thead><tbody>",
        escape(&other.name),
        escape(&first.name)
    );
    for one in changes(first, other) {
        let _ = write!(
            body,
            "<tr{}><td>{}</td><td>{}</td><td class=\"number\">{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td></tr>",
            if one.is_marked {
                " class=\"changed\""
            } else {
                ""
            },
            escape(&one.experiment),
            escape(&one.series),
            figure(one.x),
            escape(&one.metric),
            interval(&one.before),
            interval(&one.after),
            if one.is_marked {
                format!("<strong>{:+.1} %</strong>", one.percent())
            } else {
                format!("{:+.1} %", one.percent())
            }
        );
    }
    body.push_str("</tbody></table></div>");
}

fn section(
    body: &mut String,
    one: &Experiment,
    source: &Source,
    number: usize,
    is_named: bool,
    palette: &Palette,
    plots: &mut Vec<Plot>,
) {
    let definition = &one.definition;
    let id = if number == 0 {
        definition.name.clone()
    } else {
        format!("{}-{number}", definition.name)
    };
    let whose = if is_named {
        format!(" ({})", source.name)
    } else {
        String::new()
    };
    let _ = write!(
        body,
        "<section aria-labelledby=\"{id}\"><h2 id=\"{id}\">{}{}</h2><p class=\"soft\">{} (study {}, {})</p><p>{}</p><h3>Set-up</h3>\
         <ol class=\"setup\" aria-label=\"the stations of a packet's way\">",
        escape(&definition.name),
        escape(&whose),
        escape(&definition.title),
        escape(&definition.study),
        escape(&definition.reference),
        escape(&definition.question)
    );
    for station in &definition.setup {
        let _ = write!(body, "<li>{}</li>", escape(station));
    }
    body.push_str("</ol>");
    let disturbed = one.disturbed_runs();
    if disturbed > 0 {
        let why = one.runs.iter().find_map(|run| run.disturbed.as_deref());
        let _ = write!(
            body,
            "<p class=\"banner\">{disturbed} of {} runs were disturbed, one of them by this: {}. The figures prove nothing.</p>",
            one.runs.len(),
            escape(why.unwrap_or_default())
        );
    }
    let _ = write!(
        body,
        "<p><strong>Shape agrees: {}.</strong> {}</p>",
        agreement(one),
        escape(&one.finding.sentence)
    );
    let mut shown: Vec<(String, Plot)> = Vec::new();
    for metric in &definition.metrics {
        let id = format!("plot-{id}-{}", metric.name);
        let plot = plot(one, &metric.name, id, palette);
        if plot.series.is_empty() {
            continue;
        }
        let _ = write!(body, "<h3>{} by {}</h3>", escape(&plot.y), escape(&plot.x));
        if let Some((same, _)) = shown.iter().find(|(_, before)| plot.is_same_as(before)) {
            let _ = write!(
                body,
                "<p>All values equal the ones of \u{201c}{}\u{201d}.</p>",
                escape(same)
            );
            continue;
        }
        if plot.is_bars() {
            bars(body, &plot);
        } else {
            let _ = write!(
                body,
                "<div class=\"plot\" id=\"{}\" role=\"group\" aria-label=\"{} by {}; the figures are in the table below\">\
                 <div class=\"buttons\"><button type=\"button\" class=\"x\">logarithmic x axis</button>\
                 <button type=\"button\" class=\"y\">logarithmic y axis</button></div></div>",
                plot.id,
                escape(&metric.label),
                escape(&definition.x.label)
            );
        }
        shown.push((metric.label.clone(), plot));
    }
    let drawn = shown.into_iter().map(|(_, plot)| plot);
    plots.extend(drawn.filter(|plot| !plot.is_bars()));
    failures(body, one);
    figures(body, one);
    parameters(body, one);
    body.push_str("</section>");
}

/// Draws a bar for each series of a plot with one x value.
fn bars(body: &mut String, plot: &Plot) {
    let most = plot.most().max(f64::MIN_POSITIVE);
    body.push_str("<table class=\"bars\"><tbody>");
    for (line, is_published) in plot.lines() {
        for dot in &line.points {
            bar(body, line, is_published, dot, most);
        }
    }
    body.push_str("</tbody></table>");
}

fn bar(body: &mut String, line: &Line, is_published: bool, dot: &Dot, most: f64) {
    let (red, green, blue) = line.colour;
    let range = match (dot.low, dot.high) {
        (Some(low), Some(high)) if low < high => {
            format!(" ({} to {})", figure(low), figure(high))
        }
        _ => String::new(),
    };
    let (kind, note) = match is_published {
        true => ("bar hollow", " (published)"),
        false => ("bar", ""),
    };
    let _ = write!(
        body,
        "<tr><th scope=\"row\">{}{note}</th><td><div class=\"{kind}\" style=\"width:{:.1}%;--colour:rgb({red},{green},{blue})\"></div></td>\
         <td class=\"number\">{}{range}</td></tr>",
        escape(&line.name),
        dot.y / most * 100.0,
        figure(dot.y)
    );
}

fn failures(body: &mut String, one: &Experiment) {
    if one.failures.is_empty() {
        return;
    }
    body.push_str("<h3>Not measured</h3><ul>");
    for failure in &one.failures {
        let why = if failure.expected {
            "not on this host"
        } else {
            "failed"
        };
        let _ = write!(
            body,
            "<li><strong>{}</strong> ({why}): {}</li>",
            escape(&failure.series),
            escape(&failure.message)
        );
    }
    body.push_str("</ul>");
}

fn figures(body: &mut String, one: &Experiment) {
    let rows = rows(one);
    if rows.is_empty() {
        return;
    }
    let definition = &one.definition;
    let unit = |axis: &crate::study::definition::Axis| match axis.unit.as_str() {
        "" => escape(&axis.label),
        unit => format!("{} ({})", escape(&axis.label), escape(unit)),
    };
    let _ = write!(
        body,
        "<details open><summary>Figures: medians, with the interval that holds the median with 95 % (least to most below 6 repetitions)</summary>\
         <div class=\"wide\"><table class=\"figures\"><thead><tr><th scope=\"col\">Series</th><th scope=\"col\">{}</th>",
        unit(&definition.x)
    );
    for metric in &definition.metrics {
        let _ = write!(body, "<th scope=\"col\">{}</th>", unit(metric));
    }
    body.push_str("</tr></thead><tbody>");
    for row in &rows {
        let _ = write!(
            body,
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td>",
            escape(&row.series),
            figure(row.x)
        );
        for value in &row.values {
            let shown = value.as_ref().map_or(String::new(), interval);
            let _ = write!(body, "<td class=\"number\">{shown}</td>");
        }
        body.push_str("</tr>");
    }
    let _ = write!(
        body,
        "</tbody></table></div></details><details><summary>Counts: what was sent, recorded, lost and claimed, and what it took</summary>\
         <div class=\"wide\"><table class=\"figures\"><thead><tr><th scope=\"col\">Series</th><th scope=\"col\">{}</th>\
         <th scope=\"col\">sent</th><th scope=\"col\">recorded</th><th scope=\"col\">lost</th><th scope=\"col\">claimed: recorded, lost</th>\
         <th scope=\"col\">CPU: user/system/ softirq/steal %</th><th scope=\"col\">MiB</th><th scope=\"col\">runs</th></tr></thead><tbody>",
        unit(&definition.x)
    );
    for row in &rows {
        let number = |value: Option<f64>| value.map_or(String::new(), figure);
        let _ = write!(
            body,
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td>",
            escape(&row.series),
            figure(row.x)
        );
        let claimed = row.claimed.map_or(String::new(), |(recorded, lost)| {
            let says = |one: Option<f64>| one.map_or("–".to_owned(), figure);
            let wrong = if row.claim_is_wrong {
                " <strong class=\"no\">wrong</strong>"
            } else {
                ""
            };
            format!("{}, {}{wrong}", says(recorded), says(lost))
        });
        let disturbed = match row.disturbed {
            0 => String::new(),
            count => format!(" <span class=\"partly\">({count} disturbed)</span>"),
        };
        let _ = write!(
            body,
            "<td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{claimed}</td><td>{}</td>\
             <td class=\"number\">{}</td><td>{}{disturbed}</td></tr>",
            number(row.sent),
            number(row.recorded),
            number(row.lost),
            escape(&row.cpus),
            number(row.memory_mib),
            row.runs
        );
    }
    body.push_str("</tbody></table></div></details>");
}

fn parameters(body: &mut String, one: &Experiment) {
    body.push_str("<details><summary>Conditions: parameters</summary><table><tbody>");
    for (key, value) in &one.parameters {
        let _ = write!(
            body,
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
            escape(key),
            escape(value)
        );
    }
    let _ = write!(
        body,
        "</tbody></table><p>Duration: {:.0} s.</p></details><p>To run only this experiment:</p><pre>{}</pre>",
        one.seconds,
        escape(&one.command)
    );
}

fn closing_note(body: &mut String, source: &Source) {
    let found = behind(&source.report.experiments);
    if found.is_empty() {
        body.push_str("<p>Nowhere by more than the spread.</p>");
        return;
    }
    body.push_str("<ul>");
    for (name, places) in found {
        let _ = write!(
            body,
            "<li><a href=\"#{0}\">{0}</a>: {1}</li>",
            escape(&name),
            escape(&places)
        );
    }
    body.push_str("</ul>");
}

fn peers(body: &mut String, report: &Report) {
    body.push_str("<div class=\"wide\"><table><tbody>");
    for peer in &report.peers {
        let state = match peer.state {
            PeerState::Installed => peer
                .version
                .clone()
                .unwrap_or_else(|| "installed".to_owned()),
            PeerState::Missing => format!(
                "{}: {}",
                peer.message.as_deref().unwrap_or("not installed"),
                peer.how_to_get
            ),
            PeerState::Unusable => peer.message.clone().unwrap_or_default(),
        };
        let _ = write!(
            body,
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
            escape(&peer.name),
            escape(&state)
        );
    }
    body.push_str("</tbody></table></div>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_not_markup() {
        assert_eq!(escape("<b a=\"&\">"), "&lt;b a=&quot;&amp;&quot;&gt;");
    }

    #[test]
    fn page_loads_nothing_from_elsewhere() {
        let page = page(&[], false, false);
        assert!(!page.contains("src=") && !page.contains("@import") && !page.contains("url("));
        assert!(!page.contains("http-equiv"));
        assert!(page.contains("Leon Sorokin"));
    }
}
