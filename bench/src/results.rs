//! `results.json` and `results.csv` of a run: written after each measurement, so that an interruption loses none.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use trawl_sys::{Error, Result, files::create};

use crate::model::{Report, SCHEMA};

pub const JSON: &str = "results.json";
pub const CSV: &str = "results.csv";

pub fn json_path(directory: &Path) -> PathBuf {
    directory.join(JSON)
}

/// Replaces the JSON; a reader sees the old or the new one, complete.
pub fn save(directory: &Path, report: &Report) -> Result<()> {
    let text = serde_json::to_vec(report).map_err(|e| Error::failed("cannot encode the results as JSON", e))?;
    replace(&json_path(directory), &text)
}

/// Writes the CSV: one line for each run and metric.
pub fn save_csv(directory: &Path, report: &Report) -> Result<()> {
    replace(&directory.join(CSV), csv(report).as_bytes())
}

/// Writes a file atomically.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let fail = |e| Error::os(format!("cannot write {}", path.display()), e);
    create::replace(path, bytes).map_err(fail)
}

/// Reads the results of a directory, or of a JSON file itself.
pub fn load(path: &Path) -> Result<Report> {
    let path = if path.is_dir() { json_path(path) } else { path.to_owned() };
    let what = || format!("cannot read the results in {}", path.display());
    let bytes =
        fs::read(&path).map_err(|e| Error::os(what(), e).fix("trawl bench run NAME -o DIR writes results to DIR"))?;
    let mut json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| Error::failed(what(), e))?;
    let schema = json.get_mut("schema").map(serde_json::Value::take);
    let schema = schema.as_ref().and_then(serde_json::Value::as_str);
    if schema != Some(SCHEMA) {
        let found = schema.unwrap_or("none");
        return Err(Error::failed(what(), format!("their schema is {found}, this version of trawl reads {SCHEMA}")));
    }
    let mut report: Report = serde_json::from_slice(&bytes).map_err(|e| Error::failed(what(), e))?;
    for experiment in &mut report.experiments {
        experiment.summarise();
    }
    Ok(report)
}

fn csv(report: &Report) -> String {
    let mut text = String::from(
        "experiment,series,x,x_unit,repetition,metric,value,unit,sent,expected,recorded,lost,claimed_recorded,\
         claimed_lost,claim_wrong,seconds,memory_bytes,disturbed",
    );
    let runs = report.experiments.iter().flat_map(|one| &one.runs);
    let cpus = runs.map(|run| run.cpus.len()).max().unwrap_or(0);
    for cpu in 0..cpus {
        let _ = write!(text, ",cpu{cpu}_user,cpu{cpu}_system,cpu{cpu}_softirq,cpu{cpu}_steal");
    }
    text.push('\n');
    for experiment in &report.experiments {
        let definition = &experiment.definition;
        for run in &experiment.runs {
            for (metric, value) in &run.values {
                let unit = definition.metrics.iter().find(|one| one.name == *metric).map_or("", |one| &one.unit);
                let number = |count: Option<u64>| count.map_or(String::new(), |n| n.to_string());
                let claim = run.claim.clone().unwrap_or_default();
                let fields = [
                    quoted(&definition.name),
                    quoted(&run.series),
                    run.x.to_string(),
                    quoted(&definition.x.unit),
                    run.repetition.to_string(),
                    quoted(metric),
                    value.to_string(),
                    quoted(unit),
                    number(run.sent),
                    number(run.expected),
                    number(run.recorded),
                    number(run.lost),
                    number(claim.recorded),
                    number(claim.lost),
                    run.claim.as_ref().map_or(String::new(), |claim| claim.wrong.to_string()),
                    run.seconds.to_string(),
                    number(run.memory_bytes),
                    quoted(run.disturbed.as_deref().unwrap_or("")),
                ];
                let _ = write!(text, "{}", fields.join(","));
                for cpu in 0..cpus {
                    let _ = match run.cpus.get(cpu) {
                        Some(used) => write!(text, ",{},{},{},{}", used.user, used.system, used.softirq, used.steal),
                        None => write!(text, ",,,,"),
                    };
                }
                text.push('\n');
            }
        }
    }
    text
}

/// Quotes a field by RFC 4180.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_stay_one_field() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
    }

    #[test]
    fn results_of_another_schema_are_refused() {
        let path = std::env::temp_dir().join(format!("trawl-store-{}.json", std::process::id()));
        for text in ["{}", "{\"schema\":\"trawl-bench/0\"}", "[]", "not JSON"] {
            fs::write(&path, text).expect("the file can be written");
            assert!(load(&path).is_err(), "{text}");
        }
        fs::remove_file(&path).expect("it is there");
        assert!(load(&path).is_err());
    }
}
