//! Metrics in Prometheus' text format.

use std::fmt::Write as _;

use trawl_view::text;

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;

/// The values of a metric, each with the names and values of its labels.
pub type Values = Vec<(Labels, f64)>;

/// A metric: its name without the prefix, its help, and its values by labels.
pub type Metric = (&'static str, &'static str, Values);

/// Numbers of values up to some limits.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Upper limits, and the number of values between the limit before and this one.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum: f64,
}

/// A metric of histograms by labels.
pub type Histograms = (&'static str, &'static str, Vec<(Labels, Histogram)>);

/// Returns metrics as a page; one without values is left out.
pub fn page(metrics: impl IntoIterator<Item = Metric>) -> String {
    let mut out = String::new();
    metrics.into_iter().filter(|(_, _, values)| !values.is_empty()).for_each(|metric| write(&mut out, metric));
    out
}

/// Returns metrics of histograms as a page; one without values is left out.
pub fn page_of_histograms(metrics: impl IntoIterator<Item = Histograms>) -> String {
    let mut out = String::new();
    for (name, help, histograms) in metrics.into_iter().filter(|(_, _, all)| !all.is_empty()) {
        let name = head(&mut out, name, help, "histogram");
        for (labels, histogram) in histograms {
            let mut up_to = 0;
            let mut bucket = |limit: String, count: u64| {
                let labels = labels.iter().cloned().chain([("le", limit)]).collect();
                line(&mut out, &format!("{name}_bucket"), &labels, count as f64);
            };
            for (limit, count) in &histogram.buckets {
                up_to += count;
                bucket(limit.to_string(), up_to);
            }
            bucket("+Inf".to_owned(), histogram.count);
            line(&mut out, &format!("{name}_sum"), &labels, histogram.sum);
            line(&mut out, &format!("{name}_count"), &labels, histogram.count as f64);
        }
    }
    out
}

fn write(out: &mut String, (name, help, values): Metric) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let name = head(out, name, help, kind);
    values.iter().for_each(|(labels, value)| line(out, &name, labels, *value));
}

/// Writes the lines before a metric's values, and returns its whole name.
fn head(out: &mut String, name: &str, help: &str, kind: &str) -> String {
    let name = format!("trawl_{name}");
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    name
}

fn line(out: &mut String, name: &str, labels: &Labels, value: f64) {
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    let braces = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(out, "{name}{braces} {value}");
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
