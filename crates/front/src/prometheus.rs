//! Metrics in Prometheus' text format.

use std::fmt::Write as _;

use trawl_view::text;

/// The values of a metric, each with the names and values of its labels.
pub type Values = Vec<(Vec<(&'static str, String)>, f64)>;

/// A metric: its name without the prefix, its help, and its values by labels.
pub type Metric = (&'static str, &'static str, Values);

/// Returns metrics as a page; one without values is left out.
pub fn page(metrics: impl IntoIterator<Item = Metric>) -> String {
    let mut out = String::new();
    metrics.into_iter().filter(|(_, _, values)| !values.is_empty()).for_each(|metric| write(&mut out, metric));
    out
}

fn write(out: &mut String, (name, help, values): Metric) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let name = format!("trawl_{name}");
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in values {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let braces = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(out, "{name}{braces} {value}");
    }
}

/// Returns the value of a metric without labels.
pub fn single(value: f64) -> Values {
    vec![(Vec::new(), value)]
}

fn escaped(value: &str) -> String {
    text::printable(value).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Answer to a scrape.
pub const KIND: &str = "text/plain; version=0.0.4";
