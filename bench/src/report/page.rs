//! The page: summary first, then a section for each experiment. Text and tables are in the HTML itself, so that it can
//! be read without a script; the script draws the plots.

use std::fmt::Write as _;

use super::plot::{Palette, Plot, plot};
use super::tables::{Row, figure, interval, rows};
use super::{Source, behind, changes};
use crate::claims;
use crate::limit::limits;
use crate::model::{Agreement, Experiment, Report};

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
        headline(&mut body, source, &palette, &mut plots);
    }
    for source in sources {
        head(&mut body, source);
    }
    body.push_str("<main><h2 id=\"summary\">Results</h2>");
    for (number, source) in sources.iter().enumerate() {
        summary(&mut body, source, number, sources.len() > 1);
    }
    if compare && let Some((first, rest)) = sources.split_first() {
        for other in rest {
            comparison(&mut body, first, other);
        }
    }
    for (number, source) in sources.iter().enumerate() {
        for experiment in &source.report.experiments {
            section(&mut body, experiment, source, number, sources.len() > 1, &palette, &mut plots);
        }
    }
    body.push_str("<h2 id=\"behind\">Where trawl is behind a peer</h2>");
    for (number, source) in sources.iter().enumerate() {
        closing_note(&mut body, source, number);
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
    let data = serde_json::to_string(&plots).unwrap_or_default().replace('<', "\\u003c");
    let refresh = if is_live { "<meta http-equiv=\"refresh\" content=\"3\">" } else { "" };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">{refresh}\
         <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"icon\" href=\"data:,\">\
         <title>trawl compared with the published studies</title>\
         <style>{UPLOT_CSS}{STYLE}</style></head><body>{body}\
         <script type=\"application/json\" id=\"data\">{data}</script><script>{UPLOT}</script><script>{SCRIPT}</script></body></html>\n"
    )
}

/// Writes the sentences that matter most, and draws how far the captures are complete.
fn headline(body: &mut String, source: &Source, palette: &Palette, plots: &mut Vec<Plot>) {
    let claims = claims::all().unwrap_or_default();
    let texts = claims.iter().filter_map(|claim| claim.text(&source.report));
    let items: Vec<String> = texts.map(|text| format!("<li>{}</li>", escape(&text))).collect();
    if items.is_empty() {
        return;
    }
    let _ = write!(body, "<ul class=\"headline\">{}</ul>", items.concat());
    let complete = source.report.experiment("capture-complete");
    let axis = complete.and_then(|one| one.definition.metrics.first());
    if let Some((one, axis)) = complete.zip(axis) {
        let plot = plot(one, &axis.name, "plot-headline".to_owned(), palette);
        let _ = write!(body, "<h3>{}: {}</h3>", escape(&one.definition.title), escape(&plot.y));
        draw(body, &plot);
        plots.extend(Some(plot).filter(|plot| !plot.is_bars()));
    }
}

fn head(body: &mut String, source: &Source) {
    let report = &source.report;
    let c = &report.conditions;
    let state = if report.complete { "" } else { " <strong class=\"no\">This run is not complete.</strong>" };
    let disturbed: usize = report.experiments.iter().map(Experiment::disturbed_runs).sum();
    if disturbed > 0 {
        let runs: usize = report.experiments.iter().map(|one| one.runs.len()).sum();
        let _ = write!(
            body,
            "<p class=\"banner\">{disturbed} of {runs} runs were disturbed: other work took CPU time from them. Their experiments \
             are marked; run these again on a quiet machine.</p>"
        );
    }
    let mitigations: Vec<String> = c.mitigations.iter().map(|(name, state)| format!("{name}: {state}")).collect();
    let _ = write!(
        body,
        "<p><strong>{}</strong>: {} ({} CPUs{}, {:.0} GB), {}, clock {}, {}, {} queues, load {} before the first run; \
         trawl {}, profile {}. XDP: {}. trawl's ring: {}.{state}</p><details><summary>Mitigations of the CPU</summary><p>{}</p></details>",
        escape(&source.name),
        escape(&c.cpu),
        c.cpus,
        if c.hypervisor { ", a virtual machine" } else { "" },
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

/// Appends a table; each row is a whole element.
fn table(body: &mut String, class: &str, columns: &[String], rows: impl Iterator<Item = String>) {
    let _ = write!(body, "<div class=\"wide\"><table class=\"{class}\">");
    if !columns.is_empty() {
        let columns = columns.iter();
        let heads = columns.map(|column| format!("<th scope=\"col\">{column}</th>"));
        let heads: String = heads.collect();
        let _ = write!(body, "<thead><tr>{heads}</tr></thead>");
    }
    let rows: String = rows.collect();
    let _ = write!(body, "<tbody>{rows}</tbody></table></div>");
}

/// Returns a row with a text as its head; the cells are elements.
fn row(head: &str, cells: &[String]) -> String {
    let head = escape(head);
    format!("<tr><th scope=\"row\">{head}</th>{}</tr>", cells.concat())
}

fn cell(text: &str) -> String {
    format!("<td>{}</td>", escape(text))
}

fn number(text: impl std::fmt::Display) -> String {
    format!("<td class=\"number\">{text}</td>")
}

fn names(columns: &[&str]) -> Vec<String> {
    columns.iter().map(|column| (*column).to_owned()).collect()
}

/// Returns the anchor of an experiment's section, by the number of its source.
fn anchor(name: &str, number: usize) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}-{number}") }
}

fn summary(body: &mut String, source: &Source, number: usize, is_named: bool) {
    if is_named {
        let _ = write!(body, "<h3>{}</h3>", escape(&source.name));
    }
    let columns = ["Experiment", "The study found", "This machine shows", "Shape agrees", "Summary"];
    let rows = source.report.experiments.iter().map(|one| {
        let name = escape(&one.definition.name);
        let anchor = anchor(&name, number);
        let named = |head: &str, text: &str| format!("<td data-head=\"{head}\">{text}</td>");
        format!(
            "<tr><th scope=\"row\"><a href=\"#{anchor}\">{name}</a></th>{}{}{}{}</tr>",
            named(columns[1], &escape(&one.definition.found)),
            named(columns[2], &escape(&one.finding.shows)),
            named(columns[3], &agreement(one)),
            cell(&one.finding.sentence)
        )
    });
    table(body, "summary", &names(&columns), rows);
}

/// Returns whether the shapes agree, as a word in its colour. A disturbed run agrees partly at most: it proves nothing.
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
        "<h2 id=\"compare\">{} compared with {}</h2><p>Marked: the intervals have nothing in common.</p>",
        escape(&other.name),
        escape(&first.name)
    );
    let columns = ["Experiment", "Series", "At", "Figure", "Before", "After", "Change"];
    let rows = changes(first, other).into_iter().map(|one| {
        let change = format!("{:+.1} %", one.percent());
        let (class, change) =
            if one.is_marked { (" class=\"changed\"", format!("<strong>{change}</strong>")) } else { ("", change) };
        let cells = [
            cell(&one.experiment),
            cell(&one.series),
            number(figure(one.x)),
            cell(&one.metric),
            number(interval(&one.before)),
            number(interval(&one.after)),
            number(change),
        ];
        format!("<tr{class}>{}</tr>", cells.concat())
    });
    table(body, "compare", &names(&columns), rows);
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
    let id = anchor(&definition.name, number);
    let whose = if is_named { format!(" ({})", source.name) } else { String::new() };
    let _ = write!(
        body,
        "<section aria-labelledby=\"{id}\"><h2 id=\"{id}\">{}{}</h2><p class=\"soft\">{} (study {}, {})</p><p>{}</p><h3>Set-up</h3>\
         <ol class=\"setup\" aria-label=\"the stations on a packet's path\">",
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
    let _ = write!(body, "<p><strong>Shape agrees: {}.</strong> {}</p>", agreement(one), escape(&one.finding.sentence));
    if let Some(limits) = limits(one) {
        let _ = write!(body, "<p class=\"soft\">{}.</p>", escape(&limits));
    }
    let mut shown: Vec<(String, Plot)> = Vec::new();
    for metric in &definition.metrics {
        let id = format!("plot-{id}-{}", metric.name);
        let plot = plot(one, &metric.name, id, palette);
        if plot.series.is_empty() {
            continue;
        }
        let _ = write!(body, "<h3>{} by {}</h3>", escape(&plot.y), escape(&plot.x));
        if let Some((same, _)) = shown.iter().find(|(_, before)| plot.is_same_as(before)) {
            let _ = write!(body, "<p>All values equal the ones of \u{201c}{}\u{201d}.</p>", escape(same));
            continue;
        }
        draw(body, &plot);
        shown.push((metric.label.clone(), plot));
    }
    let drawn = shown.into_iter().map(|(_, plot)| plot);
    plots.extend(drawn.filter(|plot| !plot.is_bars()));
    failures(body, one);
    figures(body, one);
    parameters(body, one);
    body.push_str("</section>");
}

/// Draws bars, or leaves room for the script to draw lines.
fn draw(body: &mut String, plot: &Plot) {
    if plot.is_bars() {
        bars(body, plot);
        return;
    }
    let _ = write!(
        body,
        "<div class=\"plot\" id=\"{}\" role=\"group\" aria-label=\"{} by {}; the figures are in the table below\">\
         <div class=\"buttons\"><button type=\"button\" class=\"x\">logarithmic x axis</button>\
         <button type=\"button\" class=\"y\">logarithmic y axis</button></div></div>",
        plot.id,
        escape(&plot.y),
        escape(&plot.x)
    );
}

/// Draws a bar for each series of a plot with one x value.
fn bars(body: &mut String, plot: &Plot) {
    let most = plot.maximum().max(f64::MIN_POSITIVE);
    body.push_str("<table class=\"bars\"><tbody>");
    for (line, is_published) in plot.lines() {
        let (red, green, blue) = line.colour;
        let (kind, note) = if is_published { ("bar hollow", " (published)") } else { ("bar", "") };
        for dot in &line.points {
            let range = match (dot.low, dot.high) {
                (Some(low), Some(high)) if low < high => {
                    format!(" ({} to {})", figure(low), figure(high))
                }
                _ => String::new(),
            };
            let width = dot.y / most * 100.0;
            let bar = format!(
                "<td><div class=\"{kind}\" style=\"width:{width:.1}%;--colour:rgb({red},{green},{blue})\"></div></td>"
            );
            let value = number(figure(dot.y) + &range);
            body.push_str(&row(&format!("{}{note}", line.name), &[bar, value]));
        }
    }
    body.push_str("</tbody></table>");
}

fn failures(body: &mut String, one: &Experiment) {
    if one.failures.is_empty() {
        return;
    }
    body.push_str("<h3>Not measured</h3><ul>");
    for failure in &one.failures {
        let why = if failure.expected { "not on this host" } else { "failed" };
        let _ =
            write!(body, "<li><strong>{}</strong> ({why}): {}</li>", escape(&failure.series), escape(&failure.message));
    }
    body.push_str("</ul>");
}

fn figures(body: &mut String, one: &Experiment) {
    let rows = rows(one);
    if rows.is_empty() {
        return;
    }
    let definition = &one.definition;
    let x = escape(&definition.x.titled());
    let metrics = definition.metrics.iter().map(|axis| escape(&axis.titled()));
    let mut columns = vec!["Series".to_owned(), x.clone()];
    columns.extend(metrics);
    body.push_str("<details open><summary>Figures: medians, with the interval that holds the median with 95 % (minimum to maximum below 6 repetitions)</summary>");
    let medians = rows.iter().map(|one| {
        let cells: Vec<String> = one.figures().into_iter().map(number).collect();
        row(&one.series, &cells)
    });
    table(body, "figures", &columns, medians);
    body.push_str(
        "</details><details><summary>Counts: packets sent, recorded, lost and claimed; CPU use, memory</summary>",
    );
    let columns = [
        "Series",
        &x,
        "sent",
        "recorded",
        "lost",
        "claimed: recorded, lost",
        "CPU: user/system/ softirq/steal %",
        "MiB",
        "runs",
    ];
    table(body, "figures", &names(&columns), rows.iter().map(counts));
    body.push_str("</details>");
}

fn counts(one: &Row) -> String {
    let count = |value: Option<f64>| number(value.map_or(String::new(), figure));
    let claimed = one.claimed.map_or(String::new(), |(recorded, lost)| {
        let says = |value: Option<f64>| value.map_or("–".to_owned(), figure);
        let wrong = if one.claim_is_wrong { " <strong class=\"no\">wrong</strong>" } else { "" };
        format!("{}, {}{wrong}", says(recorded), says(lost))
    });
    let disturbed = match one.disturbed {
        0 => String::new(),
        count => format!(" <span class=\"partly\">({count} disturbed)</span>"),
    };
    let cells = [
        number(figure(one.x)),
        count(one.sent),
        count(one.recorded),
        count(one.lost),
        format!("<td>{claimed}</td>"),
        cell(&one.cpus),
        count(one.memory_mib),
        format!("<td>{}{disturbed}</td>", one.runs),
    ];
    row(&one.series, &cells)
}

fn parameters(body: &mut String, one: &Experiment) {
    body.push_str("<details><summary>Conditions: parameters</summary>");
    let parameters = one.parameters.iter();
    let rows = parameters.map(|(key, value)| row(key, &[cell(value)]));
    table(body, "", &[], rows);
    let _ = write!(
        body,
        "<p>Duration: {:.0} s.</p></details><p>To run only this experiment:</p><pre>{}</pre>",
        one.seconds,
        escape(&one.command)
    );
}

fn closing_note(body: &mut String, source: &Source, number: usize) {
    let found = behind(&source.report.experiments);
    if found.is_empty() {
        body.push_str("<p>Nowhere by more than the spread.</p>");
        return;
    }
    body.push_str("<ul>");
    for (name, leads) in found {
        let (name, leads) = (escape(&name), escape(&leads));
        let _ = write!(body, "<li><a href=\"#{}\">{name}</a>: {leads}</li>", anchor(&name, number));
    }
    body.push_str("</ul>");
}

fn peers(body: &mut String, report: &Report) {
    let peers = report.peers.iter();
    let rows = peers.map(|peer| row(&peer.name, &[cell(&peer.state())]));
    table(body, "", &[], rows);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
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
