//! A question as the page sends it, and the arguments of `trawl store` that ask it.

use std::ffi::OsString;

use url::form_urlencoded;

use super::paging::{Cursor, Paging, Part, Sorted};

/// Number of rows or packets if the question does not say.
const COUNT: usize = 500;
/// Maximum number of rows or packets on the page.
const MOST: usize = 10_000;
/// Maximum number of packets in a file.
const MOST_IN_FILE: usize = 100_000_000;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    sql: Option<String>,
    filter: String,
    incident: Option<String>,
    /// Options that select packets.
    part: Vec<OsString>,
    /// Options about the packets' lines.
    lines: Vec<OsString>,
    count: Option<usize>,
    paging: Paging,
}

impl Asked {
    /// Parses the part of a request's target after the question mark.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut asked = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()).filter(|(_, value)| !value.is_empty()) {
            let option = || OsString::from(format!("--{name}={value}"));
            match &*name {
                "sql" => asked.sql = Some(value.into_owned()),
                "filter" => asked.filter = value.into_owned(),
                "incident" => asked.incident = Some(value.into_owned()),
                "from" | "to" | "host" | "interface" => asked.part.push(option()),
                "count" => asked.count = Some(value.parse().map_err(|_| "the count is no number".to_owned())?),
                "asc" | "desc" => {
                    asked.paging.order.push(Sorted { column: value.into_owned(), descends: name == "desc" });
                }
                "after" => asked.paging.part = Part::After(Cursor::parse(&value)?),
                "before" => asked.paging.part = Part::Before(Cursor::parse(&value)?),
                "last" => asked.paging.part = Part::Last,
                "verbose" => asked.lines.push("-v".into()),
                "bytes" => asked.lines.push("-X".into()),
                _ => {
                    return Err(
                        "the parameters are sql, filter, incident, from, to, host, interface, count, asc, desc, after, \
                         before, last, verbose and bytes"
                            .to_owned(),
                    );
                }
            }
        }
        asked.paging.check()?;
        Ok(asked)
    }

    /// Maximum number of rows or packets on the page.
    pub fn count(&self) -> usize {
        self.count.unwrap_or(COUNT).clamp(1, MOST)
    }

    fn selection(&self) -> impl Iterator<Item = OsString> {
        let named = |name: &str, value: &str| OsString::from(format!("--{name}={value}"));
        let filter = (!self.filter.is_empty() || self.sql.is_none()).then(|| named("filter", &self.filter));
        let incident = self.incident.as_ref().map(|incident| named("incident", incident));
        self.part.clone().into_iter().chain(filter).chain(incident)
    }

    fn sql(&self) -> impl Iterator<Item = OsString> {
        self.sql.iter().flat_map(|sql| ["--".into(), sql.into()])
    }

    /// Returns the order of the rows and the page; `None` without an order.
    pub fn paging(&self) -> Option<&Paging> {
        (!self.paging.order.is_empty()).then_some(&self.paging)
    }

    /// Returns the arguments for rows; `None` without SQL.
    pub fn rows(&self) -> Option<Vec<OsString>> {
        let sql = self.sql.as_ref()?;
        let page = self.paging().map(|paging| paging.sql(sql, self.count()));
        Some(self.csv(page.unwrap_or_else(|| sql.clone())))
    }

    /// Returns the arguments for the number of rows, and of the rows in front of the page; `None` without SQL.
    pub fn position(&self) -> Option<Vec<OsString>> {
        Some(self.csv(self.paging.position(self.sql.as_ref()?)))
    }

    fn csv(&self, sql: String) -> Vec<OsString> {
        self.selection().chain(["--csv".into(), "--".into(), sql.into()]).collect()
    }

    /// Returns the arguments for packets as lines; `None` for SQL, whose answers are rows.
    pub fn lines(&self) -> Option<Vec<OsString>> {
        let count = self.count().to_string();
        let options = ["-n", "-tttt", "-c", &count].map(OsString::from);
        self.sql.is_none().then(|| self.selection().chain(options).chain(self.lines.clone()).collect())
    }

    /// Returns the arguments for a file of packets.
    pub fn packets(&self) -> Vec<OsString> {
        let count = self.count.unwrap_or(MOST_IN_FILE).clamp(1, MOST_IN_FILE).to_string();
        // SQL has a LIMIT of its own.
        let count = self.sql.is_none().then(|| ["-c".into(), count.into()]);
        let options = ["--packets", "-", "--json"].map(OsString::from).into_iter().chain(count.into_iter().flatten());
        self.selection().chain(options).chain(self.sql()).collect()
    }

    /// Returns the arguments for the account of an incident; `None` without its name.
    pub fn incident(&self) -> Option<Vec<OsString>> {
        let name = self.incident.as_ref()?;
        Some(vec![format!("--incident={name}").into(), "--json".into()])
    }

    /// Describes the question in the log.
    pub fn text(&self) -> String {
        let words = self.selection().chain(self.sql()).map(|word| word.to_string_lossy().into_owned());
        words.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(arguments: &[OsString]) -> String {
        arguments.iter().map(|one| one.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn parameters_are_values_and_never_options() {
        let asked = Asked::parse("sql=--memory+1TiB&filter=--write+x&host=a%20--store&host=b&to=&count=7").unwrap();
        assert_eq!(
            words(&asked.rows().unwrap()),
            "--host=a --store --host=b --filter=--write x --csv -- --memory 1TiB"
        );
        assert_eq!(asked.lines(), None);
        assert_eq!(
            words(&asked.packets()),
            "--host=a --store --host=b --filter=--write x --packets - --json -- --memory 1TiB"
        );
        assert_eq!(asked.rows().unwrap()[0], "--host=a --store");
        assert!(Asked::parse("write=x").is_err() && Asked::parse("count=-1").is_err());
    }

    #[test]
    fn packets_are_limited() {
        let asked = Asked::parse("incident=x&count=99999999999").unwrap();
        assert_eq!(words(&asked.lines().unwrap()), "--filter= --incident=x -n -tttt -c 10000");
        assert_eq!(words(&asked.packets()), "--filter= --incident=x --packets - --json -c 100000000");
        assert_eq!(words(&asked.incident().unwrap()), "--incident=x --json");
        assert_eq!(asked.rows(), None);
    }
}
