//! Claims: sentences of the documentation and of the report that results support, with their intervals.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Deserialize;
use trawl_front::terminal;
use trawl_sys::{Error, Result, files::text_file};
use trawl_view::text;

use crate::model::{Interval, Report};
use crate::results;

/// Prints the sentences that results support, or writes them to documents
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory of results, or a JSON file
    #[arg(value_name = "DIR")]
    results: PathBuf,
    /// Compare the claims in these documents with the results
    #[arg(value_name = "FILE")]
    documents: Vec<PathBuf>,
    /// Replace the claims in the documents instead
    #[arg(long, requires = "documents")]
    write: bool,
    /// Further results, for experiments that the first lack
    #[arg(long = "also", value_name = "DIR")]
    others: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Claims {
    claims: Vec<Claim>,
}

/// A sentence about two series: the ratio of one to the other, or both.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub name: String,
    experiment: String,
    metric: String,
    of: String,
    over: String,
    x: f64,
    sentence: String,
}

impl Claim {
    /// Returns the sentence from the first results that have its figures.
    fn first_text(&self, reports: &[Report]) -> Option<String> {
        reports.iter().find_map(|report| self.text(report))
    }

    /// Returns the sentence; `None` if the results lack its figures.
    pub fn text(&self, report: &Report) -> Option<String> {
        let experiment = report.experiment(&self.experiment)?;
        let ratio = experiment.paired(&self.of, &self.over, &self.metric, self.x)?;
        let tenths = |value: f64| (value * 10.0).round() / 10.0;
        let [median, low, high] = [ratio.median, ratio.low, ratio.high].map(tenths);
        let value = format!("{median} times ({low} to {high})");
        let pairs = experiment.pairs(&self.of, &self.over, &self.metric, self.x);
        let figure = |of: fn(&(f64, f64)) -> f64| {
            let Interval { median, low, high, .. } = Interval::of(pairs.iter().map(of))?;
            Some(format!("{median:.2} ({low:.2} to {high:.2})"))
        };
        let sentence = self.sentence.replace("{}", &value);
        let sentence = sentence.replace("{of}", &figure(|(of, _)| *of)?);
        Some(sentence.replace("{over}", &figure(|(_, over)| *over)?))
    }
}

pub fn all() -> Result<Vec<Claim>> {
    let claims: Claims =
        toml::from_str(include_str!("claims.toml")).map_err(|e| Error::failed("the claims", e.to_string()))?;
    Ok(claims.claims)
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let all_results = std::iter::once(&args.results).chain(&args.others);
    let reports = all_results.map(|path| results::load(path)).collect::<Result<Vec<_>>>()?;
    let claims = all()?;
    if args.documents.is_empty() {
        let texts = claims.iter().filter_map(|claim| claim.first_text(&reports));
        let lines: Vec<String> = texts.map(|text| text + "\n").collect();
        terminal::write_out(&lines.concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut differ = Vec::new();
    for path in &args.documents {
        let old = text_file::read(path)?;
        let new = supported(&old, &claims, &reports).map_err(|why| Error::failed(path.display().to_string(), why))?;
        if new == old {
            continue;
        }
        if args.write { results::replace(path, new.as_bytes())? } else { differ.push(path.display().to_string()) }
    }
    if differ.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Error::failed(format!("the claims in {}", differ.join(", ")), "they differ from the results")
        .fix("add --write to replace them"))
}

const BEGIN: &str = "<!-- claim ";
const END: &str = "<!-- end claim -->";
const WIDTH: usize = 120;

/// Returns the document with each claim as the results support it.
fn supported(text: &str, claims: &[Claim], reports: &[Report]) -> std::result::Result<String, String> {
    let mut new = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let (before, from) = rest.split_at(at);
        let (name, after) = from[BEGIN.len()..].split_once(" -->").ok_or("a claim has no name")?;
        let (_, after) = after.split_once(END).ok_or_else(|| format!("claim {name} has no end"))?;
        let mut all = claims.iter();
        let claim = all.find(|claim| claim.name == name).ok_or_else(|| format!("claim {name} is unknown"))?;
        let sentence = claim.first_text(reports).ok_or_else(|| format!("claim {name} has no results"))?;
        new += before;
        new += &format!("{BEGIN}{name} -->\n{}\n{END}", text::lines(&sentence, WIDTH).join("\n"));
        rest = after;
    }
    Ok(new + rest)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::{Experiment, Run};
    use crate::study::catalogue;

    /// Returns the repository's path of a file.
    fn file(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
    }

    #[test]
    fn claims_of_the_documents_are_supported_by_the_results_beside_them() {
        let paths = ["docs/report/defaults.json", "docs/report/results.json"];
        let reports = paths.map(|path| results::load(&file(path)).expect(path));
        let claims = all().expect("they are valid");
        for path in ["README.md", "docs/GUIDE.md", "docs/peers.md"] {
            let text = std::fs::read_to_string(file(path)).expect(path);
            let new = supported(&text, &claims, &reports).expect(path);
            assert!(new == text, "{path}: `trawl bench claims {} --also {} {path} --write`", paths[0], paths[1]);
        }
    }

    #[test]
    fn claims_name_experiments_with_their_metrics_and_series() {
        for claim in all().expect("they are valid") {
            let entry = catalogue::find(&claim.experiment).expect(&claim.name);
            let definition = entry.definition().expect(&claim.name);
            assert!(definition.metrics.iter().any(|one| one.name == claim.metric));
            let text = format!("{:?}", definition.full);
            for series in [&claim.of, &claim.over] {
                let quick = format!("{:?}", definition.quick);
                assert!(text.contains(series.as_str()) || quick.contains(series.as_str()));
            }
        }
    }

    #[test]
    fn documents_get_the_sentence_of_the_results() {
        let claim = Claim {
            name: "one".to_owned(),
            experiment: "e".to_owned(),
            metric: "mpps".to_owned(),
            of: "a".to_owned(),
            over: "b".to_owned(),
            x: 1.0,
            sentence: "It is {} as fast: {of}, not {over}.".to_owned(),
        };
        let run = |series: &str, value: f64| Run {
            series: series.to_owned(),
            x: 1.0,
            repetition: 1,
            values: [("mpps".to_owned(), value)].into(),
            ..Run::default()
        };
        let mut experiment = Experiment { runs: vec![run("a", 6.0), run("b", 1.5)], ..Experiment::default() };
        experiment.definition.name = "e".to_owned();
        let report = [Report { experiments: vec![experiment], ..Report::default() }];
        let claims = [claim];
        let old = "x\n<!-- claim one -->\nIt is slow.\n<!-- end claim -->\ny";
        let new = supported(old, &claims, &report).expect("it is supported");
        assert_eq!(
            new,
            "x\n<!-- claim one -->\nIt is 4 times (4 to 4) as fast: 6.00 (6.00 to 6.00), not 1.50 (1.50 to 1.50).\n<!-- end claim -->\ny"
        );
        assert_eq!(supported(&new, &claims, &report), Ok(new.clone()));
        for wrong in ["<!-- claim two -->\n<!-- end claim -->", "<!-- claim one -->"] {
            assert!(supported(wrong, &claims, &report).is_err());
        }
    }
}
